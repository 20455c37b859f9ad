"""Messages about the requests of an Inference that share executions."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.REQUESTS_JOINED: CatalogueMessage(
        "TG1801",
        MessageLevel.INFO,
        "Requests that arrive while the model is busy share its next execution; the message says so if those of different "
        "shapes do not.",
        NO_ACTION,
    ),
    Reason.REQUESTS_ALONE: CatalogueMessage(
        "TG1802",
        MessageLevel.INFO,
        "batching.mode is Adaptive, and each request is executed alone, because joining would change answers or nothing "
        "could compare them.",
        "Nothing, if the model is fast enough; else do what the message says.",
    ),
}
