"""Messages about ComputeOverrides."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.OVERRIDDEN: CatalogueMessage(
        "TG4201",
        MessageLevel.INFO,
        "A ComputeOverride is in force for this object until it ends.",
        "Delete the ComputeOverride to end it earlier.",
    ),
    Reason.OVERRIDE_IN_FORCE: CatalogueMessage(
        "TG4202",
        MessageLevel.INFO,
        "The override is in force for its target.",
        NO_ACTION,
    ),
    Reason.OVERRIDE_EXPIRED: CatalogueMessage(
        "TG4203",
        MessageLevel.INFO,
        "The override has expired and has no effect any more.",
        "Delete it, or set another spec.expiresAt.",
    ),
    Reason.OVERRIDE_WITHOUT_EFFECT: CatalogueMessage(
        "TG4204",
        MessageLevel.WARNING,
        "The override's target leaves the allocator nothing to decide: its number of replicas is fixed.",
        "Set spec.scaling of the Inference instead of spec.replicas, or change spec.replicas.",
    ),
}
