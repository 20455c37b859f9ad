"""Messages about the allocator's decisions."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.NOTHING_TO_MOVE: CatalogueMessage(
        "TG4101",
        MessageLevel.INFO,
        "Every Inference with spec.scaling has the replicas that the allocator would give it.",
        NO_ACTION,
    ),
    Reason.RECOMMENDED: CatalogueMessage(
        "TG4102",
        MessageLevel.INFO,
        "The allocator would move replicas, and spec.policy.mode is RecommendOnly.",
        "Read status.lastDecision, and set spec.policy.mode: Auto to have such decisions carried out.",
    ),
    Reason.MOVING: CatalogueMessage(
        "TG4103",
        MessageLevel.INFO,
        "The moves of status.lastDecision are in progress.",
        NO_ACTION,
    ),
    Reason.RULES_NOT_KEPT: CatalogueMessage(
        "TG4104",
        MessageLevel.WARNING,
        "Floors, ceilings or demand need more than the pool has; the message names the rules that are not kept.",
        "Do what the message says: add nodes, or lower floors, demand or the number of replicas.",
    ),
    Reason.FREEZE_UNREADABLE: CatalogueMessage(
        "TG4105",
        MessageLevel.ERROR,
        "A window of spec.policy.freeze has an invalid schedule or time zone, or never begins; the pool is "
        "held.",
        "Correct the field that the message names.",
    ),
    Reason.SIGNALS_FRESH: CatalogueMessage(
        "TG4106",
        MessageLevel.INFO,
        "The demand of each Inference is known.",
        NO_ACTION,
    ),
    Reason.SIGNALS_STALE: CatalogueMessage(
        "TG4107",
        MessageLevel.WARNING,
        "The demand of some Inferences is unknown or stale; real-time Inferences keep at "
        "least their present replicas.",
        "Check what the message names: the gateways, or Prometheus.",
    ),
}
