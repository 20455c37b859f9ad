"""Messages about the plan and the sources of a FeatureCompute."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PLAN_COMPILED: Message(
        "TG3001",
        Level.INFO,
        "The features are compiled; status.planHash names the plan.",
        NOTHING,
    ),
    Reason.PLAN_INVALID: Message(
        "TG3002",
        Level.ERROR,
        "The features do not fit together.",
        "Change the feature or source that the message names.",
    ),
    Reason.SOURCES_READY: Message(
        "TG3003",
        Level.INFO,
        "Every replica has read every source.",
        NOTHING,
    ),
    Reason.SOURCES_LOADING: Message(
        "TG3004",
        Level.INFO,
        "Sources are being read.",
        "Wait.",
    ),
    Reason.SOURCE_FAILED: Message(
        "TG3005",
        Level.ERROR,
        "A source could not be read.",
        "Correct the source's table, or publish it; the message has the details.",
    ),
}
