"""Of what the allocator decides."""

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
        "Replicas are on their way to what status.lastDecision says.",
        NOTHING,
    ),
    Reason.RULES_NOT_KEPT: Message(
        "TG4104",
        Level.WARNING,
        "Floors, ceilings or demand ask for more than the pool has, and the message names what was given up.",
        "Do what the message says: add nodes, or lower floors, demand or the number of replicas.",
    ),
    Reason.FREEZE_UNREADABLE: Message(
        "TG4105",
        Level.ERROR,
        "A window of spec.policy.freeze is no cron schedule, never comes, or names no time zone; the pool is "
        "held.",
        "Correct the field that the message names.",
    ),
    Reason.SIGNALS_FRESH: Message(
        "TG4106",
        Level.INFO,
        "What is asked of each Inference is known.",
        NOTHING,
    ),
    Reason.SIGNALS_STALE: Message(
        "TG4107",
        Level.WARNING,
        "What is asked of some Inferences is not known, or was known only a while ago; real-time ones keep at"
        " least what they have.",
        "Look at what the message names: the gateways, or Prometheus.",
    ),
}
