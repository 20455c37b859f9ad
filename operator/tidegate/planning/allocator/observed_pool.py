"""What caches and signals hold about one pool, its members among it: all that a decision about it depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil

from tidegate.allocation.curves import CapacityCorrection, CapacityCurve
from tidegate.allocation.errors import InvalidInputError
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.event_calendar import EventCalendar, EventDemand
from tidegate.planning.allocator.freeze import Freeze
from tidegate.planning.allocator.measured_capacity import build_curve
from tidegate.planning.allocator.move_budget import find_current_decision
from tidegate.planning.allocator.other_pools import OtherPool
from tidegate.planning.allocator.replica_times import ReplicaTimes, compute_lead
from tidegate.planning.allocator.signals import Signals
from tidegate.planning.allocator.spare_plan import LiveSpare, PoolSparePlan
from tidegate.planning.allocator.value_mix import ValueMix
from tidegate.planning.inference.replicas import count_serving_pods
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.overrides import select_active, select_for_target
from tidegate.planning.pools.pool_slices import PoolSlices


@dataclass(frozen=True, slots=True)
class PoolMember:
    """An Inference that is placed in the pool: what it has there, and the demand for it."""

    inference: Inference
    """As its allocation in this pool has it: `Inference.narrow_to_pool`."""
    claim: PoolClaim
    ready: int
    """Ready pods in the pool, warm spares included."""
    excluded_reason: str = ""
    """Why it is excluded from decisions now, or empty: its Deployment is missing, or comes from another pool."""
    refusal: str = ""
    """Why the pool can place no replica of it, however many slices are free; or empty."""
    lost_slices: int = 0
    """Slices of its pods that are not ready, on nodes that take no pods: nothing can use them."""
    times: ReplicaTimes = field(default_factory=ReplicaTimes)
    """How long its replicas load and drain in the pool, as far as that is measured."""
    other_pools: Sequence[OtherPool] = ()
    """What it has in the other pools of its list, if their allocators decide about it too."""
    all_pools: Inference | None = None
    """The Inference with the range and the allocation of all pools; None where `inference` has them."""

    @property
    def key(self) -> ObjectKey:
        """Return its namespace and name."""
        return self.claim.key

    @property
    def replica_slices(self) -> int:
        """Return the slices of each replica."""
        return self.claim.slices

    @property
    def assigned_pods(self) -> int:
        """Return the pods that have slices, including starting pods and warm spares."""
        return max(self.claim.assigned, self.claim.assumed) // self.claim.slices

    @property
    def assigned_replicas(self) -> int:
        """Return the replicas that have slices, without warm spares."""
        return count_serving_pods(self.inference, self.assigned_pods)

    @property
    def warm_spares(self) -> int:
        """Return the number of its warm spares."""
        return self.assigned_pods - self.assigned_replicas

    @property
    def occupied_slices(self) -> int:
        """Return the slices that it has and that could be assigned to others."""
        claim = self.claim
        return max(claim.assigned, sum(claim.pods.values()) - self.lost_slices, claim.assumed)

    @property
    def kept_slices(self) -> int:
        """Return the slices that it keeps while decisions leave it out."""
        if self.refusal and not self.assigned_replicas:
            return self.occupied_slices
        return max(self.occupied_slices, self.claim.replicas * self.replica_slices)

    @property
    def serving_pods(self) -> int:
        """Return the ready pods that get requests."""
        return min(self.ready, self.assigned_replicas) if self.warm_spares else self.ready

    @property
    def draining_replicas(self) -> int:
        """Return the number of terminating replicas: those whose slices it has beyond its pods."""
        beyond = self.occupied_slices - self.assigned_pods * self.claim.slices
        return max(ceil(beyond / self.claim.slices), 0)

    @property
    def has_several_pools(self) -> bool:
        """Return whether it may run in other pools too."""
        placement = self.inference.spec.placement
        return placement is not None and len(placement.pool_shares) > 1

    @property
    def asked_replicas(self) -> int:
        """Return the replicas that this pool is to have room for."""
        return self.claim.replicas - self.claim.spilled

    @property
    def capacity_curve(self) -> CapacityCurve | None:
        """Return the measured requests per second of its replicas in this pool; None if unknown.

        Raises:
            InvalidInputError: they are beyond all measure, so that decisions leave it out.
        """
        capacity = self.inference.spec.capacity
        return None if capacity is None else build_curve(capacity, self.claim.relative_capacity)

    @property
    def usable_curve(self) -> CapacityCurve | None:
        """Return the same, or None if it is beyond all measure: for what must not fail for the other members."""
        try:
            return self.capacity_curve
        except InvalidInputError:
            return None

    @property
    def is_scaled(self) -> bool:
        """Return whether the allocator decides its number of replicas."""
        return self.inference.spec.scaling is not None

    @property
    def can_be_forecast(self) -> bool:
        """Return whether a forecast of its demand counts: other tiers wait, and a fixed number of replicas starts nothing."""
        return self.is_scaled and self.inference.spec.tier.traits.has_slo

    @property
    def lacks_capacity(self) -> bool:
        """Return whether its capacity per replica is unknown.

        Offline work needs none, since it uses every free slice.
        """
        return self.inference.spec.tier.traits.counts_requests and self.inference.spec.capacity is None


@dataclass(frozen=True, slots=True)
class AllocationObserved:
    """Everything that a decision about one pool depends on."""

    pool: ComputePool
    now: datetime
    slices: PoolSlices
    members: Sequence[PoolMember]
    departing_slices: int = 0
    """Slices of Inferences that were deleted or moved to another pool, until their pods are gone."""
    unhealthy_node_slices: int = 0
    """Slices of ready pods on nodes that are not healthy: they serve, and cannot be assigned to others."""
    spare_slices: int = 0
    """Slices of healthy nodes that are reserved for spares that Inferences share, or that their pods still have."""
    live_spares: Sequence[LiveSpare] = ()
    """The spares that Inferences share."""
    spare_plan: PoolSparePlan = field(default_factory=PoolSparePlan)
    """The spares that are to exist; empty before they are planned."""
    overrides: Sequence[ComputeOverride] = ()
    signals: Signals = field(default_factory=Signals)
    decisions: Sequence[AllocationDecision] = ()
    """The decisions about this pool, the newest first."""
    freeze: Freeze | None = None
    """The freeze window that the pool is in, if any."""
    price: float | None = None
    """What one more slice would have earned in the last solve, in value per second; None if the process has solved nothing yet."""
    corrections: Mapping[ObjectKey, CapacityCorrection] = field(
        default_factory=dict[ObjectKey, CapacityCorrection]
    )
    """How far capacity in production is from the measured one, for Inferences where that is known."""
    forecasts: Mapping[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    """The highest rates that are expected within the lead of each Inference, in requests per second, where forecast."""
    calendar: EventCalendar = field(default_factory=EventCalendar)
    event_demands: Mapping[ObjectKey, EventDemand] = field(default_factory=dict[ObjectKey, EventDemand])
    """The demand that spec.policy.events add, of the Inferences with an event that is near or running."""
    mixes: Mapping[ObjectKey, ValueMix] = field(default_factory=dict[ObjectKey, ValueMix])
    """What the requests of Inferences are worth, where clients send any."""

    @property
    def name(self) -> str:
        """Return the pool's name."""
        return self.pool.metadata.name

    @property
    def active_overrides(self) -> tuple[ComputeOverride, ...]:
        """Return the active overrides."""
        return select_active(self.overrides, self.now)

    @property
    def effective_mode(self) -> PolicyMode:
        """Return the policy's mode; a held pool is in mode Hold, unless it only recommends."""
        mode = self.pool.spec.policy.mode
        return PolicyMode.HOLD if self.is_held and mode is not PolicyMode.RECOMMEND_ONLY else mode

    @property
    def is_held(self) -> bool:
        """Return whether an override or a freeze window holds the pool, in any mode."""
        return self.freeze is not None or bool(
            select_for_target(self.active_overrides, OverrideKind.COMPUTE_POOL, self.pool.key)
        )

    @property
    def allocatable_slices(self) -> int:
        """Return the number of slices that the pool's members can have together."""
        return max(self.usable_slices - self.charged_spare_slices, 0)

    @property
    def free_slices(self) -> int:
        """Return the free slices; negative if more are assigned than the pool has now."""
        occupied = sum(member.occupied_slices for member in self.members)
        return self.usable_slices - self.spare_slices - occupied

    @property
    def usable_slices(self) -> int:
        """Return the slices that members and shared spares can have together."""
        return self.slices.healthy + self.unhealthy_node_slices - self.departing_slices

    @property
    def charged_spare_slices(self) -> int:
        """Return the slices of shared spares that members cannot have; not those of spares that stay in the place of replicas."""
        return max(self.spare_slices - self.spare_plan.excess_slices, 0)

    @property
    def scaled_members(self) -> tuple[PoolMember, ...]:
        """Return the members whose replicas the allocator decides."""
        return tuple(member for member in self.members if member.is_scaled)

    @property
    def peak_windows(self) -> Mapping[ObjectKey, timedelta]:
        """Return for how long peaks of the demand for real-time Inferences count: spec.policy.dwell."""
        dwell = parse_duration(self.pool.spec.policy.dwell)
        return {member.key: dwell for member in self.members if member.inference.spec.tier.traits.has_slo}

    @property
    def forecast_leads(self) -> Mapping[ObjectKey, timedelta]:
        """Return the Inferences whose demand is to be forecast, and how far ahead."""
        leads = ((member, self.find_lead(member)) for member in self.members)
        return {member.key: lead for member, lead in leads if lead is not None}

    def find_lead(self, member: PoolMember) -> timedelta | None:
        """Return how far ahead the demand for a member is forecast; None if it is not.

        That is until a replica that starts at the next decision serves, and where no load time is measured
        spec.policy.forecast.horizon.
        """
        policy = self.pool.spec.policy
        if policy.forecast is None or not member.can_be_forecast:
            return None
        if member.times.load_s is None:
            return parse_duration(policy.forecast.horizon)
        return compute_lead(member.times.load_s, parse_duration(policy.interval))

    @property
    def expectable_keys(self) -> frozenset[ObjectKey]:
        """Return the Inferences for which an expected demand counts."""
        return frozenset(member.key for member in self.members if member.can_be_forecast)

    @property
    def current_decision(self) -> AllocationDecision | None:
        """Return the newest decision if it is not finished yet."""
        return find_current_decision(self.pool, self.decisions)
