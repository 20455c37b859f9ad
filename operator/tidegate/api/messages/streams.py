"""Messages about the stream of a near-line Inference."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.CONSUMING: Message(
        "TG1501",
        Level.INFO,
        "Every replica that serves consumes the stream.",
        NOTHING,
    ),
    Reason.STREAM_UNREACHABLE: Message(
        "TG1502",
        Level.ERROR,
        "The broker of spec.nearline does not answer. Messages wait in the stream, and none is lost.",
        "Bring the broker back, or correct spec.nearline.consume; Tidegate keeps retrying.",
    ),
    Reason.STREAM_REFUSED: Message(
        "TG1503",
        Level.ERROR,
        "The broker of spec.nearline rejects the connection or its use: credentials, a permission, a stream, topic, "
        "consumer or bucket that does not exist or differs from the spec, or dead letters that no stream stores. "
        "Messages wait in the stream.",
        "Do what the message says; Tidegate keeps retrying.",
    ),
}
