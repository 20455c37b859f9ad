"""The kind Inference: one model, served by a number of equal replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field

from tidegate.api.batch import BatchProgress, BatchSpec
from tidegate.api.compilation import CompiledGraph, CompileEngine, CompileSpec, GraphPasses
from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import (
    MAX_REPLICAS,
    DecimalText,
    DurationText,
    ObjectName,
    Resources,
    Sha256,
    Uri,
    duration_between,
)
from tidegate.api.meta import NOT_OBSERVED, ApiModel, CustomResource, ObservedGeneration, StatusModel
from tidegate.api.nearline import NearlineSpec
from tidegate.api.sample_log import LoggingSpec
from tidegate.api.schema import (
    ListAtomic,
    ListMap,
    ListSet,
    ValidationRule,
    ValidationRules,
    must_match,
    must_not_match,
)
from tidegate_dataplane.contract import REVISION_SCHEMES, find_scheme

MAX_INSTANCES: Final = 64
MAX_JOINT_CAPACITIES: Final = 8
"""The most numbers of replicas with a measured capacity."""
MAX_POOLS: Final = 8
"""The most ComputePools that one Inference names."""
VERSION_PATTERN: Final = r"^[1-9][0-9]{0,8}$"


class ArtefactFormat(StrEnum):
    """Format of a model artefact."""

    ONNX = "ONNX"
    TORCH_EXPORT = "TorchExport"
    TENSORRT = "TensorRT"
    PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class TierTraits:
    """Answers to all questions about a tier; only what belongs to one tier's own fields asks for the tier."""

    is_routed: bool
    """Whether ModelAccesses route to it; other tiers read their work themselves."""
    has_slo: bool
    """Whether an SLO promises its latency: a move keeps what it serves, and missed requests are counted."""
    has_warm_spares: bool
    preempts: bool
    """Whether its pending replicas take slices from other tiers."""
    scales_to_zero: bool
    counts_requests: bool
    """Whether demand, capacity and value are per request; else they are per second of a slice."""
    mps_client_priority: int
    """CUDA_MPS_CLIENT_PRIORITY of its pods; 0 runs before 1."""


class Tier(StrEnum):
    """How soon a response is needed."""

    _value_: str
    traits: TierTraits

    # The order is the rank: earlier tiers are placed and moved first.
    REALTIME = (
        "realtime",
        TierTraits(
            is_routed=True,
            has_slo=True,
            has_warm_spares=True,
            preempts=True,
            scales_to_zero=False,
            counts_requests=True,
            mps_client_priority=0,
        ),
    )
    NEARLINE = (
        "nearline",
        TierTraits(
            is_routed=False,
            has_slo=False,
            has_warm_spares=False,
            preempts=False,
            scales_to_zero=True,
            counts_requests=True,
            mps_client_priority=1,
        ),
    )
    OFFLINE = (
        "offline",
        TierTraits(
            is_routed=False,
            has_slo=False,
            has_warm_spares=False,
            preempts=False,
            scales_to_zero=True,
            counts_requests=False,
            mps_client_priority=1,
        ),
    )

    def __new__(cls, name: str, traits: TierTraits) -> Self:
        tier = str.__new__(cls, name)
        tier._value_, tier.traits = name, traits
        return tier


class DynamicBatchingMode(StrEnum):
    """Whether requests of several clients share an execution."""

    DISABLED = "Disabled"
    FIXED = "Fixed"
    ADAPTIVE = "Adaptive"


ServedName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(
        must_match(
            r"[A-Za-z0-9][A-Za-z0-9_-]*([.][A-Za-z0-9_-]+)*",
            "must be letters, digits, dashes, underscores and single dots, beginning with a letter or digit",
        )
    ),
]


Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(
        must_match(
            r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
            "must be letters, digits, dashes, underscores and dots, not beginning with a dash or dot",
        )
    ),
]


class ModelSpec(ApiModel):
    """The artefact to serve. A change of the version alone swaps it in place, without a new pod."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel=" || ".join(
                (
                    "!has(self.revision)",
                    *(f"self.uri.startsWith('{scheme}://')" for scheme in REVISION_SCHEMES),
                )
            ),
            message=f"revision is only for {' and '.join(f'{scheme}://' for scheme in REVISION_SCHEMES)}: "
            "elsewhere the version is a sub-folder; remove revision",
            check=lambda model: model.revision is None or find_scheme(model.uri) in REVISION_SCHEMES,
            field="revision",
        ),
    )

    name: Annotated[
        ServedName | None,
        Field(
            description="Model name in requests; it cannot change. Absent: metadata.name. "
            "All targets of one ModelAccess have the same name."
        ),
    ] = None
    uri: Annotated[
        Uri,
        Field(
            description="The model's folder, which holds <version>/model.onnx or the file of another format: "
            "s3://<bucket>/<prefix>, gs://<bucket>/<prefix>, https://<host>/<path> (hosts that the operator lists), "
            "pvc://<claim>/<path>, or file:///<path> (where the operator allows it). "
            "Or a repository whose tag or revision is the version, without a sub-folder: oci://<registry>/<repository> "
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
            description="Tag of an oci:// repository, or branch, tag or commit of an hf:// one, that contains this version, "
            "if its name differs. Change it together with version. Absent: the version."
        ),
    ] = None
    sha256: Annotated[
        Sha256 | None,
        Field(
            description="SHA-256 of the version's file, in lower-case hex; for several files, the SHA-256 of the output of "
            "sha256sum over their sorted relative paths; for oci:// the digest of the manifest or index. "
            "Absent: not checked."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with credentials for uri: AWS_… or GOOGLE_… keys, HF_TOKEN, "
            ".dockerconfigjson, or username and password. Mounted in the model's pods and read by nothing else. "
            "Absent: the Secret tidegate-storage, if there is one."
        ),
    ] = None
    format: Annotated[
        ArtefactFormat,
        Field(
            description="ONNX (model.onnx); TensorRT (model.plan) or TorchExport (model.pt2, compiled ahead of time), "
            "if the server has the backend; or Python (model.py) for Triton's Python backend. TorchExport and "
            "Python run code from the artefact and therefore need the operator's opt-in."
        ),
    ] = ArtefactFormat.ONNX
    shared_inputs: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(
            max_length=256,
            description="Inputs that are the same for all rows of a request, such as the features of the user. Clients may send "
            "one row of them, or as many as of the other inputs; with spec.compile what depends on them alone is computed "
            "once per request. Only for tier realtime, format ONNX "
            "and batching.mode Disabled, and on Tidegate's own ONNX runner.",
        ),
        ListSet(),
    ] = ()


class BatchingSpec(ApiModel):
    """How requests share executions of the model."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.maxQueueDelay) || self.mode == 'Fixed'",
            message="maxQueueDelay is only for mode Fixed: set mode: Fixed or remove maxQueueDelay",
            check=lambda batching: (
                batching.max_queue_delay is None or batching.mode is DynamicBatchingMode.FIXED
            ),
            field="maxQueueDelay",
        ),
    )

    mode: Annotated[
        DynamicBatchingMode,
        Field(
            description="Disabled runs each request alone. Adaptive joins the requests that arrive while the model is busy, of "
            "different shapes too, if the answers stay the same: it compares them with those of the requests alone, at first "
            "all, later samples; only on Tidegate's own ONNX runner. Fixed joins requests of the same shape that arrive within "
            "maxQueueDelay."
        ),
    ] = DynamicBatchingMode.DISABLED
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
        Annotated[DurationText, duration_between("1us", "1s")] | None,
        Field(
            description="Longest time that a request waits for others, as a duration from 1us to 1s. "
            "Only with mode Fixed. Absent: requests are batched only while the model is busy."
        ),
    ] = None


class RolloutMode(StrEnum):
    """Order in which new pods replace old ones."""

    SURGE = "Surge"
    IN_PLACE = "InPlace"


class Warmup(ApiModel):
    """Executions that must succeed before a version gets traffic."""

    requests: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=1_000,
            description="Number of executions of zeros before a version serves, alternating between one row and "
            "maxBatchSize rows; free dimensions get length 1. A version that fails one of them does not serve "
            "(WarmupFailed). Only with format ONNX; a server with its own ONNX backend runs one row.",
        ),
    ] = 0


class RolloutSpec(ApiModel):
    """How replicas change their version, and how new pods replace old ones."""

    keep_versions: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=16,
            description="Number of versions that a replica keeps in memory and on disk, including the serving one; "
            "status.versions.loaded lists those in memory. 1 keeps only the serving one. While a new version is "
            "loaded there is one more.",
        ),
    ] = 2
    warmup: Annotated[Warmup, Field(description=Warmup.__doc__)] = Warmup()
    mode: Annotated[
        RolloutMode,
        Field(
            description="Surge starts a new pod, waits until its model is ready, then drains an old one: "
            "it needs capacity for one more pod. InPlace drains and deletes an old pod before it creates the new one, and changes no running pod: "
            "it needs no spare capacity, but meanwhile runs with one pod less, and with none if replicas is 1."
        ),
    ] = RolloutMode.SURGE
    progress_deadline: Annotated[
        Annotated[DurationText, duration_between("10s", "24h")],
        Field(
            description="Longest time without progress of a rollout, from 10s to 24h. After it the rollout rolls back to "
            "the last template that was ready. Set it to more than a new pod needs to fetch and load its model."
        ),
    ] = "10m"


_Slices = Annotated[int, Field(strict=True, ge=1, le=1_024)]


class PlacementPool(ApiModel):
    """One of several ComputePools that the pods run on."""

    name: Annotated[ObjectName, Field(description="Name of the ComputePool.")]
    slices: Annotated[
        _Slices | None,
        Field(
            description="Number of slices of each replica in this pool, all on one node. Absent: placement.slices."
        ),
    ] = None
    relative_capacity: Annotated[
        Annotated[
            DecimalText,
            ValidationRules(
                must_not_match("^[0.]*$", "must be more than 0: leave a pool out that cannot serve the model")
            ),
        ]
        | None,
        Field(
            description="Requests per second that one replica in this pool answers, as a multiple of spec.capacity: a decimal in "
            "quotes. tidegate calibrate measures a replica of any pool. Gateways send each replica its share of the requests. "
            "Absent: slices divided by placement.slices."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class PoolShare:
    """A pool that an Inference names, with all defaults filled in."""

    name: str
    slices: int
    """Slices of each replica there."""
    relative_capacity: float = 1.0
    """Capacity of one replica there, as a multiple of spec.capacity."""


class Placement(ApiModel):
    """The ComputePools and the slices that the pods run on."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.pool) != has(self.pools)",
            message="set exactly one of pool and pools",
            check=lambda placement: (placement.pool is None) != (placement.pools is None),
        ),
    )

    pool: Annotated[
        ObjectName | None, Field(description="Name of the ComputePool. Absent: pools has them.")
    ] = None
    pools: Annotated[
        Annotated[
            tuple[PlacementPool, ...],
            Field(min_length=1, max_length=MAX_POOLS),
            ListMap("name"),
        ]
        | None,
        Field(
            description="ComputePools in order of preference: a replica for which the first has no room runs in the next. A replica "
            "stays in its pool as long as the pool is in the list, and fewer replicas end in the last pool first. With "
            "scaling, the allocator of each pool decides about the replicas there. Not with batch. Absent: pool has the only one."
        ),
    ] = None
    slices: Annotated[
        _Slices,
        Field(description="Number of slices of each replica, all on one node."),
    ] = 1

    @property
    def pool_shares(self) -> tuple[PoolShare, ...]:
        """Return the pools in order of preference."""
        if self.pools is None:
            return (PoolShare(self.pool or "", self.slices),)
        return tuple(self._fill_defaults(pool) for pool in self.pools)

    def _fill_defaults(self, pool: PlacementPool) -> PoolShare:
        slices = self.slices if pool.slices is None else pool.slices
        relative = slices / self.slices if pool.relative_capacity is None else float(pool.relative_capacity)
        return PoolShare(pool.name, slices, relative)

    def find_share(self, pool: str) -> PoolShare | None:
        """Return what is asked of one pool; None if it is not named."""
        return next((share for share in self.pool_shares if share.name == pool), None)

    @property
    def pool_names(self) -> str:
        """Return the names of the pools for people."""
        return ",".join(share.name for share in self.pool_shares)

    @property
    def first_pool(self) -> str:
        """Return the name of the most preferred pool."""
        return self.pool_shares[0].name


class Slo(ApiModel):
    """Service level objective of the responses."""

    latency_p99: Annotated[
        Annotated[DurationText, duration_between("1ms", "1h")],
        Field(
            description="Time within which 99 of 100 requests are answered, as a duration from 1ms to 1h. tidegate calibrate "
            "measures what a replica serves within it."
        ),
    ]


_MeasuredRate = Annotated[
    DecimalText,
    ValidationRules(
        must_not_match("^[0.]*$", "must be more than 0: leave capacity out where nothing was measured")
    ),
]


class JointCapacity(ApiModel):
    """Measured capacity of several replicas that answer at the same time."""

    replicas: Annotated[int, Field(strict=True, ge=2, le=MAX_REPLICAS, description="Their number.")]
    requests_per_second: Annotated[
        _MeasuredRate, Field(description="Requests per second of all together, as a decimal in quotes.")
    ]


class Capacity(ApiModel):
    """Measured capacity of one replica, and of several together."""

    requests_per_second: Annotated[
        _MeasuredRate,
        Field(
            description="Requests per second that one replica answers within slo.latencyP99, as a decimal in quotes; "
            "tidegate calibrate measures it. Measure it again when the model or the size of a replica changes."
        ),
    ]
    together: Annotated[
        tuple[JointCapacity, ...],
        Field(
            max_length=MAX_JOINT_CAPACITIES,
            description="What several replicas answer together, which share nodes and GPUs; tidegate calibrate --together "
            "measures it. Absent: n replicas answer n times as much as one; more than that never counts.",
        ),
        ListMap("replicas"),
    ] = ()


class NodeLossMode(StrEnum):
    """How many spare replicas real-time Inferences keep for the loss of a node."""

    PRICED = "Priced"
    STRICT = "Strict"
    SHARED = "Shared"


class Scaling(ApiModel):
    """Range of replicas for the ComputePool's allocator. Requires placement, and replaces replicas."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
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
            description=f"Fewest pods, 0 to {MAX_REPLICAS}; 0 only for tier nearline and offline. They run before "
            "the first decision, unless more are running.",
        ),
    ]
    max_replicas: Annotated[
        int, Field(strict=True, ge=1, le=MAX_REPLICAS, description=f"Most pods, 1 to {MAX_REPLICAS}.")
    ]
    node_loss: Annotated[
        NodeLossMode | None,
        Field(
            description="Strict holds the replicas that serve the demand when any node is lost, whatever they cost; Priced holds "
            "those that are worth more than their slices elsewhere; Shared loads the model on a spare that Inferences share. "
            "Only tier realtime. Absent: policy.nodeLoss.mode of the pool."
        ),
    ] = None


class InferenceValue(ApiModel):
    """Value of the work, in a unit that all Inferences and routes share."""

    per_request: Annotated[
        DecimalText,
        ValidationRules(
            must_not_match("^[0.]*$", "must be more than 0: what is worth nothing needs no replicas")
        ),
        Field(
            description="Value of one answered request, relative to other Inferences: a decimal in quotes. "
            "The route of a ModelAccess may have its own value. For tier offline, "
            "the value of one slice that works for one second."
        ),
    ] = "1"


class InferenceSpec(ApiModel):
    """The model, and how to serve it."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.placement) || !has(self.resources)",
            message="resources is only for Inferences without placement, where the pool's slices say what a replica has: "
            "remove resources and set placement.slices, or remove placement",
            check=lambda spec: spec.placement is None or spec.resources is None,
            field="resources",
        ),
        ValidationRule(
            cel="self.rollout.warmup.requests == 0 || self.model.format == 'ONNX'",
            message="rollout.warmup.requests is only for format ONNX: remove it, and warm code up in its own initialize",
            check=lambda spec: spec.rollout.warmup.requests == 0 or spec.model.format is ArtefactFormat.ONNX,
            field="rollout",
        ),
        ValidationRule(
            cel="!has(self.logging) || self.model.format == 'ONNX'",
            message="logging is only for format ONNX, which our own runner serves: remove it, and log in the model's "
            "own code",
            check=lambda spec: spec.logging is None or spec.model.format is ArtefactFormat.ONNX,
            field="logging",
        ),
        ValidationRule(
            cel="!has(self.model.sharedInputs) || self.model.sharedInputs.size() == 0 || "
            "(self.model.format == 'ONNX' && self.batching.mode == 'Disabled' && self.tier == 'realtime')",
            message="model.sharedInputs is only for format ONNX, batching.mode Disabled and tier realtime: a request of many rows is "
            "a batch of its own; remove sharedInputs, or set these",
            check=lambda spec: (
                not spec.model.shared_inputs
                or (
                    spec.model.format is ArtefactFormat.ONNX
                    and spec.batching.mode is DynamicBatchingMode.DISABLED
                    and spec.tier is Tier.REALTIME
                )
            ),
            field="model",
        ),
        ValidationRule(
            cel="self.instances == 1 || self.model.format == 'ONNX'",
            message="instances is only for format ONNX: remove it, and set instance_group in the config.pbtxt of the artefact",
            check=lambda spec: spec.instances == 1 or spec.model.format is ArtefactFormat.ONNX,
            field="instances",
        ),
        ValidationRule(
            cel="!has(self.compile) || self.model.format == 'ONNX'",
            message="compile is only for format ONNX, whose graph can be rewritten: remove it, or export the model to ONNX",
            check=lambda spec: spec.compile is None or spec.model.format is ArtefactFormat.ONNX,
            field="compile",
        ),
        ValidationRule(
            cel="!has(self.compile) || !has(self.batch)",
            message="compile is not for a batch, whose pods end with their shard: remove it, and publish the model that "
            "tidegate optimize --write makes",
            check=lambda spec: spec.compile is None or spec.batch is None,
            field="compile",
        ),
        ValidationRule(
            cel="!has(self.nearline) || self.tier == 'nearline'",
            message="nearline is only for tier nearline: set tier: nearline, or remove nearline",
            check=lambda spec: spec.nearline is None or spec.tier is Tier.NEARLINE,
            field="nearline",
        ),
        ValidationRule(
            cel="!has(self.batch) || !has(self.logging)",
            message="logging is for requests: remove it, since the results of a batch hold every answer",
            check=lambda spec: spec.batch is None or spec.logging is None,
            field="logging",
        ),
        ValidationRule(
            cel="!has(self.batch) || self.tier == 'offline'",
            message="batch is only for tier offline: set tier: offline, or remove batch",
            check=lambda spec: spec.batch is None or spec.tier is Tier.OFFLINE,
            field="batch",
        ),
        ValidationRule(
            cel="!has(self.batch) || !has(self.batch.queueName) || !has(self.placement)",
            message="batch.queueName is only for Inferences without placement, since a ComputePool admits its pods itself: "
            "remove placement, or remove batch.queueName",
            check=lambda spec: spec.batch is None or spec.batch.queue_name is None or spec.placement is None,
            field="batch",
        ),
        ValidationRule(
            cel="self.replicas > 0 || self.tier != 'realtime'",
            message="replicas: 0 is only for tier nearline and offline, since nothing would answer a real-time request: "
            "set replicas to 1 or more, change the tier, or delete the Inference",
            check=lambda spec: spec.replicas > 0 or spec.tier.traits.scales_to_zero,
            field="replicas",
        ),
        ValidationRule(
            cel="!has(self.scaling) || self.replicas == 1",
            message="replicas is only for Inferences without scaling, whose allocator decides it: remove replicas, or "
            "remove scaling",
            check=lambda spec: spec.scaling is None or spec.replicas == 1,
            field="replicas",
        ),
        ValidationRule(
            cel="!has(self.placement) || !has(self.placement.pools) || !has(self.batch)",
            message="placement.pools is not for a batch, whose Job has one template: set placement.pool",
            check=lambda spec: spec.placement is None or spec.placement.pools is None or spec.batch is None,
            field="placement",
        ),
        ValidationRule(
            cel="!has(self.scaling) || has(self.placement)",
            message="scaling is only for Inferences with placement, since a ComputePool's allocator decides it: set "
            "placement.pool, or set replicas",
            check=lambda spec: spec.scaling is None or spec.placement is not None,
            field="scaling",
        ),
        ValidationRule(
            cel="!has(self.scaling) || !has(self.scaling.nodeLoss) || self.tier == 'realtime'",
            message="scaling.nodeLoss is only for tier realtime, since other tiers hold nothing in reserve: remove nodeLoss",
            check=lambda spec: (
                spec.scaling is None or spec.scaling.node_loss is None or spec.tier is Tier.REALTIME
            ),
            field="scaling",
        ),
        ValidationRule(
            cel="!has(self.scaling) || self.scaling.minReplicas > 0 || self.tier != 'realtime'",
            message="scaling.minReplicas: 0 is only for tier nearline and offline, since nothing would answer a real-time "
            "request: set scaling.minReplicas to 1 or more, or change the tier",
            check=lambda spec: (
                spec.scaling is None or spec.scaling.min_replicas > 0 or spec.tier.traits.scales_to_zero
            ),
            field="scaling",
        ),
    )

    model: Annotated[ModelSpec, Field(description=ModelSpec.__doc__)]
    tier: Annotated[
        Tier,
        Field(
            description="realtime answers requests at once, nearline within seconds, offline by a deadline. "
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
    value: Annotated[InferenceValue, Field(description=InferenceValue.__doc__)] = InferenceValue()
    resources: Annotated[
        Resources | None,
        Field(
            description="CPU and memory of one replica. Only without placement; then absent: cpu 1, memory 2Gi."
        ),
    ] = None
    placement: Annotated[
        Placement | None,
        Field(
            description="Runs the pods on slices of a ComputePool: on its nodes, with the CPU and memory of the "
            "slices. Absent: on any node, with spec.resources."
        ),
    ] = None
    service_account_name: Annotated[
        ObjectName | None,
        Field(
            description="ServiceAccount of the same namespace for the pods, for a cloud's workload identity; "
            "Tidegate does not mount its token. Absent: the namespace's default ServiceAccount."
        ),
    ] = None
    instances: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_INSTANCES,
            description=f"Number of processes of the model in each replica, 1 to {MAX_INSTANCES}; each executes requests of its own, "
            "on Tidegate's runner with its share of the CPUs as threads. Each "
            "has the model's memory of its own. 1 leaves instance_group in the config.pbtxt of the serving version. Only with "
            "format ONNX.",
        ),
    ] = 1
    batching: Annotated[BatchingSpec, Field(description=BatchingSpec.__doc__)] = BatchingSpec()
    compile: Annotated[CompileSpec | None, Field(description=CompileSpec.__doc__)] = None
    rollout: Annotated[RolloutSpec, Field(description=RolloutSpec.__doc__)] = RolloutSpec()
    logging: Annotated[LoggingSpec | None, Field(description=LoggingSpec.__doc__)] = None
    slo: Annotated[Slo | None, Field(description=f"{Slo.__doc__} Absent: no objective.")] = None
    capacity: Annotated[Capacity | None, Field(description=f"{Capacity.__doc__} Absent: unknown.")] = None
    nearline: Annotated[NearlineSpec | None, Field(description=NearlineSpec.__doc__)] = None
    batch: Annotated[BatchSpec | None, Field(description=BatchSpec.__doc__)] = None

    @property
    def has_engine(self) -> bool:
        """Return whether shapes that come often are compiled."""
        return (
            self.has_graph_passes
            and self.compile is not None
            and self.compile.engine is not CompileEngine.ONNX_RUNTIME
        )

    @property
    def has_graph_passes(self) -> bool:
        """Return whether versions are compiled."""
        return self.compile is not None and self.compile.passes is GraphPasses.AUTO

    @property
    def own_resources(self) -> Resources:
        """Return CPU and memory of a replica without placement."""
        return self.resources or Resources()


class TensorMetadata(StatusModel):
    """An input or output of a model, as its artefact declares it."""

    name: Annotated[str, Field(max_length=256, description="Name of the tensor.")]
    dtype: Annotated[
        str, Field(max_length=16, description="Triton's name of the type: FP32, INT64, BYTES, …")
    ]
    shape: Annotated[
        tuple[int, ...],
        Field(max_length=16, description="Dimensions without the batch; -1 is a variable length."),
        ListAtomic(),
    ] = ()


class VersionMemoryStatus(StatusModel):
    """Memory of one version."""

    version: Annotated[str, Field(max_length=9, description="The version.")]
    bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Private memory of its processes in bytes, after load and warm-up and before the first "
            "request: the maximum over the replicas, rounded up by at most an eighth. Memory for requests is "
            "additional.",
        ),
    ]


class ModelVersions(StatusModel):
    """Versions that the replicas report."""

    serving: Annotated[
        str | None, Field(max_length=9, description="Version that serves on every ready replica.")
    ] = None
    loaded: Annotated[
        tuple[Annotated[str, Field(max_length=9)], ...],
        Field(
            max_length=64,
            description="Versions in memory on every replica, ascending; the old one stays loaded for a rollback.",
        ),
        ListAtomic(),
    ] = ()
    memory: Annotated[
        tuple[VersionMemoryStatus, ...],
        Field(
            max_length=64,
            description="Memory of each version that our own runner serves and has measured.",
        ),
        ListMap("version"),
    ] = ()
    target: Annotated[str | None, Field(max_length=9, description="Version in the spec.")] = None


class ServedModel(StatusModel):
    """The model's name and signature, as read from its artefact."""

    name: Annotated[str | None, Field(max_length=128, description="Model name in requests.")] = None
    inputs: Annotated[
        tuple[TensorMetadata, ...],
        Field(max_length=1024, description="Tensors of a request."),
        ListAtomic(),
    ] = ()
    outputs: Annotated[
        tuple[TensorMetadata, ...],
        Field(max_length=1024, description="Tensors of a response."),
        ListAtomic(),
    ] = ()


class FailureStatus(StatusModel):
    """Why a version does not serve. Removed when the target version serves."""

    version: Annotated[str, Field(max_length=9, description="The version that failed.")]
    reason: Annotated[
        str, Field(max_length=64, description="Reason in one CamelCase word, such as LoadFailed.")
    ]
    message: Annotated[str, Field(max_length=32768, description="Message of Triton or of the agent.")] = ""
    time: Annotated[datetime | None, Field(description="When the failure was last observed.")] = None
    attempts: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Consecutive failures; a retryable failure is retried after 30s, doubled each "
            "time, at most 15m.",
        ),
    ] = 1


class SwapProgress(StatusModel):
    """Progress of a version change; absent while there is none."""

    version: Annotated[str, Field(max_length=9, description="Version that replicas change to.")]
    replicas: Annotated[int, Field(ge=0, description="Number of replicas that serve it.")] = 0
    fetching: Annotated[int, Field(ge=0, description="Number of replicas that are fetching it.")] = 0
    since: Annotated[
        datetime,
        Field(
            description="Time of the last progress; after 11m without any, the change is rolled back (LoadTimedOut)."
        ),
    ]
    started: Annotated[
        datetime | None,
        Field(
            description="When it began; it does not wait for a replica that had been unready for a minute."
        ),
    ] = None


class AllocatedPool(StatusModel):
    """Replicas that the allocator of one of several pools decided."""

    name: Annotated[str, Field(max_length=253, description="Name of the ComputePool.")]
    replicas: Annotated[int, Field(ge=0, description="Number of replicas there that get requests.")] = 0
    spares: Annotated[int, Field(ge=0, description="Number of warm spares there.")] = 0
    decision: Annotated[
        str, Field(max_length=253, description="Name of the AllocationDecision with the reason.")
    ] = ""


class AllocatedReplicas(StatusModel):
    """Replicas that the ComputePool's allocator decided. Absent without spec.scaling, and before a decision."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.epoch >= oldSelf.epoch",
            message="this write comes from a controller that is no longer the leader",
            check=lambda _: True,  # only the API server knows the previous object
            field="epoch",
        ),
    )

    replicas: Annotated[int, Field(ge=0, description="Number of replicas that get requests.")] = 0
    spares: Annotated[
        int,
        Field(
            ge=0,
            description="Number of warm spares: additional replicas that are loaded and get no requests.",
        ),
    ] = 0
    decision: Annotated[
        str, Field(max_length=253, description="Name of the AllocationDecision with the reason.")
    ] = ""
    epoch: Annotated[int, Field(ge=0, description="Epoch of the leader that wrote this.")] = 0
    pools: Annotated[
        tuple[AllocatedPool, ...],
        Field(
            max_length=MAX_POOLS,
            description="The same by pool, if spec.placement.pools is set: the figures above are their sums, and decision is "
            "the newest one.",
        ),
        ListMap("name"),
    ] = ()


class PoolReplicas(StatusModel):
    """Replicas in one of several pools."""

    name: Annotated[str, Field(max_length=253, description="Name of the ComputePool.")]
    replicas: Annotated[
        int,
        Field(
            ge=0,
            description="Number of replicas that run there by plan; the rest of the list has the others.",
        ),
    ] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of ready pods there.")] = 0


class InferenceStatus(StatusModel):
    """State that the replicas report, not the state that was requested."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of pods whose model is ready.")] = 0
    spare_replicas: Annotated[
        int | None,
        Field(
            ge=0,
            description="Number of ready pods that are warm spares and get no requests. Absent if none are "
            "planned.",
        ),
    ] = None
    pools: Annotated[
        tuple[PoolReplicas, ...],
        Field(
            max_length=2 * MAX_POOLS,
            description="Replicas by pool, if spec.placement.pools names several: first those of the list, in its order, then "
            "those that are being drained.",
        ),
        ListMap("name"),
    ] = ()
    pool_summary: Annotated[
        str | None,
        Field(
            max_length=1024,
            description="The same in words, ready and planned: `h100 2/2, a100 1/3`. Absent without spec.placement.pools.",
        ),
    ] = None
    selector: Annotated[str, Field(max_length=512, description="Label selector of the pods, for /scale.")] = (
        ""
    )
    versions: Annotated[ModelVersions, Field(description=ModelVersions.__doc__)] = ModelVersions()
    model: Annotated[ServedModel | None, Field(description=ServedModel.__doc__)] = None
    graph: Annotated[CompiledGraph | None, Field(description=CompiledGraph.__doc__)] = None
    failure: Annotated[FailureStatus | None, Field(description=FailureStatus.__doc__)] = None
    swap: Annotated[SwapProgress | None, Field(description=SwapProgress.__doc__)] = None
    allocation: Annotated[AllocatedReplicas | None, Field(description=AllocatedReplicas.__doc__)] = None
    batch: Annotated[BatchProgress | None, Field(description=BatchProgress.__doc__)] = None
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled and ModelLoaded; Placed if spec.placement is set, SamplesLogged "
            "if spec.logging is, Compiled if spec.compile is, Consuming if spec.nearline is, Complete if spec.batch is, OverrideActive if a "
            "ComputeOverride applies. With spec.batch there is no ModelLoaded, and Ready is True while the run continues.",
        ),
        ListMap("type"),
    ] = ()


def _served_name_expression(variable: str) -> str:
    """Return CEL for the model name in requests."""
    model_name = f"{variable}.spec.model.name"
    return f"(has({model_name}) ? {model_name} : {variable}.metadata.name)"


class Inference(CustomResource):
    """One model, served by Triton pods that load a version and swap to another one in place."""

    KIND: ClassVar[str] = "Inference"
    PLURAL: ClassVar[str] = "inferences"
    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        *CustomResource.RULES,
        ValidationRule(
            cel=f"{_served_name_expression('self')} == {_served_name_expression('oldSelf')}",
            message="the served name cannot change, since clients ask for it: make a new Inference and move the "
            "ModelAccess's targets to it",
            check=lambda _: True,  # only the API server knows the previous object
            field="spec",
        ),
        ValidationRule(
            cel="has(self.spec.batch) == has(oldSelf.spec.batch)",
            message="batch cannot be added or removed, since a Job and a Deployment are different pods: make a new Inference",
            check=lambda _: True,  # only the API server knows the previous object
            field="spec",
        ),
    )

    spec: Annotated[InferenceSpec, Field(description=InferenceSpec.__doc__)]
    status: Annotated[InferenceStatus, Field(description=InferenceStatus.__doc__)] = InferenceStatus()

    @property
    def served_name(self) -> str:
        """Return the model name in requests."""
        return self.spec.model.name or self.metadata.name

    @property
    def allocated_pools(self) -> Mapping[str, AllocatedPool]:
        """Return what the allocators of several pools decided, by name; empty with one pool, and before a decision."""
        placement, allocation = self.spec.placement, self.status.allocation
        if self.spec.scaling is None or placement is None or placement.pools is None or allocation is None:
            return {}
        return {pool.name: pool for pool in allocation.pools}

    def narrow_to_pool(self, pool: str) -> Inference:
        """Return the Inference as the allocator of one of its pools decides about it: with the allocation there.

        The range applies to the sum over all pools, so it has no minimum here. With one pool, or a fixed number, nothing changes.
        """
        scaling, allocation, placement = self.spec.scaling, self.status.allocation, self.spec.placement
        if scaling is None or placement is None or placement.pools is None:
            return self
        share = self.allocated_pools.get(pool)
        narrowed = None
        if allocation is not None and share is not None:
            update = {
                "replicas": share.replicas,
                "spares": share.spares,
                "decision": share.decision,
                "pools": (),
            }
            narrowed = allocation.model_copy(update=update)
        spec = self.spec.model_copy(update={"scaling": scaling.model_copy(update={"min_replicas": 0})})
        return self.model_copy(
            update={"spec": spec, "status": self.status.model_copy(update={"allocation": narrowed})}
        )

    def count_pool_replicas(self, share: PoolShare) -> PoolReplicas:
        """Return the pods that the Inference is to have in one of its pools, and those that are ready there."""
        if self.spec.placement is not None and len(self.spec.placement.pool_shares) == 1:
            return PoolReplicas(
                name=share.name, replicas=self.decided_pods, ready_replicas=self.status.ready_replicas
            )
        by_name = {pool.name: pool for pool in self.status.pools}
        return by_name.get(share.name, PoolReplicas(name=share.name))

    @property
    def ready_slices(self) -> int | None:
        """Return the slices of its ready pods; None without placement."""
        if self.spec.placement is None:
            return None
        shares = self.spec.placement.pool_shares
        return sum(share.slices * self.count_pool_replicas(share).ready_replicas for share in shares)

    @property
    def decided_replicas(self) -> int:
        """Return the desired replicas: spec.replicas, or with spec.scaling the allocator's decision in its range."""
        scaling, allocation = self.spec.scaling, self.status.allocation
        if scaling is None:
            return self.spec.replicas
        decided = allocation.replicas if allocation is not None else scaling.min_replicas
        return min(max(decided, scaling.min_replicas), scaling.max_replicas)

    @property
    def decided_pods(self) -> int:
        """Return the desired pods: replicas and warm spares. Ready pods are counted against them."""
        return self.decided_replicas + self.decided_spares

    @property
    def decided_spares(self) -> int:
        """Return the desired warm spares; together with the replicas they stay within spec.scaling."""
        scaling, allocation = self.spec.scaling, self.status.allocation
        if scaling is None or allocation is None or not self.spec.tier.traits.has_warm_spares:
            return 0
        return min(allocation.spares, scaling.max_replicas - self.decided_replicas)
