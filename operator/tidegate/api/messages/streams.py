"""Of the stream of a near-line Inference."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.CONSUMING: Message(
        "TG1501",
        Level.INFO,
        "Every replica that serves takes messages from the stream.",
        NOTHING,
    ),
    Reason.STREAM_UNREACHABLE: Message(
        "TG1502",
        Level.ERROR,
        "The broker of spec.nearline does not answer. Messages wait in the stream, and none is lost.",
        "Bring the broker back, or correct spec.nearline.consume; it is tried again all the time.",
    ),
    Reason.STREAM_REFUSED: Message(
        "TG1503",
        Level.ERROR,
        "The broker of spec.nearline answers and refuses: credentials, a permission, a stream, topic, "
        "consumer or bucket that is not there or not as the spec says, or dead letters that nothing takes. "
        "Messages wait in the stream.",
        "Do what the message says; it is tried again all the time.",
    ),
}
