"""Messages about the plan and the sources of a FeatureCompute."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PLAN_COMPILED: CatalogueMessage(
        "TG3001",
        MessageLevel.INFO,
        "The features are compiled; status.planHash names the plan.",
        NO_ACTION,
    ),
    Reason.PLAN_INVALID: CatalogueMessage(
        "TG3002",
        MessageLevel.ERROR,
        "The features do not fit together.",
        "Change the feature or source that the message names.",
    ),
    Reason.SOURCES_READY: CatalogueMessage(
        "TG3003",
        MessageLevel.INFO,
        "Every replica has read every source.",
        NO_ACTION,
    ),
    Reason.SOURCES_LOADING: CatalogueMessage(
        "TG3004",
        MessageLevel.INFO,
        "Sources are being read.",
        "Wait.",
    ),
    Reason.SOURCE_FAILED: CatalogueMessage(
        "TG3005",
        MessageLevel.ERROR,
        "A source could not be read.",
        "Correct the source's table, or publish it; the message has the details.",
    ),
}
