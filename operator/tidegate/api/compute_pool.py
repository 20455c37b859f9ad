"""The kind ComputePool: the nodes of a pool, and the equal slices that they are shared out in."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.faulty_nodes import MAX_FAULTY_NODES, FaultyNode
from tidegate.api.fields import DurationText, QuantityBetween, between
from tidegate.api.inference import Tier
from tidegate.api.meta import NOT_OBSERVED, ApiModel, ObservedGeneration, Resource, StatusModel
from tidegate.api.quantities import QUANTITY_PATTERN
from tidegate.api.schema import ListAtomic, ListMap, Rule

MAX_SLICES: Final = 1_000_000

# A pod's agent runs within its slices as well: below these there would be next to nothing left for the server.
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
    """A taint of the pool's nodes that its pods put up with, as in a pod."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.operator != 'Exists' || !has(self.value)",
            message="value is only for operator Equal: remove value, or set operator: Equal",
            check=lambda it: it.operator is not TolerationOperator.EXISTS or it.value is None,
            field="value",
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=253, description="The taint's key.")]
    operator: Annotated[
        TolerationOperator,
        Field(description="Equal compares the taint's value with value, Exists takes any."),
    ] = TolerationOperator.EQUAL
    value: Annotated[
        str | None, Field(max_length=63, description="The taint's value. Absent: the empty one.")
    ] = None
    effect: Annotated[TaintEffect | None, Field(description="The taint's effect. Absent: every effect.")] = (
        None
    )

    def pod_form(self) -> dict[str, object]:
        """As the API server stores it in a pod."""
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
            description="Number of equal slices of each GPU, 2 to 48 (16 on GPUs before compute capability 7.5): each has "
            "that part of its memory and at most that part of its processors. After a change, drain each node and "
            "change its label, one node at a time.",
        ),
    ]
    run_as_user: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=2**31 - 1,
            description="User id of the pool's pods: one MPS server lets processes of one user in, and others wait.",
        ),
    ] = 65532
    cpu: Annotated[_SliceCpu, Field(description="Cores beside one slice, from 100m, as a quantity.")]
    memory: Annotated[
        _SliceMemory,
        Field(description="Memory of the node beside one slice in bytes, from 256Mi, as a quantity."),
    ]


class SliceSpec(ApiModel):
    """What one slice is. All slices of a pool are equal."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.cpu) != has(self.mps)",
            message="set exactly one of cpu and mps",
            check=lambda it: (it.cpu is None) != (it.mps is None),
        ),
        Rule(
            cel="has(self.cpu) == has(oldSelf.cpu)",
            message="slices cannot change from cpu to mps or back: make another ComputePool and move Inferences to it",
            check=lambda _: True,  # only the API server sees the object as it was
        ),
    )

    cpu: Annotated[
        CpuSlice | None,
        Field(
            description="CPU slices. A pod on n slices asks its node for n times this, its agent's share included. "
            "Changing it replaces the pods, one rollout for each Inference."
        ),
    ] = None
    mps: Annotated[
        MpsSlice | None,
        Field(
            description="GPU slices under MPS, which NVIDIA's device plugin offers as nvidia.com/gpu.shared. The administrator "
            "configures it on each node, and the condition SharingConfigured says what is missing. A pod has one slice and is "
            "one process on one GPU: the limits of a slice are those of a process, so two slices would not be twice as much."
        ),
    ] = None


class TierBounds(ApiModel):
    """How many slices a tier is kept, and how many it may have."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
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
            description="Number of slices that pods of other tiers are never given, whether this tier uses them or not.",
        ),
    ] = 0
    ceiling: Annotated[
        int | None,
        Field(
            strict=True,
            ge=0,
            le=MAX_SLICES,
            description="Largest number of slices that pods of this tier are given. Absent: all that others leave.",
        ),
    ] = None


class RealtimeBounds(TierBounds):
    """Bounds of tier realtime, and what is kept warm for it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *TierBounds.RULES,
        Rule(
            cel="!has(self.ceiling) || self.warmSpares <= self.ceiling",
            message="warmSpares must not be above ceiling, since spares count in it: lower warmSpares, or raise ceiling",
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
            description="Number of slices that the allocator keeps for loaded replicas of realtime Inferences that get no "
            "request until one of the others fails or more is asked. Floors of all tiers and realtime demand go before "
            "them.",
        ),
    ] = 0


class Tiers(ApiModel):
    """The bounds of each tier. They decide about what is to start; what runs is not stopped by them."""

    realtime: Annotated[RealtimeBounds, Field(description="Bounds of tier realtime.")] = RealtimeBounds()
    nearline: Annotated[TierBounds, Field(description="Bounds of tier nearline.")] = TierBounds()
    offline: Annotated[TierBounds, Field(description="Bounds of tier offline.")] = TierBounds()

    def of(self, tier: Tier) -> TierBounds:
        """The bounds of one tier."""
        return {Tier.REALTIME: self.realtime, Tier.NEARLINE: self.nearline, Tier.OFFLINE: self.offline}[tier]

    @property
    def floors(self) -> int:
        """Return the sum of all tiers' floors."""
        return sum(self.of(tier).floor for tier in Tier)


class PolicyMode(StrEnum):
    """What the allocator does with its decisions."""

    RECOMMEND_ONLY = "RecommendOnly"
    AUTO = "Auto"
    HOLD = "Hold"

    @property
    def executes(self) -> bool:
        """Return whether the planner executes decisions in this mode."""
        return self is not PolicyMode.RECOMMEND_ONLY


class MoveBudget(ApiModel):
    """How much of the pool may change hands in a while."""

    max_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="Most slices that change hands in that time, in percent of the healthy ones, rounded up. Lost "
            "nodes and realtime floors are restored beyond it.",
        ),
    ]
    per: Annotated[
        Annotated[DurationText, between("10s", "24h")], Field(description="The time, from 10s to 24h.")
    ] = "10m"


class FreezeWindow(ApiModel):
    """A while in which the pool is held, again and again."""

    schedule: Annotated[
        str,
        Field(
            min_length=9,
            max_length=128,
            description="When it begins, as cron has it: minute, hour, day of the month, month, day of the week.",
        ),
    ]
    duration: Annotated[
        Annotated[DurationText, between("1m", "168h")],
        Field(description="How long it lasts, from 1m to 168h."),
    ]
    time_zone: Annotated[
        str, Field(min_length=1, max_length=64, description="Whose clock counts, like Europe/Berlin.")
    ] = "UTC"


class AllocationPolicy(ApiModel):
    """How the replicas of Inferences with spec.scaling are decided."""

    mode: Annotated[
        PolicyMode,
        Field(
            description="RecommendOnly writes AllocationDecisions and moves nothing. Auto carries them out. Hold moves "
            "only what lost nodes and realtime floors force it to."
        ),
    ] = PolicyMode.RECOMMEND_ONLY
    interval: Annotated[
        Annotated[DurationText, between("1s", "10m")],
        Field(description="Time from one look to the next, from 1s to 10m."),
    ] = "30s"
    dwell: Annotated[
        Annotated[DurationText, between("0s", "1h")],
        Field(
            description="How long a realtime replica that a decision has just started is kept, from 0s to 1h, unless lost nodes "
            "or realtime floors take it. Longer moves less; shorter gives slices back sooner after a peak."
        ),
    ] = "5m"
    moves: Annotated[
        MoveBudget | None,
        Field(description="How much of the pool may change hands in a while. Absent: no limit."),
    ] = None
    freeze: Annotated[
        tuple[FreezeWindow, ...],
        Field(
            max_length=16,
            description="When Auto counts as Hold. A window that cannot be read holds the pool until it is corrected.",
        ),
        ListAtomic(),
    ] = ()


class ComputePoolSpec(ApiModel):
    """What the administrator asks for."""

    node_selector: Annotated[
        Mapping[str, Annotated[str, Field(max_length=63)]],
        Field(
            min_length=1,
            max_length=16,
            description="Labels of the nodes that belong to the pool; all must be there. A node belongs to one pool: "
            "where two select it, it is that of the older one.",
        ),
    ]
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=16, description="Taints of these nodes that the pool's pods put up with."),
        ListAtomic(),
    ] = ()
    slice: Annotated[SliceSpec, Field(description=SliceSpec.__doc__)]
    tiers: Annotated[Tiers, Field(description=Tiers.__doc__)] = Tiers()
    policy: Annotated[AllocationPolicy, Field(description=AllocationPolicy.__doc__)] = AllocationPolicy()


class SliceCounts(StatusModel):
    """How many slices there are."""

    total: Annotated[
        int,
        Field(
            ge=0,
            description="Number of slices that the pool's nodes have, after what pods from outside the pool ask for.",
        ),
    ] = 0
    healthy: Annotated[
        int,
        Field(
            ge=0,
            description="Number of them on nodes that take pods: ready, not cordoned, without a taint that the pool "
            "does not tolerate.",
        ),
    ] = 0
    free: Annotated[int, Field(ge=0, description="Number of healthy slices that no pod of the pool has.")] = 0


class TierUse(StatusModel):
    """What pods of one tier have."""

    name: Annotated[str, Field(max_length=16, description="The tier.")]
    slices: Annotated[int, Field(ge=0, description="Number of slices that its pods have.")] = 0


class ComputePoolStatus(StatusModel):
    """What the nodes and the pods on them show."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    nodes: Annotated[int, Field(ge=0, description="Number of nodes that belong to the pool.")] = 0
    slices: Annotated[SliceCounts, Field(description=SliceCounts.__doc__)] = SliceCounts()
    tiers: Annotated[
        tuple[TierUse, ...],
        Field(max_length=8, description="How many slices the pods of each tier have."),
        ListMap("name"),
    ] = ()
    mode: Annotated[
        PolicyMode | None,
        Field(description="What the allocator does with its decisions; Hold also under a ComputeOverride."),
    ] = None
    last_decision: Annotated[
        str | None, Field(max_length=253, description="Name of the newest AllocationDecision.")
    ] = None
    faulty_nodes: Annotated[
        tuple[FaultyNode, ...],
        Field(
            max_length=MAX_FAULTY_NODES,
            description="Nodes whose GPU sharing has a fault, where node agents run.",
        ),
        ListMap("node"),
    ] = ()
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled and Healthy; SharingConfigured where slice.mps is set, and SharingHealthy "
            "where node agents run besides; Allocated and "
            "SignalsFresh where Inferences with spec.scaling use it; OverrideActive where a ComputeOverride is.",
        ),
        ListMap("type"),
    ] = ()


class ComputePool(Resource):
    """A pool of equal slices of compute on nodes of the cluster, in which Inferences are placed."""

    KIND: ClassVar[str] = "ComputePool"
    PLURAL: ClassVar[str] = "computepools"
    NAMESPACED: ClassVar[bool] = False

    spec: Annotated[ComputePoolSpec, Field(description=ComputePoolSpec.__doc__)]
    status: Annotated[ComputePoolStatus, Field(description=ComputePoolStatus.__doc__)] = ComputePoolStatus()
