"""Messages about an Inference's sample log."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.SAMPLES_LOGGED: CatalogueMessage(
        "TG1401",
        MessageLevel.INFO,
        "Every replica that serves logs its share of the requests.",
        NO_ACTION,
    ),
    Reason.SINK_UNREACHABLE: CatalogueMessage(
        "TG1402",
        MessageLevel.ERROR,
        "The sink of the sample log does not answer or cannot be written. Requests are not affected; samples "
        "wait in a bounded buffer and are then dropped and counted.",
        "Bring the sink back, or correct spec.logging.sink; Tidegate keeps retrying.",
    ),
    Reason.SINK_REFUSED: CatalogueMessage(
        "TG1403",
        MessageLevel.ERROR,
        "The sink of the sample log rejects the samples: credentials, a permission, a stream that does not "
        "exist, or an address that is not allowed. Requests are not affected.",
        "Do what the message says, or correct spec.logging.sink and its Secret; Tidegate keeps retrying.",
    ),
    Reason.SAMPLES_DROPPED: CatalogueMessage(
        "TG1404",
        MessageLevel.WARNING,
        "Samples were dropped within the last minute, although the sink works: it is slower than the samples "
        "arrive, or a record is too large.",
        "Lower spec.logging.sample or make the sink faster; tidegate_agent_samples_dropped_total shows how "
        "many and why.",
    ),
    Reason.SAMPLING_UNSUPPORTED: CatalogueMessage(
        "TG1405",
        MessageLevel.ERROR,
        "The Triton image runs ONNX models with its own backend, which logs no samples.",
        "Remove spec.logging, or use a Triton image without the onnxruntime backend.",
    ),
}
