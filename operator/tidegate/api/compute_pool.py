"""The kind ComputePool: nodes whose CPUs or GPUs are divided into equal slices, and the allocator's policy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final, assert_never

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.demand_events import DemandEvent
from tidegate.api.faulty_nodes import MAX_FAULTY_NODES, FaultyNode
from tidegate.api.fields import DecimalText, DurationText, QuantityBetween, duration_between
from tidegate.api.inference import NodeLossMode, Tier
from tidegate.api.meta import NOT_OBSERVED, ApiModel, CustomResource, ObservedGeneration, StatusModel
from tidegate.api.quantities import QUANTITY_PATTERN
from tidegate.api.schema import ListAtomic, ListMap, ValidationRule, ValidationRules, must_match
from tidegate.api.shared_spares import MAX_SHARED_MODELS, SharedSparesStatus

MAX_SLICES: Final = 1_000_000

# The agent runs within the pod's slices as well: smaller slices would leave too little for the server.
_SliceCpu = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32), QuantityBetween("100m", "1024")]
_SliceMemory = Annotated[
    str, Field(pattern=QUANTITY_PATTERN, max_length=32), QuantityBetween("256Mi", "64Ti")
]


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(ApiModel):
    """A toleration of the pool's pods, as in spec.tolerations of a Pod."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.operator != 'Exists' || !has(self.value)",
            message="value is only for operator Equal: remove value, or set operator: Equal",
            check=lambda toleration: (
                toleration.operator is not TolerationOperator.EXISTS or toleration.value is None
            ),
            field="value",
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=253, description="The taint's key.")]
    operator: Annotated[
        TolerationOperator,
        Field(description="Equal compares the taint's value with value, Exists matches any value."),
    ] = TolerationOperator.EQUAL
    value: Annotated[str | None, Field(max_length=63, description="The taint's value. Absent: empty.")] = None
    effect: Annotated[TaintEffect | None, Field(description="The taint's effect. Absent: every effect.")] = (
        None
    )

    def to_pod_toleration(self) -> dict[str, object]:
        """Return the toleration as the API server stores it in a pod."""
        return self.model_dump(mode="json", exclude_none=True)


class CpuSlice(ApiModel):
    """A slice of CPU and memory."""

    cpu: Annotated[_SliceCpu, Field(description="Cores of one slice, from 100m, as a quantity.")]
    memory: Annotated[
        _SliceMemory, Field(description="Memory of one slice in bytes, from 256Mi, as a quantity.")
    ]


class MpsSlice(ApiModel):
    """A slice of a GPU under NVIDIA's MPS, and the CPU and memory beside it."""

    slices_per_gpu: Annotated[
        int,
        Field(
            alias="slicesPerGPU",
            strict=True,
            ge=2,
            le=48,
            description="Number of equal slices of each GPU, 2 to 48 (16 on GPUs before compute capability 7.5): with n slices, each "
            "gets 1/n of the memory and at most 1/n of the multiprocessors. After a change, drain one node after the other and "
            "set its label as the condition SharingConfigured shows.",
        ),
    ]
    run_as_user: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=2**31 - 1,
            description="User id of the pool's pods: an MPS server serves one user at a time, and others wait.",
        ),
    ] = 65532
    cpu: Annotated[_SliceCpu, Field(description="Cores that come with one slice, from 100m, as a quantity.")]
    memory: Annotated[
        _SliceMemory,
        Field(description="Host memory that comes with one slice, in bytes, from 256Mi, as a quantity."),
    ]


class SliceSpec(ApiModel):
    """Size of one slice. All slices of a pool are equal."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.cpu) != has(self.mps)",
            message="set exactly one of cpu and mps",
            check=lambda spec: (spec.cpu is None) != (spec.mps is None),
        ),
        ValidationRule(
            cel="has(self.cpu) == has(oldSelf.cpu)",
            message="slices cannot change from cpu to mps or back: make another ComputePool and move Inferences to it",
            check=lambda _: True,  # only the API server knows the previous object
        ),
    )

    cpu: Annotated[
        CpuSlice | None,
        Field(
            description="CPU slices. A pod with n slices requests n times this, which includes its agent. "
            "A change replaces the pods, with one rollout per Inference."
        ),
    ] = None
    mps: Annotated[
        MpsSlice | None,
        Field(
            description="GPU slices under MPS, which NVIDIA's device plugin offers as nvidia.com/gpu.shared. The administrator "
            "configures each node, and the condition SharingConfigured shows what is missing. A pod has one slice: MPS limits "
            "a process, so a pod with two slices would not get twice as much."
        ),
    ] = None


class TierBounds(ApiModel):
    """Floor and ceiling of a tier, in slices."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.ceiling) || self.floor <= self.ceiling",
            message="floor must not be above ceiling: lower floor, or raise ceiling",
            check=lambda bounds: bounds.ceiling is None or bounds.floor <= bounds.ceiling,
            field="floor",
        ),
    )

    floor: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_SLICES,
            description="Slices that are reserved for this tier, whether it uses them or not.",
        ),
    ] = 0
    ceiling: Annotated[
        int | None,
        Field(
            strict=True,
            ge=0,
            le=MAX_SLICES,
            description="Largest number of slices of this tier. Absent: all that other tiers leave free.",
        ),
    ] = None


class RealtimeBounds(TierBounds):
    """Bounds and warm spares of tier realtime."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        *TierBounds.RULES,
        ValidationRule(
            cel="!has(self.ceiling) || self.warmSpares <= self.ceiling",
            message="warmSpares must not be above ceiling, since warm spares count towards it: lower warmSpares, or raise ceiling",
            check=lambda bounds: bounds.ceiling is None or bounds.warm_spares <= bounds.ceiling,
            field="warmSpares",
        ),
    )

    warm_spares: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_SLICES,
            description="Slices that the allocator keeps for warm spares: loaded replicas of real-time Inferences that get no "
            "requests until another replica fails or demand rises. Floors of all tiers and real-time demand come first.",
        ),
    ] = 0


class PoolTiers(ApiModel):
    """Bounds of each tier. They apply to pods that start; running pods are not stopped."""

    realtime: Annotated[RealtimeBounds, Field(description="Bounds of tier realtime.")] = RealtimeBounds()
    nearline: Annotated[TierBounds, Field(description="Bounds of tier nearline.")] = TierBounds()
    offline: Annotated[TierBounds, Field(description="Bounds of tier offline.")] = TierBounds()

    def bounds_for(self, tier: Tier) -> TierBounds:
        """Return the bounds of one tier."""
        match tier:
            case Tier.REALTIME:
                return self.realtime
            case Tier.NEARLINE:
                return self.nearline
            case Tier.OFFLINE:
                return self.offline
            case _:
                assert_never(tier)

    @property
    def total_floor(self) -> int:
        """Return the sum of all tiers' floors."""
        return sum(self.bounds_for(tier).floor for tier in Tier)


class PolicyMode(StrEnum):
    """What the allocator does with its decisions."""

    RECOMMEND_ONLY = "RecommendOnly"
    AUTO = "Auto"
    HOLD = "Hold"

    @property
    def executes_decisions(self) -> bool:
        """Return whether the allocator executes decisions in this mode."""
        return self is not PolicyMode.RECOMMEND_ONLY


class MoveBudget(ApiModel):
    """The most slices that may move within a period."""

    max_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="Most slices that move within the period, in percent of the healthy ones, rounded up. Moves that "
            "lost nodes or real-time floors require are not limited.",
        ),
    ]
    per: Annotated[
        Annotated[DurationText, duration_between("10s", "24h")],
        Field(description="Length of the period, from 10s to 24h."),
    ] = "10m"


class FreezeWindow(ApiModel):
    """A recurring time window in which the pool is held."""

    schedule: Annotated[
        str,
        Field(
            min_length=9,
            max_length=128,
            description="Start of the window as a cron schedule: minute, hour, day of the month, month, day of the week.",
        ),
    ]
    duration: Annotated[
        Annotated[DurationText, duration_between("1m", "168h")],
        Field(description="Length of the window, from 1m to 168h."),
    ]
    time_zone: Annotated[
        str, Field(min_length=1, max_length=64, description="Time zone of the schedule, like Europe/Berlin.")
    ] = "UTC"


class ForecastPolicy(ApiModel):
    """Forecasts of the demand for real-time Inferences with spec.scaling, so that replicas start before they are needed."""

    horizon: Annotated[
        Annotated[DurationText, duration_between("10s", "1h")],
        Field(
            description="How far ahead the demand for an Inference is forecast while no load time of its replicas in the pool is "
            "measured, from 10s to 1h. Once it is measured, the demand is forecast for the load time and one policy.interval "
            "ahead. Replicas start that long before they are needed."
        ),
    ] = "5m"
    quantile: Annotated[
        DecimalText,
        ValidationRules(
            must_match(
                r"0+[.](5[0-9]*[1-9][0-9]*|[6-9][0-9]*)", "must be more than 0.5 and less than 1, like '0.9'"
            )
        ),
        Field(
            description="Share of the time in which demand should stay below its forecast, more than 0.5 and less than 1: a "
            "decimal in quotes. A higher quantile keeps more replicas in reserve for demand that is hard to forecast."
        ),
    ] = "0.9"
    time_zone: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            description="Time zone of the people who use the models, like Europe/Berlin: earlier days and weeks are compared by "
            "its hours, also when its clocks are changed.",
        ),
    ] = "UTC"


class SharedSpareLimits(ApiModel):
    """Limits of the pods on which Inferences with nodeLoss Shared have their models loaded as well."""

    max_models: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_SHARED_MODELS,
            description="Most models of one shared spare, 1 to 64. The memory of its slices may allow fewer.",
        ),
    ] = 8
    max_slices: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_SLICES,
            description="Most slices of all shared spares of the pool. Absent: what realtime demand leaves, and what the other "
            "tiers keep: their floor, or what minReplicas, fixed replicas and deadlines need, if that is more.",
        ),
    ] = None


class NodeLossPolicy(ApiModel):
    """How many spare replicas real-time Inferences keep for the loss of a node."""

    mode: Annotated[
        NodeLossMode,
        Field(
            description="Priced keeps a spare replica if the value of the requests that it would save exceeds what its slices "
            "earn elsewhere. Strict keeps enough replicas to serve the demand when any one node is lost, whatever other Inferences "
            "lose by that. Shared loads the models on spares that Inferences of a namespace share, whatever other Inferences lose by "
            "that; Inferences that no spare serves are Priced. spec.scaling.nodeLoss of an Inference replaces it."
        ),
    ] = NodeLossMode.PRICED
    expected_every: Annotated[
        Annotated[DurationText, duration_between("1h", "100000h")],
        Field(
            description="Mean time from a node's start to its loss, from 1h to 100000h, for mode Priced: a shorter time keeps "
            "more spare replicas. Count losses without notice: faults and reclaimed spot instances, not drains."
        ),
    ] = "720h"
    shared_spares: Annotated[
        SharedSpareLimits | None,
        Field(
            description="Limits of the spares for mode Shared. Absent: 8 models each, and the slices that realtime demand and "
            "what the other tiers keep leave."
        ),
    ] = None


class AllocationPolicy(ApiModel):
    """How the allocator decides about Inferences with spec.scaling."""

    mode: Annotated[
        PolicyMode,
        Field(
            description="RecommendOnly writes AllocationDecisions and moves nothing. Auto executes them. Hold moves "
            "only what lost nodes and real-time floors require."
        ),
    ] = PolicyMode.RECOMMEND_ONLY
    interval: Annotated[
        Annotated[DurationText, duration_between("1s", "10m")],
        Field(description="Time between two runs of the allocator, from 1s to 10m."),
    ] = "30s"
    dwell: Annotated[
        Annotated[DurationText, duration_between("0s", "1h")],
        Field(
            description="Stabilization window for scaling down real-time Inferences, from 0s to 1h. A replica is kept this long "
            "after a decision started it, unless lost nodes or real-time floors require its slices. The allocator plans for the "
            "highest demand within this window, at least a minute. A longer window moves less; a shorter one frees slices "
            "sooner after a peak."
        ),
    ] = "5m"
    moves: Annotated[
        MoveBudget | None,
        Field(description="Budget: the most slices that may move within a period. Absent: no limit."),
    ] = None
    freeze: Annotated[
        tuple[FreezeWindow, ...],
        Field(
            max_length=16,
            description="Time windows in which Auto acts as Hold. A window that does not parse holds the pool until it is corrected.",
        ),
        ListAtomic(),
    ] = ()
    forecast: Annotated[
        ForecastPolicy | None,
        Field(
            description="Plan for the forecast of the demand where it exceeds the present demand. A forecast needs a day of "
            "history. Absent: plan for the present demand."
        ),
    ] = None
    events: Annotated[
        tuple[DemandEvent, ...],
        Field(
            max_length=16,
            description="Events at which more demand is expected. Replicas start ahead of an event: by forecast.horizon, or 5m "
            "without forecast; by the longest measured load time of the pool's replicas if that is longer.",
        ),
        ListMap("name"),
    ] = ()
    node_loss: Annotated[NodeLossPolicy, Field(description=NodeLossPolicy.__doc__)] = NodeLossPolicy()


class ComputePoolSpec(ApiModel):
    """Nodes, slices, bounds and policy of the pool."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.slice.mps) || self.policy.nodeLoss.mode != 'Shared'",
            message="policy.nodeLoss.mode Shared is only for CPU slices, since a process on a shared GPU has one slice: set "
            "Priced or Strict",
            check=lambda spec: (
                spec.slice.mps is None or spec.policy.node_loss.mode is not NodeLossMode.SHARED
            ),
            field="policy.nodeLoss.mode",
        ),
    )

    node_selector: Annotated[
        Mapping[str, Annotated[str, Field(max_length=63)]],
        Field(
            min_length=1,
            max_length=16,
            description="Labels of the pool's nodes; a node must have all of them. A node belongs to one pool: "
            "if two select it, to the older one.",
        ),
    ]
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=16, description="Taints of these nodes that the pool's pods tolerate."),
        ListAtomic(),
    ] = ()
    slice: Annotated[SliceSpec, Field(description=SliceSpec.__doc__)]
    tiers: Annotated[PoolTiers, Field(description=PoolTiers.__doc__)] = PoolTiers()
    policy: Annotated[AllocationPolicy, Field(description=AllocationPolicy.__doc__)] = AllocationPolicy()


class SliceCounts(StatusModel):
    """Number of slices of the pool."""

    total: Annotated[
        int,
        Field(
            ge=0,
            description="Number of slices of the pool's nodes, without what pods from outside the pool request.",
        ),
    ] = 0
    healthy: Annotated[
        int,
        Field(
            ge=0,
            description="Number of slices on nodes that accept pods: ready, not cordoned, without a taint that the pool "
            "does not tolerate.",
        ),
    ] = 0
    free: Annotated[
        int, Field(ge=0, description="Number of healthy slices that are not assigned to a pod.")
    ] = 0

    @property
    def assigned(self) -> int:
        """Return the number of healthy slices that are assigned to pods."""
        return max(self.healthy - self.free, 0)


class TierUsage(StatusModel):
    """Slices that are assigned to one tier."""

    name: Annotated[str, Field(max_length=16, description="The tier.")]
    slices: Annotated[int, Field(ge=0, description="Number of slices that are assigned to its pods.")] = 0


class ComputePoolStatus(StatusModel):
    """Observed state of the nodes and of the pods on them."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    nodes: Annotated[int, Field(ge=0, description="Number of nodes that belong to the pool.")] = 0
    slices: Annotated[SliceCounts, Field(description=SliceCounts.__doc__)] = SliceCounts()
    tiers: Annotated[
        tuple[TierUsage, ...],
        Field(max_length=8, description="Slices that are assigned to each tier."),
        ListMap("name"),
    ] = ()
    imbalance_percent: Annotated[
        int | None,
        Field(
            ge=0,
            description="How much fuller the fullest healthy node is than the average of the healthy nodes, in percent of that "
            "average: 0 if all are equally full. Absent if no slice is assigned.",
        ),
    ] = None
    mode: Annotated[
        PolicyMode | None,
        Field(
            description="Effective mode of the allocator: Hold instead of Auto while a freeze window or a ComputeOverride holds "
            "the pool."
        ),
    ] = None
    last_decision: Annotated[
        str | None, Field(max_length=253, description="Name of the newest AllocationDecision.")
    ] = None
    shared_spares: Annotated[SharedSparesStatus | None, Field(description=SharedSparesStatus.__doc__)] = None
    faulty_nodes: Annotated[
        tuple[FaultyNode, ...],
        Field(
            max_length=MAX_FAULTY_NODES,
            description="Nodes whose GPU sharing has a fault; empty unless node agents run.",
        ),
        ListMap("node"),
    ] = ()
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled and Healthy; SharingConfigured if slice.mps is set, and SharingHealthy "
            "if node agents run as well; Allocated and "
            "SignalsFresh if Inferences with spec.scaling use the pool; Forecasting if policy.forecast is set, and "
            "EventsPlanned if policy.events is set, each only with a real-time Inference that has spec.scaling; OverrideActive "
            "if a ComputeOverride of the pool is active.",
        ),
        ListMap("type"),
    ] = ()

    @property
    def ordered_tiers(self) -> tuple[TierUsage, ...]:
        """Return the slices of tiers in the order of Tier, the most urgent first; unknown tiers come last."""
        order = {tier.value: number for number, tier in enumerate(Tier)}
        return tuple(sorted(self.tiers, key=lambda usage: (order.get(usage.name, len(order)), usage.name)))


class ComputePool(CustomResource):
    """Nodes whose compute is divided into equal slices, on which Inferences are placed."""

    KIND: ClassVar[str] = "ComputePool"
    PLURAL: ClassVar[str] = "computepools"
    NAMESPACED: ClassVar[bool] = False

    spec: Annotated[ComputePoolSpec, Field(description=ComputePoolSpec.__doc__)]
    status: Annotated[ComputePoolStatus, Field(description=ComputePoolStatus.__doc__)] = ComputePoolStatus()

    @property
    def effective_mode(self) -> PolicyMode:
        """Return the mode of the allocator's last tick; before the first, the mode of the spec."""
        return self.status.mode or self.spec.policy.mode
