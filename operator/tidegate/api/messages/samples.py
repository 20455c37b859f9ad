"""Messages about an Inference's sample log."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.SAMPLES_LOGGED: Message(
        "TG1401",
        Level.INFO,
        "Every replica that serves logs its share of the requests.",
        NOTHING,
    ),
    Reason.SINK_UNREACHABLE: Message(
        "TG1402",
        Level.ERROR,
        "The sink of the sample log does not answer or cannot be written. Requests are not affected; samples "
        "wait in a bounded buffer and are then dropped and counted.",
        "Bring the sink back, or correct spec.logging.sink; Tidegate keeps retrying.",
    ),
    Reason.SINK_REFUSED: Message(
        "TG1403",
        Level.ERROR,
        "The sink of the sample log rejects the samples: credentials, a permission, a stream that does not "
        "exist, or an address that is not allowed. Requests are not affected.",
        "Do what the message says, or correct spec.logging.sink and its Secret; Tidegate keeps retrying.",
    ),
    Reason.SAMPLES_DROPPED: Message(
        "TG1404",
        Level.WARNING,
        "Samples were dropped within the last minute, although the sink works: it is slower than the samples "
        "arrive, or a record is too large.",
        "Lower spec.logging.sample or make the sink faster; tidegate_agent_samples_dropped_total shows how "
        "many and why.",
    ),
    Reason.SAMPLING_UNSUPPORTED: Message(
        "TG1405",
        Level.ERROR,
        "The Triton image runs ONNX models with its own backend, which logs no samples.",
        "Remove spec.logging, or use a Triton image without the onnxruntime backend.",
    ),
}
