"""Messages about versions of a model: fetch, load and serve."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.MODEL_LOADED: CatalogueMessage(
        "TG1301",
        MessageLevel.INFO,
        "Every ready replica has loaded the target version.",
        NO_ACTION,
    ),
    Reason.LOADING: CatalogueMessage(
        "TG1302",
        MessageLevel.INFO,
        "The first version is being fetched or loaded.",
        "Wait.",
    ),
    Reason.SWAPPING_VERSION: CatalogueMessage(
        "TG1303",
        MessageLevel.INFO,
        "The target version is being loaded beside the one that serves.",
        "Wait; traffic is not affected.",
    ),
    Reason.AGENT_UNREACHABLE: CatalogueMessage(
        "TG1304",
        MessageLevel.WARNING,
        "The agent in a pod did not answer, so the state of the pod is unknown.",
        "Wait for the next attempt; if it stays, check network policies for port 8443 and the agent's logs.",
    ),
    Reason.ARTEFACT_NOT_FOUND: CatalogueMessage(
        "TG1305",
        MessageLevel.ERROR,
        "There is no model under <uri>/<version>.",
        "Publish the version, or correct model.uri or model.version.",
    ),
    Reason.CHECKSUM_MISMATCH: CatalogueMessage(
        "TG1306",
        MessageLevel.ERROR,
        "The artefact's SHA-256 is not the one in the spec.",
        "Correct the sha256 if the artefact is right; otherwise find out who replaced it.",
    ),
    Reason.ARTEFACT_TOO_LARGE: CatalogueMessage(
        "TG1307",
        MessageLevel.ERROR,
        "The artefact is larger than the operator allows.",
        "Make it smaller, or ask your Tidegate administrator to raise the limit.",
    ),
    Reason.ARTEFACT_INVALID: CatalogueMessage(
        "TG1308",
        MessageLevel.ERROR,
        "The artefact is not a model of its format: truncated, or with parts outside its folder.",
        "Publish it again; the message says what is wrong.",
    ),
    Reason.URI_NOT_ALLOWED: CatalogueMessage(
        "TG1309",
        MessageLevel.ERROR,
        "The operator's settings do not allow this URI: its host is not listed, or file: is off.",
        "Use a listed host, or ask your Tidegate administrator to allow this one.",
    ),
    Reason.FORMAT_NOT_ALLOWED: CatalogueMessage(
        "TG1310",
        MessageLevel.ERROR,
        "Models of format Python and TorchExport run their own code, and the operator's settings do not "
        "allow it.",
        "Export to ONNX, or ask your Tidegate administrator to set models.allowPython.",
    ),
    Reason.BACKEND_MISSING: CatalogueMessage(
        "TG1311",
        MessageLevel.ERROR,
        "The Triton in the pods reports that it has no backend for the model's format.",
        "Export the model to ONNX, or ask your Tidegate administrator for a Triton image with that backend "
        "(images.triton).",
    ),
    Reason.LOAD_FAILED: CatalogueMessage(
        "TG1312",
        MessageLevel.ERROR,
        "Triton failed to load the model.",
        "Read Triton's error in status.failure.message.",
    ),
    Reason.LOAD_TIMED_OUT: CatalogueMessage(
        "TG1313",
        MessageLevel.ERROR,
        "A replica did not finish loading the version in time, or its agent stopped answering; the others rolled "
        "back.",
        "Read the log of container triton in the pod that the message names; if its node is lost, delete the "
        "pod. Tidegate retries with backoff.",
    ),
    Reason.SERVER_ENDED: CatalogueMessage(
        "TG1314",
        MessageLevel.ERROR,
        "Triton exited twice while it loaded the version, and not at its memory limit: a crash in the model.",
        "Read kubectl logs --previous of container triton; publish a corrected version.",
    ),
    Reason.OUT_OF_MEMORY: CatalogueMessage(
        "TG1315",
        MessageLevel.ERROR,
        "A version does not fit into the memory of a replica, together with those that it keeps; or a container, or "
        "the process that runs a version, was killed at the limit while it served.",
        "Raise spec.resources.memory, keep fewer versions with spec.rollout.keepVersions, publish a smaller "
        "one, or send smaller requests.",
    ),
    Reason.WARMUP_FAILED: CatalogueMessage(
        "TG1316",
        MessageLevel.ERROR,
        "The version was loaded, and failed a warm-up request.",
        "Read the model's error in status.failure.message; publish a corrected version, or set "
        "spec.rollout.warmup.requests to 0 if the model rightly refuses zeros.",
    ),
    Reason.FETCH_FAILED: CatalogueMessage(
        "TG1317",
        MessageLevel.ERROR,
        "The artefact could not be fetched: the server did not answer, or rejected the request.",
        "Check that the server is up and that the pod has credentials for it.",
    ),
}
