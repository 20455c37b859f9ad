"""Messages about ComputeOverrides."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.OVERRIDDEN: Message(
        "TG4201",
        Level.INFO,
        "A ComputeOverride is in force for this object until it ends.",
        "Delete the ComputeOverride to end it earlier.",
    ),
    Reason.OVERRIDE_IN_FORCE: Message(
        "TG4202",
        Level.INFO,
        "The override is in force for its target.",
        NOTHING,
    ),
    Reason.OVERRIDE_EXPIRED: Message(
        "TG4203",
        Level.INFO,
        "The override has expired and has no effect any more.",
        "Delete it, or set another spec.expiresAt.",
    ),
    Reason.OVERRIDE_WITHOUT_EFFECT: Message(
        "TG4204",
        Level.WARNING,
        "The override's target leaves the allocator nothing to decide: its number of replicas is fixed.",
        "Set spec.scaling of the Inference instead of spec.replicas, or change spec.replicas.",
    ),
}
