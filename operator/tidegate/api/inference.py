"""The kind Inference: one model, served by a number of like replicas."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.batch import Batch, BatchProgress
from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import (
    MAX_REPLICAS,
    DecimalText,
    DurationText,
    ObjectName,
    Resources,
    Sha256,
    Uri,
    between,
)
from tidegate.api.meta import NOT_OBSERVED, ApiModel, ObservedGeneration, Resource, StatusModel
from tidegate.api.nearline import Nearline
from tidegate.api.sample_log import Logging
from tidegate.api.schema import ListAtomic, ListMap, Rule, Rules, lacks, matches

VERSION_PATTERN: Final = r"^[1-9][0-9]{0,8}$"


class ModelFormat(StrEnum):
    """How the artefact is written."""

    ONNX = "ONNX"
    TORCH_EXPORT = "TorchExport"
    TENSORRT = "TensorRT"
    PYTHON = "Python"


class Tier(StrEnum):
    """How soon an answer is needed."""

    REALTIME = "realtime"
    NEARLINE = "nearline"
    OFFLINE = "offline"


class BatchingMode(StrEnum):
    """Whether Triton joins requests of several clients into one execution."""

    DISABLED = "Disabled"
    FIXED = "Fixed"


ServedName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(
        matches(
            r"[A-Za-z0-9][A-Za-z0-9_-]*([.][A-Za-z0-9_-]+)*",
            "must be letters, digits, dashes, underscores and single dots, beginning with a letter or digit",
        )
    ),
]


Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(
        matches(
            r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
            "must be letters, digits, dashes, underscores and dots, not beginning with a dash or dot",
        )
    ),
]


def _names_its_own_version(uri: str) -> bool:
    return uri.startswith(("oci://", "hf://"))


class ModelSpec(ApiModel):
    """Which artefact to serve. Changing the version alone swaps it in place, without a new pod."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.revision) || self.uri.startsWith('oci://') || self.uri.startsWith('hf://')",
            message="revision is only for oci:// and hf://: elsewhere the version is a sub-folder; remove revision",
            check=lambda model: model.revision is None or _names_its_own_version(model.uri),
            field="revision",
        ),
    )

    name: Annotated[
        ServedName | None,
        Field(
            description="The name that clients ask for; it cannot change. Absent: metadata.name. "
            "All targets of one ModelAccess serve the same name."
        ),
    ] = None
    uri: Annotated[
        Uri,
        Field(
            description="The model's folder, which holds <version>/model.onnx or the file of another format: "
            "s3://<bucket>/<prefix>, gs://<bucket>/<prefix>, https://<host>/<path> (hosts that the operator lists), "
            "pvc://<claim>/<path>, or file:///<path> (where the operator allows it, as the local cluster does). "
            "Or a place whose tag or revision is the version, without a sub-folder: oci://<registry>/<repository> "
            "or hf://<organisation>/<repository>[/<folder>] (registries and hubs that the operator lists)."
        ),
    ]
    version: Annotated[
        str,
        Field(
            pattern=VERSION_PATTERN,
            max_length=9,
            description="The version to serve: the name of a sub-folder of uri (for oci:// the tag, for hf:// the "
            'revision, unless revision says otherwise), a whole number in quotes, like "3".',
        ),
    ]
    revision: Annotated[
        Revision | None,
        Field(
            description="Tag of an oci:// repository, or branch, tag or commit of an hf:// one, that holds this version "
            "where it is not called like it. Change it together with version. Absent: the version."
        ),
    ] = None
    sha256: Annotated[
        Sha256 | None,
        Field(
            description="SHA-256 of the version's one file, in lower-case hex; of several files, that of the output of "
            "sha256sum over their sorted relative paths; for oci:// the digest of the manifest or index. "
            "Absent: not checked."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with what uri needs to be read: AWS_… or GOOGLE_… keys, HF_TOKEN, "
            ".dockerconfigjson, or username and password. Mounted in the model's pods and read by nothing else. "
            "Absent: the Secret tidegate-storage, if there is one."
        ),
    ] = None
    format: Annotated[
        ModelFormat,
        Field(
            description="ONNX (model.onnx); TensorRT (model.plan) or TorchExport (model.pt2, compiled ahead of time), "
            "where the server has the backend for it; or Python (model.py) for Triton's Python backend. TorchExport and "
            "Python run code of the artefact's own and therefore need the operator's opt-in."
        ),
    ] = ModelFormat.ONNX


class Batching(ApiModel):
    """How Triton joins requests into batches."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxQueueDelay) || self.mode == 'Fixed'",
            message="maxQueueDelay is only for mode Fixed: set mode: Fixed or remove maxQueueDelay",
            check=lambda batching: batching.max_queue_delay is None or batching.mode is BatchingMode.FIXED,
            field="maxQueueDelay",
        ),
    )

    mode: Annotated[
        BatchingMode,
        Field(
            description="Disabled runs each request alone; Fixed joins those that arrive within maxQueueDelay."
        ),
    ] = BatchingMode.DISABLED
    max_batch_size: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=4096,
            description="Largest number of rows in one execution, and in one request.",
        ),
    ] = 128
    max_queue_delay: Annotated[
        Annotated[DurationText, between("1us", "1s")] | None,
        Field(
            description="Longest that a request waits for others to join its batch, as a duration from 1us to 1s. "
            "Only with mode Fixed. Absent: requests join only while the model is busy."
        ),
    ] = None


class RolloutMode(StrEnum):
    """In which order new pods take the place of old ones."""

    SURGE = "Surge"
    IN_PLACE = "InPlace"


class Warmup(ApiModel):
    """Executions that a version must answer before it takes traffic."""

    requests: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=1_000,
            description="Number of executions of zeros before a version serves, in turn of one row and of maxBatchSize "
            "rows; free dimensions get length 1. A version that answers one with an error does not serve "
            "(WarmupFailed). Only with format ONNX; a server with an ONNX backend of its own runs one row.",
        ),
    ] = 0


class Rollout(ApiModel):
    """How replicas come to a new version and keep old ones, and how new pods take the place of old ones."""

    keep_versions: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=16,
            description="Number of versions that a replica keeps in memory and on disk, the serving one among them; "
            "status.versions.loaded shows those in memory. 1 keeps the serving one alone. While a new version is "
            "loaded there is one more.",
        ),
    ] = 2
    warmup: Annotated[Warmup, Field(description=Warmup.__doc__)] = Warmup()
    mode: Annotated[
        RolloutMode,
        Field(
            description="Surge starts a new pod, waits until its model answers, then drains an old one: "
            "it needs room for one pod more. InPlace drains an old pod first and starts its successor in its place: "
            "it needs no spare room, but runs with one pod less meanwhile, and with none where replicas is 1."
        ),
    ] = RolloutMode.SURGE
    progress_deadline: Annotated[
        Annotated[DurationText, between("10s", "24h")],
        Field(
            description="Longest time without any progress of a rollout, from 10s to 24h. After it the pods go back to "
            "the last template that was ready. More than a new pod needs to fetch and load its model."
        ),
    ] = "10m"


class Placement(ApiModel):
    """On which slices of which ComputePool the pods run."""

    pool: Annotated[ObjectName, Field(description="Name of the ComputePool.")]
    slices: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_024,
            description="Number of slices that each replica has, all on one node.",
        ),
    ] = 1


class Slo(ApiModel):
    """What answers must be like for the users to be content."""

    latency_p99: Annotated[
        Annotated[DurationText, between("1ms", "1h")],
        Field(
            description="Time within which 99 of 100 requests are answered, as a duration from 1ms to 1h. tidegate calibrate "
            "measures what a replica serves within it."
        ),
    ]


class Capacity(ApiModel):
    """What a replica can do, as it was measured."""

    requests_per_second: Annotated[
        DecimalText,
        Rules(lacks("^[0.]*$", "must be more than 0: leave capacity out where nothing was measured")),
        Field(
            description="Requests per second that one replica answers within slo.latencyP99, as a decimal in quotes; "
            "tidegate calibrate measures it. It is about one model on replicas of one size: measure it again when either "
            "changes."
        ),
    ]


class Scaling(ApiModel):
    """Between how many replicas the allocator of the ComputePool may choose. Only with placement, and instead of replicas."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be above maxReplicas: lower minReplicas, or raise maxReplicas",
            check=lambda scaling: scaling.min_replicas <= scaling.max_replicas,
            field="minReplicas",
        ),
    )

    min_replicas: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_REPLICAS,
            description=f"Fewest pods, 0 to {MAX_REPLICAS}; 0 only for tier nearline and offline. It has these before "
            "anything is decided, unless it runs with more.",
        ),
    ]
    max_replicas: Annotated[
        int, Field(strict=True, ge=1, le=MAX_REPLICAS, description=f"Most pods, 1 to {MAX_REPLICAS}.")
    ]


class Value(ApiModel):
    """What its work is worth, against that of other Inferences of the same ComputePool."""

    per_request: Annotated[
        DecimalText,
        Rules(lacks("^[0.]*$", "must be more than 0: what is worth nothing needs no replicas")),
        Field(
            description="Worth of one answered request, relative to other Inferences: a decimal in quotes. Of tier offline "
            "that of a slice at work for a second."
        ),
    ] = "1"


class InferenceSpec(ApiModel):
    """What the user asks for."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.placement) || !has(self.resources)",
            message="resources is only for Inferences without placement, where the pool's slices say what a replica has: "
            "remove resources and set placement.slices, or remove placement",
            check=lambda spec: spec.placement is None or spec.resources is None,
            field="resources",
        ),
        Rule(
            cel="self.rollout.warmup.requests == 0 || self.model.format == 'ONNX'",
            message="rollout.warmup.requests is only for format ONNX: remove it, and warm code up in its own initialize",
            check=lambda spec: spec.rollout.warmup.requests == 0 or spec.model.format is ModelFormat.ONNX,
            field="rollout",
        ),
        Rule(
            cel="!has(self.logging) || self.model.format == 'ONNX'",
            message="logging is only for format ONNX, which our own runner serves: remove it, and log in the model's "
            "own code",
            check=lambda spec: spec.logging is None or spec.model.format is ModelFormat.ONNX,
            field="logging",
        ),
        Rule(
            cel="!has(self.nearline) || self.tier == 'nearline'",
            message="nearline is only for tier nearline: set tier: nearline, or remove nearline",
            check=lambda spec: spec.nearline is None or spec.tier is Tier.NEARLINE,
            field="nearline",
        ),
        Rule(
            cel="!has(self.batch) || !has(self.logging)",
            message="logging is for requests: remove it, since the results of a batch hold every answer",
            check=lambda spec: spec.batch is None or spec.logging is None,
            field="logging",
        ),
        Rule(
            cel="!has(self.batch) || self.tier == 'offline'",
            message="batch is only for tier offline: set tier: offline, or remove batch",
            check=lambda spec: spec.batch is None or spec.tier is Tier.OFFLINE,
            field="batch",
        ),
        Rule(
            cel="!has(self.batch) || !has(self.batch.queueName) || !has(self.placement)",
            message="batch.queueName is only for Inferences without placement, since a ComputePool admits its pods itself: "
            "remove placement, or remove batch.queueName",
            check=lambda spec: spec.batch is None or spec.batch.queue_name is None or spec.placement is None,
            field="batch",
        ),
        Rule(
            cel="self.replicas > 0 || self.tier != 'realtime'",
            message="replicas: 0 is only for tier nearline and offline, since nothing would answer a realtime request: "
            "set replicas to 1 or more, change the tier, or delete the Inference",
            check=lambda spec: spec.replicas > 0 or spec.tier is not Tier.REALTIME,
            field="replicas",
        ),
        Rule(
            cel="!has(self.scaling) || self.replicas == 1",
            message="replicas is only for Inferences without scaling, whose allocator decides it: remove replicas, or "
            "remove scaling",
            check=lambda spec: spec.scaling is None or spec.replicas == 1,
            field="replicas",
        ),
        Rule(
            cel="!has(self.scaling) || has(self.placement)",
            message="scaling is only for Inferences with placement, since a ComputePool's allocator decides it: set "
            "placement.pool, or set replicas",
            check=lambda spec: spec.scaling is None or spec.placement is not None,
            field="scaling",
        ),
        Rule(
            cel="!has(self.scaling) || self.scaling.minReplicas > 0 || self.tier != 'realtime'",
            message="scaling.minReplicas: 0 is only for tier nearline and offline, since nothing would answer a realtime "
            "request: set scaling.minReplicas to 1 or more, or change the tier",
            check=lambda spec: (
                spec.scaling is None or spec.scaling.min_replicas > 0 or spec.tier is not Tier.REALTIME
            ),
            field="scaling",
        ),
    )

    model: Annotated[ModelSpec, Field(description=ModelSpec.__doc__)]
    tier: Annotated[
        Tier,
        Field(
            description="realtime answers a waiting person, nearline within seconds, offline by a deadline. "
            "Sets the priority class of the pods and their label tidegate.io/tier."
        ),
    ] = Tier.REALTIME
    replicas: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_REPLICAS,
            description=f"Number of pods, 0 to {MAX_REPLICAS}; 0 only for tier nearline and offline. "
            "kubectl scale, an HPA and KEDA set it through /scale. Not with scaling.",
        ),
    ] = 1
    scaling: Annotated[Scaling | None, Field(description=Scaling.__doc__)] = None
    value: Annotated[Value, Field(description=Value.__doc__)] = Value()
    resources: Annotated[
        Resources | None,
        Field(
            description="CPU and memory of one replica. Only without placement. Absent there: cpu 1, memory 2Gi."
        ),
    ] = None
    placement: Annotated[
        Placement | None,
        Field(
            description="Runs the pods on slices of a ComputePool: on its nodes, each with the CPU and memory of so many "
            "slices. Absent: on any node, with spec.resources."
        ),
    ] = None
    service_account_name: Annotated[
        ObjectName | None,
        Field(
            description="ServiceAccount of the same namespace under which the pods run, for a cloud's workload identity; "
            "its token is not mounted by Tidegate. Absent: the namespace's default one."
        ),
    ] = None
    batching: Annotated[Batching, Field(description=Batching.__doc__)] = Batching()
    rollout: Annotated[Rollout, Field(description=Rollout.__doc__)] = Rollout()
    logging: Annotated[Logging | None, Field(description=Logging.__doc__)] = None
    slo: Annotated[Slo | None, Field(description=f"{Slo.__doc__} Absent: nothing is promised.")] = None
    capacity: Annotated[Capacity | None, Field(description=f"{Capacity.__doc__} Absent: unknown.")] = None
    nearline: Annotated[Nearline | None, Field(description=Nearline.__doc__)] = None
    batch: Annotated[Batch | None, Field(description=Batch.__doc__)] = None

    @property
    def own_resources(self) -> Resources:
        """CPU and memory of a replica that is not placed in a pool."""
        return self.resources or Resources()


class Tensor(StatusModel):
    """One input or output of a model, as its artefact declares it."""

    name: Annotated[str, Field(max_length=256, description="The tensor's name.")]
    dtype: Annotated[
        str, Field(max_length=16, description="Triton's name of its type: FP32, INT64, BYTES, …")
    ]
    shape: Annotated[
        tuple[int, ...],
        Field(max_length=16, description="Its dimensions without the batch; -1 is a length that varies."),
        ListAtomic(),
    ] = ()


class VersionMemory(StatusModel):
    """What one version takes."""

    version: Annotated[str, Field(max_length=9, description="The version.")]
    bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Private memory of its process in bytes, once it was loaded and warmed up and before it "
            "answered anybody: the most of any replica, rounded up by at most an eighth. What requests take comes on "
            "top.",
        ),
    ]


class Versions(StatusModel):
    """Which versions the replicas really have."""

    serving: Annotated[
        str | None, Field(max_length=9, description="The version that answers on every ready replica.")
    ] = None
    loaded: Annotated[
        tuple[Annotated[str, Field(max_length=9)], ...],
        Field(
            max_length=64,
            description="Versions in memory on every replica, ascending; the old one stays warm for a rollback.",
        ),
        ListAtomic(),
    ] = ()
    memory: Annotated[
        tuple[VersionMemory, ...],
        Field(
            max_length=64,
            description="What versions take in memory, where our own runner serves them and has measured it.",
        ),
        ListMap("version"),
    ] = ()
    target: Annotated[str | None, Field(max_length=9, description="The version that the spec asks for.")] = (
        None
    )


class ServedModel(StatusModel):
    """The model as read from its artefact."""

    name: Annotated[str | None, Field(max_length=128, description="The name that clients ask for.")] = None
    inputs: Annotated[
        tuple[Tensor, ...],
        Field(max_length=1024, description="What a request must carry."),
        ListAtomic(),
    ] = ()
    outputs: Annotated[
        tuple[Tensor, ...],
        Field(max_length=1024, description="What an answer carries."),
        ListAtomic(),
    ] = ()


class Failure(StatusModel):
    """Why a version does not serve. It goes away when the target version serves."""

    version: Annotated[str, Field(max_length=9, description="The version that failed.")]
    reason: Annotated[str, Field(max_length=64, description="One word for machines, such as LoadFailed.")]
    message: Annotated[str, Field(max_length=32768, description="Triton's or the agent's own words.")] = ""
    time: Annotated[datetime | None, Field(description="When it was last seen to happen.")] = None
    attempts: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="How often in a row it happened; a failure that may pass is tried again after 30s, doubled each "
            "time, at most 15m.",
        ),
    ] = 1


class SwapProgress(StatusModel):
    """How far a version change is; absent while none goes on."""

    version: Annotated[str, Field(max_length=9, description="The version that replicas change to.")]
    replicas: Annotated[int, Field(ge=0, description="Number of replicas that serve it.")] = 0
    fetching: Annotated[int, Field(ge=0, description="Number of replicas that fetch it.")] = 0
    since: Annotated[
        datetime,
        Field(description="Since when it is no further; after 11m the change is undone (LoadTimedOut)."),
    ]


class AllocatedReplicas(StatusModel):
    """How many pods the allocator of its ComputePool has decided on; absent without spec.scaling and before it has."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.epoch >= oldSelf.epoch",
            message="this write comes from a controller that is no longer the leader",
            check=lambda _: True,  # only the API server sees the object as it was
            field="epoch",
        ),
    )

    replicas: Annotated[int, Field(ge=0, description="Number of pods that are to get requests.")] = 0
    spares: Annotated[
        int,
        Field(
            ge=0,
            description="Number of pods that it is to have beside them, loaded and without requests: warm spares.",
        ),
    ] = 0
    decision: Annotated[
        str, Field(max_length=253, description="Name of the AllocationDecision that says why.")
    ] = ""
    epoch: Annotated[int, Field(ge=0, description="Term of leadership in which it was written.")] = 0


class InferenceStatus(StatusModel):
    """What the replicas themselves reported; never what was merely ordered."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of pods whose model answers.")] = 0
    spare_replicas: Annotated[
        int | None,
        Field(
            ge=0,
            description="Number of those whose model answers that get no requests: warm spares. Absent where it is to have "
            "none.",
        ),
    ] = None
    selector: Annotated[str, Field(max_length=512, description="Label selector of the pods, for /scale.")] = (
        ""
    )
    versions: Annotated[Versions, Field(description=Versions.__doc__)] = Versions()
    model: Annotated[ServedModel | None, Field(description=ServedModel.__doc__)] = None
    failure: Annotated[Failure | None, Field(description=Failure.__doc__)] = None
    swap: Annotated[SwapProgress | None, Field(description=SwapProgress.__doc__)] = None
    allocation: Annotated[AllocatedReplicas | None, Field(description=AllocatedReplicas.__doc__)] = None
    batch: Annotated[BatchProgress | None, Field(description=BatchProgress.__doc__)] = None
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled and ModelLoaded; Placed where spec.placement is set, SamplesLogged "
            "where spec.logging is, Consuming where spec.nearline is, Complete where spec.batch is, OverrideActive where a "
            "ComputeOverride is. With spec.batch there is no ModelLoaded, and Ready is True while the run goes on.",
        ),
        ListMap("type"),
    ] = ()


def _served_name(variable: str) -> str:
    """The CEL of the name that clients ask for."""
    given = f"{variable}.spec.model.name"
    return f"(has({given}) ? {given} : {variable}.metadata.name)"


class Inference(Resource):
    """One model, served: Triton pods that load a version of it and swap to another in place."""

    KIND: ClassVar[str] = "Inference"
    PLURAL: ClassVar[str] = "inferences"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *Resource.RULES,
        Rule(
            cel=f"{_served_name('self')} == {_served_name('oldSelf')}",
            message="the served name cannot change, since clients ask for it: make a new Inference and move the "
            "ModelAccess's targets to it",
            check=lambda _: True,  # only the API server sees the object as it was
            field="spec",
        ),
        Rule(
            cel="has(self.spec.batch) == has(oldSelf.spec.batch)",
            message="batch cannot be added or removed, since a Job and a Deployment are different pods: make a new Inference",
            check=lambda _: True,  # only the API server sees the object as it was
            field="spec",
        ),
    )

    spec: Annotated[InferenceSpec, Field(description=InferenceSpec.__doc__)]
    status: Annotated[InferenceStatus, Field(description=InferenceStatus.__doc__)] = InferenceStatus()

    @property
    def served_name(self) -> str:
        """The name that clients ask for."""
        return self.spec.model.name or self.metadata.name

    @property
    def decided_replicas(self) -> int:
        """Pods that are to get requests: spec.replicas, or with spec.scaling what was decided within that range."""
        scaling, allocation = self.spec.scaling, self.status.allocation
        if scaling is None:
            return self.spec.replicas
        decided = allocation.replicas if allocation is not None else scaling.min_replicas
        return min(max(decided, scaling.min_replicas), scaling.max_replicas)

    @property
    def decided_spares(self) -> int:
        """Pods that it is to have beside those, loaded and without requests; with them it stays within its range."""
        scaling, allocation = self.spec.scaling, self.status.allocation
        if scaling is None or allocation is None or self.spec.tier is not Tier.REALTIME:
            return 0
        return min(allocation.spares, scaling.max_replicas - self.decided_replicas)
