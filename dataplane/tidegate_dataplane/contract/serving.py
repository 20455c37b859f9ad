"""The desired state of one serving pod, and the report of its agent."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.batch import BatchOrder
from tidegate_dataplane.contract.compile import CompileReport, EngineOrder
from tidegate_dataplane.contract.events import EventStreamReport
from tidegate_dataplane.contract.features import FeaturePlan
from tidegate_dataplane.contract.nearline import StreamOrder, StreamReport
from tidegate_dataplane.contract.pipeline import PipelinePlan
from tidegate_dataplane.contract.tables import TableReport
from tidegate_dataplane.contract.tensors import TensorSpec
from tidegate_dataplane.runner_interface import JoinLimit

GIBIBYTE = 1024**3
LOAD_TIMEOUT_S = 600.0
"""The limit for loading one version; callers of the agent wait a little longer."""

# Both become folder names: the patterns also keep a name from leaving the model repository.
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
Version = Annotated[int, Field(ge=1, le=999_999_999)]


class OwnerKind(StrEnum):
    """The kind of the object that owns the pod."""

    INFERENCE = "Inference"
    FEATURE_COMPUTE = "FeatureCompute"
    MODEL_ACCESS = "ModelAccess"


class ModelFormat(StrEnum):
    """The format of the artefact in its version folder."""

    ONNX = "ONNX"
    TORCH_EXPORT = "TorchExport"
    TENSORRT = "TensorRT"
    PYTHON = "Python"
    FEATURES = "Features"
    PIPELINE = "Pipeline"


class BatchingMode(StrEnum):
    """Whether the server joins concurrent requests into one batch."""

    OFF = "Off"
    FIXED = "Fixed"
    ADAPTIVE = "Adaptive"


class AgentPhase(StrEnum):
    """The agent's progress towards the desired version."""

    STARTING = "Starting"
    FETCHING = "Fetching"
    LOADING = "Loading"
    READY = "Ready"
    FAILED = "Failed"


class FailureReason(StrEnum):
    """Why a version does not serve."""

    ARTEFACT_NOT_FOUND = "ArtefactNotFound"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    ARTEFACT_TOO_LARGE = "ArtefactTooLarge"
    URI_NOT_ALLOWED = "UriNotAllowed"
    ARTEFACT_INVALID = "ArtefactInvalid"
    FORMAT_NOT_ALLOWED = "FormatNotAllowed"
    BACKEND_MISSING = "BackendMissing"
    LOAD_FAILED = "LoadFailed"
    LOAD_TIMED_OUT = "LoadTimedOut"
    SERVER_ENDED = "ServerEnded"
    OUT_OF_MEMORY = "OutOfMemory"
    WARMUP_FAILED = "WarmupFailed"
    FETCH_FAILED = "FetchFailed"


class SampleProblem(StrEnum):
    """Why requests that should be in the sample log are not."""

    SINK_UNREACHABLE = "SinkUnreachable"
    SINK_REFUSED = "SinkRefused"
    SAMPLES_DROPPED = "SamplesDropped"
    SAMPLING_UNSUPPORTED = "SamplingUnsupported"


class SampleOrder(ContractModel):
    """The share of requests to log, and the sink.

    The scheme of `url` selects the sink: nats: or tls: with a `subject`, else a folder for files.
    `secret` names the Secret that is mounted for it; if empty, files use the storage Secret, and NATS none.
    """

    share: float = Field(gt=0, le=1)
    url: str
    subject: str = ""
    secret: str = ""


class DesiredState(ContractModel):
    """The whole order for one pod; the agent works towards it until the next one arrives.

    `epoch` is the leader's term: an agent refuses an order from an older term than the newest it has seen.
    `uri` has the version folders; it is empty for a FeatureCompute, whose tables are in `plan`, and for a pipeline.
    """

    owner: str = Field(description="namespace/name of the owning object")
    kind: OwnerKind
    epoch: int = Field(ge=0)
    generation: int = Field(ge=0)
    model: ModelName = Field(description="the name clients use")
    version: Version
    uri: str = ""
    revision: str = Field(
        default="",
        description="branch, tag or commit (hf:), or tag (oci:), that holds the version; empty: the version",
    )
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    format: ModelFormat
    max_batch_size: int = Field(default=128, ge=1)
    batching: BatchingMode = BatchingMode.OFF
    max_queue_delay_us: int = Field(default=0, ge=0)
    instances: int = Field(
        default=1,
        ge=1,
        exclude_if=lambda count: count == 1,
        description="processes of the version in the server",
    )
    shared_inputs: tuple[str, ...] = Field(
        default=(),
        exclude_if=lambda names: not names,
        description="inputs that may have one row for all rows of a request, such as the features of the user",
    )
    keep_versions: int = Field(
        default=2, ge=1, description="versions on disk and in memory, the serving one too"
    )
    warmup_requests: int = Field(default=0, ge=0, description="executions of zeros before a version serves")
    graph_passes: bool = Field(
        default=False,
        exclude_if=lambda ordered: not ordered,
        description="serve the version with the graph that passes make of it, as soon as it is proved and faster",
    )
    engine: EngineOrder | None = Field(
        default=None,
        exclude_if=lambda engine: engine is None,
        description="compile the shapes that requests often have for an engine, after the graph passes",
    )
    compile_cache: str = Field(
        default="",
        exclude_if=lambda uri: not uri,
        description="folder of an object store through which pods share compiled graphs and engines; empty: none",
    )
    max_artefact_bytes: int = Field(default=20 * GIBIBYTE, ge=1)
    max_table_bytes: int | None = Field(
        default=None,
        ge=1,
        exclude_if=lambda limit: limit is None,
        description="bytes that all converted tables of a plan may have together; max_artefact_bytes if absent",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="hosts that https:, oci: and hf: URIs may name or lead to"
    )
    allow_python: bool = False
    plan: FeaturePlan | None = None
    pipeline: PipelinePlan | None = Field(default=None, exclude_if=lambda pipeline: pipeline is None)
    samples: SampleOrder | None = Field(default=None, exclude_if=lambda samples: samples is None)
    stream: StreamOrder | None = Field(default=None, exclude_if=lambda stream: stream is None)
    batch: BatchOrder | None = Field(default=None, exclude_if=lambda batch: batch is None)

    @property
    def features_revision(self) -> str:
        """Return the revision of the features of the stream's messages; empty without features."""
        features = self.stream.features if self.stream is not None else None
        return features.revision if features is not None else ""


class VersionFailure(ContractModel):
    """Why a version does not serve; the message is that of the component that refused it."""

    version: int
    reason: FailureReason
    message: str


class VersionMemory(ContractModel):
    """The private memory of one loaded version, in bytes."""

    version: int
    bytes: int = Field(ge=0)


class SampleReport(ContractModel):
    """Whether the sample log is written, or why not; the message is for the object's status."""

    problem: SampleProblem | None = None
    message: str = ""


class BatchingReport(ContractModel):
    """Which requests of the serving version share executions, while the order asks for mode Adaptive."""

    version: int
    limit: JoinLimit
    message: str = Field(default="", description="why not all of them do, and the way out")


class RunnerEnd(ContractModel):
    """A version's process that ended without an unload and was restarted."""

    version: int
    killed_for_memory: bool


class AgentReport(ContractModel):
    """The observed state of the pod, never the desired one.

    `generation` is that of the current DesiredState, and `features_revision` that of the features of its stream: empty without,
    None of an agent that does not know features. `bytes_done` and `bytes_total` are set while an artefact is
    fetched; the total is None if the source does not report it.
    """

    pod: str
    epoch: int
    generation: int
    phase: AgentPhase
    target: int | None = None
    serving: int | None = None
    loaded: tuple[int, ...] = ()
    memory: tuple[VersionMemory, ...] = Field(default=(), description="of loaded versions that were measured")
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    bytes_done: int | None = None
    bytes_total: int | None = None
    failure: VersionFailure | None = None
    samples: SampleReport | None = Field(default=None, exclude_if=lambda samples: samples is None)
    stream: StreamReport | None = Field(default=None, exclude_if=lambda stream: stream is None)
    features_revision: str | None = Field(default=None, exclude_if=lambda revision: revision is None)
    compile: CompileReport | None = Field(default=None, exclude_if=lambda compiled: compiled is None)
    batching: BatchingReport | None = Field(default=None, exclude_if=lambda batching: batching is None)
    events: tuple[EventStreamReport, ...] = Field(
        default=(), exclude_if=lambda reports: not reports, description="by stream of the plan"
    )
    tables: tuple[TableReport, ...] = Field(
        default=(), exclude_if=lambda reports: not reports, description="by refreshed table of the plan"
    )
    ended: RunnerEnd | None = Field(
        default=None, exclude_if=lambda ended: ended is None, description="a few seconds ago"
    )
