"""Messages about the allocator's decisions."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.NOTHING_TO_MOVE: Message(
        "TG4101",
        Level.INFO,
        "Every Inference with spec.scaling has the replicas that the allocator would give it.",
        NOTHING,
    ),
    Reason.RECOMMENDED: Message(
        "TG4102",
        Level.INFO,
        "The allocator would move replicas, and spec.policy.mode is RecommendOnly.",
        "Read status.lastDecision, and set spec.policy.mode: Auto to have such decisions carried out.",
    ),
    Reason.MOVING: Message(
        "TG4103",
        Level.INFO,
        "The moves of status.lastDecision are in progress.",
        NOTHING,
    ),
    Reason.RULES_NOT_KEPT: Message(
        "TG4104",
        Level.WARNING,
        "Floors, ceilings or demand need more than the pool has; the message names the rules that are not kept.",
        "Do what the message says: add nodes, or lower floors, demand or the number of replicas.",
    ),
    Reason.FREEZE_UNREADABLE: Message(
        "TG4105",
        Level.ERROR,
        "A window of spec.policy.freeze has an invalid schedule or time zone, or never begins; the pool is "
        "held.",
        "Correct the field that the message names.",
    ),
    Reason.SIGNALS_FRESH: Message(
        "TG4106",
        Level.INFO,
        "The demand of each Inference is known.",
        NOTHING,
    ),
    Reason.SIGNALS_STALE: Message(
        "TG4107",
        Level.WARNING,
        "The demand of some Inferences is unknown or stale; real-time Inferences keep at "
        "least their present replicas.",
        "Check what the message names: the gateways, or Prometheus.",
    ),
}
