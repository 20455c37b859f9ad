"""What the allocator decides about a pool from: its slices, who holds them, what is asked of whom; all from caches, as one Snapshot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil, inf
from typing import Final

from tidegate.allocation import snapshot as solver
from tidegate.allocation.curves import CapacityCorrection, CapacityCurve, linear_curve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import AllocationSnapshot, DemandInput, HorizonStep, ReplicaBounds, TierRule
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.batch_pace import urgency
from tidegate.planning.claims import Claim
from tidegate.planning.freeze import Freeze
from tidegate.planning.move_budget import compute_move_budget, find_standing_decision
from tidegate.planning.overrides import about, bounded, in_force
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.replicas import in_service
from tidegate.planning.shards_left import shards_left
from tidegate.planning.signals import Signal, Signals

STEPS: Final = (HorizonStep(600.0),)
"""One step of ten minutes: the present rate stands in all of it, until somebody forecasts."""
_UNKNOWN: Final = linear_curve(1.0)
"""The curve of an Inference whose capacity nobody measured: it keeps what it has, and no curve decides about it."""


_LOOKING: Final = 0.05
"""Share of a replica's work that looking whether a stream has any is worth."""


@dataclass(frozen=True, slots=True)
class Member:
    """An Inference that is placed in the pool: what it has there, and what is asked of it."""

    inference: Inference
    claim: Claim
    ready: int
    """Pods that answer, there; warm spares among them."""
    apart: str = ""
    """Why nothing can be decided about it now, or empty: its Deployment is not there, or moves here from elsewhere."""
    refused: str = ""
    """Why the pool gives it no place, however many slices are free, or empty."""
    lost: int = 0
    """Slices of its pods on nodes that take none and where they do not answer: nobody can have these."""

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""
        return self.claim.key

    @property
    def slices(self) -> int:
        """Slices of each replica."""
        return self.claim.slices

    @property
    def pods(self) -> int:
        """Pods that it has been given, those that still start and warm spares included."""
        return max(self.claim.assigned, self.claim.assumed) // self.claim.slices

    @property
    def held(self) -> int:
        """Replicas of them: all but warm spares."""
        return in_service(self.inference, self.pods)

    @property
    def spare(self) -> int:
        """Warm spares of them."""
        return self.pods - self.held

    @property
    def taken(self) -> int:
        """Slices that it has where somebody else could have them."""
        claim = self.claim
        return max(claim.assigned, sum(claim.pods.values()) - self.lost, claim.assumed)

    @property
    def serving(self) -> int:
        """Pods that answer and get requests."""
        return min(self.ready, self.held) if self.spare else self.ready

    @property
    def draining(self) -> int:
        """Replicas' worth of slices that it has beyond that: pods on their way out."""
        beyond = self.taken - self.pods * self.claim.slices
        return max(ceil(beyond / self.claim.slices), 0)

    @property
    def scaled(self) -> bool:
        """Whether the allocator decides about it."""
        return self.inference.spec.scaling is not None

    @property
    def unmeasured(self) -> bool:
        """Whether nobody knows what a replica serves; offline work uses whatever is left."""
        return self.inference.spec.tier is not Tier.OFFLINE and self.inference.spec.capacity is None


@dataclass(frozen=True, slots=True)
class AllocationObserved:
    """Everything that deciding about one pool needs to know."""

    pool: ComputePool
    now: datetime
    slices: PoolSlices
    members: Sequence[Member]
    leaving: int = 0
    """Slices of Inferences that were deleted, or want another pool, until their pods are gone."""
    serving_elsewhere: int = 0
    """Slices of ready pods on nodes that take no new ones: they are there, and nobody else can have them."""
    overrides: Sequence[ComputeOverride] = ()
    signals: Signals = field(default_factory=Signals)
    decisions: Sequence[AllocationDecision] = ()
    """Those about this pool, the newest first."""
    frozen: Freeze | None = None
    """The window that the pool is in."""
    corrections: Mapping[ObjectKey, CapacityCorrection] = field(
        default_factory=dict[ObjectKey, CapacityCorrection]
    )
    """How far production is from what was measured, of those of whom it says anything."""

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.pool.metadata.name

    @property
    def active(self) -> tuple[ComputeOverride, ...]:
        """The overrides in force."""
        return in_force(self.overrides, self.now)

    @property
    def mode(self) -> PolicyMode:
        """What is done with decisions: an override or a window that holds the pool counts, unless nothing is done at all."""
        mode = self.pool.spec.policy.mode
        return PolicyMode.HOLD if self.held and mode is not PolicyMode.RECOMMEND_ONLY else mode

    @property
    def held(self) -> bool:
        """Whether an override or a window holds the pool, whatever its mode."""
        return self.frozen is not None or bool(about(self.active, OverrideKind.COMPUTE_POOL, self.pool.key))

    @property
    def room(self) -> int:
        """Slices that its members can have together."""
        return max(self.slices.healthy + self.serving_elsewhere - self.leaving, 0)

    @property
    def free(self) -> int:
        """Slices that nobody has; negative where more was given than there is now."""
        there = self.slices.healthy + self.serving_elsewhere - self.leaving
        return there - sum(member.taken for member in self.members)

    @property
    def scaled(self) -> tuple[Member, ...]:
        """The members that the allocator decides about."""
        return tuple(member for member in self.members if member.scaled)

    @property
    def standing(self) -> AllocationDecision | None:
        """The newest decision, if it is still to be carried out or taken up."""
        return find_standing_decision(self.pool, self.decisions)


@dataclass(frozen=True, slots=True)
class View:
    """The solver's inputs, and who could not be part of them."""

    snapshot: AllocationSnapshot
    left_out: Mapping[ObjectKey, str]


def allocation_view(observed: AllocationObserved) -> View:
    """The snapshot of one pool.

    A member with a number that cannot be true, or that is not wholly here, is left out and keeps its slices.
    One that the pool refuses is left out as well, and nobody gives slices for it.
    """
    made: list[solver.ModelInput] = []
    left_out: dict[ObjectKey, str] = {}
    taken = 0
    for member in observed.members:
        if member.refused and not member.held:
            left_out[member.key] = member.refused
            taken += member.taken
            continue
        try:
            if member.apart:
                raise InvalidInputError(f"inference {member.key}", member.apart)
            made.append(_inference(observed, member))
        except InvalidInputError as error:
            left_out[member.key] = str(error)
            taken += max(member.taken, member.claim.replicas * member.slices)
    pool = _pool(observed, taken)
    dwell = parse_duration(observed.pool.spec.policy.dwell)
    snapshot = AllocationSnapshot((pool,), tuple(made), STEPS, dwell_s=dwell / timedelta(seconds=1))
    return View(snapshot, left_out)


def _pool(observed: AllocationObserved, taken: int) -> solver.PoolInput:
    spec = observed.pool.spec
    budget = compute_move_budget(observed.pool, observed.slices.healthy, observed.decisions, observed.now)
    newest = next(iter(observed.decisions), None)
    healthy = [node for node in observed.slices.nodes if node.healthy]
    return solver.PoolInput(
        observed.name,
        max(observed.room - taken - sum(_unfilled(observed, tier) for tier in Tier), 0),
        nodes=len(healthy),
        spares=spec.tiers.realtime.warm_spares,
        tiers=tuple(
            TierRule(tier, spec.tiers.of(tier).floor - _unfilled(observed, tier), spec.tiers.of(tier).ceiling)
            for tier in Tier
        ),
        budget=budget.remaining if budget is not None else None,
        hold=observed.mode is PolicyMode.HOLD or observed.held,
        price=newest.spec.price if newest is not None else 0.0,
    )


def _unfilled(observed: AllocationObserved, tier: Tier) -> int:
    """Slices of a tier's floor that none of its members can use: they are kept for it all the same."""
    fillable = sum(
        member.slices * _most(member) for member in observed.members if member.inference.spec.tier is tier
    )
    return max(observed.pool.spec.tiers.of(tier).floor - fillable, 0)


def _most(member: Member) -> int:
    """Replicas that a member can ever use as it is now."""
    scaling, left = member.inference.spec.scaling, shards_left(member.inference)
    if scaling is None:
        return member.claim.replicas
    return scaling.max_replicas if left is None else min(scaling.max_replicas, left)


def _inference(observed: AllocationObserved, member: Member) -> solver.ModelInput:
    spec, signal = member.inference.spec, observed.signals.by_key.get(member.key)
    bounds = _bounds(observed, member)
    curve, load = _demand(member, signal, observed.now)
    if (correction := observed.corrections.get(member.key)) is not None:
        curve = correction.apply_to(curve)
    if load is not None and signal is not None and not signal.fresh:
        bounds = _never_fewer(bounds, member.held)
    held = member.held if member.scaled else min(member.held, member.claim.replicas)
    ready = min(member.ready, held)
    risen, fallen = (_since(observed, member, wanted) for wanted in (_rises, _falls))
    placement = solver.PlacementInput(
        observed.name,
        curve,
        slices=member.slices,
        replicas=solver.ReplicaCounts(
            ready=ready,
            loading=held - ready,
            draining=member.draining + member.held - held,
            spare=member.spare,
        ),
        since_up_s=risen,
        since_down_s=fallen,
    )
    return solver.ModelInput(
        str(member.key), spec.tier, (placement,), load, bounds, float(spec.value.per_request)
    )


def _bounds(observed: AllocationObserved, member: Member) -> ReplicaBounds:
    scaling = member.inference.spec.scaling
    if scaling is not None:
        overrides = about(observed.active, OverrideKind.INFERENCE, member.key)
        return _of_use(member, bounded(scaling, member.held, overrides))
    wanted = member.claim.replicas
    # What waits for room takes none from others, but for real-time.
    least = wanted if member.inference.spec.tier is Tier.REALTIME else min(wanted, member.held)
    return ReplicaBounds(least, wanted, "spec.replicas", "spec.replicas")


def least_of(observed: AllocationObserved, member: Member) -> int:
    """Replicas that nobody may take from it; all that it has, where nothing can be decided about it."""
    if member.apart or (member.refused and not member.held):
        return ceil(member.taken / member.slices)
    return _bounds(observed, member).floor


def _of_use(member: Member, bounds: ReplicaBounds) -> ReplicaBounds:
    """A batch has no use for more replicas than shards are left, whoever wants them."""
    left = shards_left(member.inference)
    if left is None or (bounds.ceiling is not None and bounds.ceiling <= left):
        return bounds
    return replace(
        bounds, floor=min(bounds.floor, left), ceiling=left, ceiling_source="the shards that are left"
    )


def _demand(member: Member, signal: Signal | None, now: datetime) -> tuple[CapacityCurve, DemandInput | None]:
    """What a replica serves and what is asked; no load where that is not known, so that it keeps what it has."""
    spec = member.inference.spec
    if spec.tier is Tier.OFFLINE and spec.scaling is not None:
        # It uses every slice that is left, as far as it has work for them.
        curve = linear_curve(float(member.slices))
        return curve, DemandInput((curve.rate_at(_most(member)),), (urgency(member.inference, now),))
    if spec.capacity is None:
        return _UNKNOWN, None
    curve = linear_curve(float(spec.capacity.requests_per_second))
    if spec.tier is Tier.NEARLINE and spec.nearline is not None:
        return curve, _of_stream(member, signal, curve)
    if signal is None or (not signal.fresh and spec.tier is not Tier.REALTIME):
        return curve, None
    return curve, DemandInput((signal.demand_per_s,))


def _of_stream(member: Member, signal: Signal | None, curve: CapacityCurve) -> DemandInput | None:
    """What a stream asks for. Its own pods count it, so that nobody knows of work where there is none of them.

    Therefore somebody always has to look, as far as nobody who is worth more needs the slices; that is asked for as a
    small share of what a replica answers.
    """
    least = _LOOKING * curve.rate_at(1)
    if signal is not None and signal.fresh:
        return DemandInput((max(signal.demand_per_s, least),))
    return DemandInput((least,)) if member.held == 0 else None


def _never_fewer(bounds: ReplicaBounds, held: int) -> ReplicaBounds:
    """Stale figures raise a real-time Inference, and never lower it."""
    most = bounds.ceiling if bounds.ceiling is not None else held
    least = min(max(bounds.floor, held), most)
    if least == bounds.floor:
        return bounds
    return replace(bounds, floor=least, floor_source="what it holds, since its signals are stale,")


def _rises(before: int, after: int) -> bool:
    return after > before


def _falls(before: int, after: int) -> bool:
    return after < before


def _since(observed: AllocationObserved, member: Member, wanted: Callable[[int, int], bool]) -> float:
    """Seconds since a decision last raised or lowered it; infinite where none that is kept did."""
    name = str(member.key)
    for decision in observed.decisions:
        if not decision.executed or decision is observed.standing:
            continue
        for move in decision.spec.moves:
            if move.inference == name and wanted(move.before, move.after):
                return max((observed.now - decision.spec.at) / timedelta(seconds=1), 0.0)
    return inf
