"""Messages about the stream of a near-line Inference."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.CONSUMING: CatalogueMessage(
        "TG1501",
        MessageLevel.INFO,
        "Every replica that serves consumes the stream.",
        NO_ACTION,
    ),
    Reason.STREAM_UNREACHABLE: CatalogueMessage(
        "TG1502",
        MessageLevel.ERROR,
        "The broker of spec.nearline does not answer. Messages wait in the stream, and none is lost.",
        "Bring the broker back, or correct spec.nearline.consume; Tidegate keeps retrying.",
    ),
    Reason.STREAM_REFUSED: CatalogueMessage(
        "TG1503",
        MessageLevel.ERROR,
        "The broker of spec.nearline rejects the connection or its use: credentials, a permission, a stream, topic, "
        "consumer or bucket that does not exist or differs from the spec, or dead letters that no stream stores. "
        "Messages wait in the stream.",
        "Do what the message says; Tidegate keeps retrying.",
    ),
}
