"""The allocator: every so often decides who holds how many slices of a pool, and carries that out where it may."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.allocation_decision import AllocationDecision, Trigger
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import ALLOCATION_DECISION, INFERENCE
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.kube.pool_views import PoolViews
from tidegate.kube.port import Cluster, Manifest
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocation_view import AllocationObserved, Member, allocation_view
from tidegate.planning.carrying_out import Progress, Share, carry_out, given_up, put_back
from tidegate.planning.claims import Claim
from tidegate.planning.corrections import Corrections, corrections
from tidegate.planning.decision import Solved, newest_first, plan_decision, stale
from tidegate.planning.deployments import LiveWorkload
from tidegate.planning.freeze import freeze, next_begin
from tidegate.planning.overrides import JUST_AFTER, next_end
from tidegate.planning.pool_allocation import PoolAllocation, pool_allocation
from tidegate.planning.pool_claims import refuse_claim
from tidegate.planning.predicted import predicted
from tidegate.planning.shards_left import shards_left
from tidegate.planning.signals import Signals
from tidegate.planning.triggers import Circumstances, cause, trigger
from tidegate.resources.names import POOL_LABEL, label_value
from tidegate.runtime.clock import Clock
from tidegate.telemetry.tracing import DECISION, Attributes, failed, note, span
from tidegate_controllers.allocations import Allocations
from tidegate_controllers.allocator_metrics import AllocatorMetrics
from tidegate_controllers.autoscalers import Autoscalers
from tidegate_controllers.overrides import Overrides
from tidegate_controllers.placements import Placements
from tidegate_controllers.questions import Question, Questions
from tidegate_controllers.stores import Stores

FIELD_MANAGER: Final = "tidegate-allocator"
_UNTIL_KNOWN: Final = timedelta(milliseconds=200)
_ON_THE_WAY: Final = timedelta(seconds=1)
"""How soon to look again while pods come and go."""

_AT_ONCE: Final = 16
"""Statuses that are written at the same time."""

log: Final = structlog.stdlib.get_logger()


class Solver(Protocol):
    """Decides; runtime.solver_process.SolverProcess in a cluster."""

    async def solve(self, snapshot: AllocationSnapshot) -> Assignment:
        """Always an answer, and one that can be carried out."""
        ...


class Demand(Protocol):
    """Says what is asked of whom; telemetry's SignalWatch in a cluster."""

    async def read(self) -> Signals:
        """What may be relied on now. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class AllocatorParts:
    """What deciding needs besides the caches, and what outlives a term; `cluster` acts as FIELD_MANAGER."""

    cluster: Cluster
    solver: Solver
    demand: Demand
    autoscalers: Autoscalers
    questions: Questions
    metrics: AllocatorMetrics


@dataclass(frozen=True, slots=True)
class Pools:
    """What is known of pools, their slices and who has them."""

    pools: Parsed[ComputePool]
    inferences: Parsed[Inference]
    decisions: Parsed[AllocationDecision]
    views: PoolViews
    occupancy: Occupancy
    placements: Placements
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class _Look:
    """When a pool was last decided about, and under what circumstances."""

    at: float
    circumstances: Circumstances
    assignment: Assignment
    left_out: dict[ObjectKey, str]
    signals: Signals


class Allocator:
    """Observe, solve, write what is new, take the next step: one pass over one pool."""

    def __init__(
        self,
        parts: AllocatorParts,
        stores: Stores,
        known: Pools,
        allocations: Allocations,
        fence: Fence,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._stores = stores
        self._known = known
        self._allocations = allocations
        self._fence = fence
        self._clock = clock
        self._looks: dict[ObjectKey, _Look] = {}
        self._reclaimed: dict[str, set[ObjectKey]] = {}
        self._heard: tuple[float, Signals] | None = None
        self._corrections: dict[ObjectKey, Corrections] = {}
        self._cleared: dict[ObjectKey, str] = {}

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Decides when that is due, carries out what stands; returns when to look again."""
        pool = self._known.pools.get(key)
        if pool is None or pool.metadata.deletion_timestamp is not None:
            self._looks.pop(key, None)
            self._corrections.pop(key, None)
            self._parts.metrics.forget(key.name)
            self._allocations.forget(key)
            self._parts.questions.forget(key)
            return None
        interval = parse_duration(pool.spec.policy.interval)
        metrics = self._parts.metrics
        metrics.due(key.name, interval_s=interval.total_seconds(), now_s=self._clock.now().timestamp())
        self._known.occupancy.begin()
        if not self._known.occupancy.known:
            return _UNTIL_KNOWN
        began = self._clock.monotonic()
        observed = self._observe(pool)
        self._parts.metrics.overrides.labels(pool.metadata.name).set(len(_overrides_here(observed)))
        await self._clear(observed)
        await self._parts.autoscalers.bound(observed, self._fence)
        if not observed.scaled:
            await self._abandon(observed, "no Inference of the pool has spec.scaling any more")
        if not observed.scaled or not any(node.healthy for node in observed.slices.nodes):
            # Nothing to decide; or no node is heard of, and who would be lowered gave nobody anything.
            if not observed.scaled:
                self._correct_nothing(key)
            self._parts.questions.forget(key)
            self._parts.metrics.idle(observed.name)
            newest = observed.decisions[0].metadata.name if observed.decisions else None
            self._allocations.put(key, PoolAllocation(observed.mode, newest))
            return interval
        look = self._looks.get(key)
        due = self._due(observed, look, interval)
        if look is None or due is not None:
            with span("decide", {"tidegate.pool": observed.name}):
                look = await self._decide(observed, look, due or Trigger.STARTED)
        else:
            # A node that came since, and may be lost again, is known from now on.
            look = replace(look, circumstances=Circumstances.of(observed))
        self._looks[key] = look
        await self._carry_out(self._again(pool, look))
        observed = self._again(pool, look)
        self._allocations.put(key, pool_allocation(observed, look.assignment, look.left_out))
        if due is not None:
            seconds = self._clock.monotonic() - began
            self._parts.metrics.tick_seconds.labels(pool.metadata.name).observe(seconds)
        return self._next(observed, look, interval)

    def _next(self, observed: AllocationObserved, look: _Look, interval: timedelta) -> timedelta:
        due = max(interval - self._age(look), timedelta())
        if observed.standing is not None and observed.standing.executed:
            due = min(due, _ON_THE_WAY)
        turns = (
            next_end(observed.active),
            observed.frozen.until if observed.frozen is not None else None,
            next_begin(observed.pool.spec.policy.freeze, observed.now),
        )
        soonest = min((each for each in turns if each is not None), default=None)
        return due if soonest is None else min(due, max(soonest - observed.now, timedelta()) + JUST_AFTER)

    def _due(self, observed: AllocationObserved, look: _Look | None, interval: timedelta) -> Trigger | None:
        """Why it is to be decided now, if it is."""
        if look is None:
            return Trigger.STARTED
        at_once = trigger(look.circumstances, Circumstances.of(observed))
        return at_once or (Trigger.INTERVAL if self._age(look) >= interval else None)

    def _age(self, look: _Look) -> timedelta:
        return timedelta(seconds=self._clock.monotonic() - look.at)

    async def _decide(self, observed: AllocationObserved, last: _Look | None, due: Trigger) -> _Look:
        """Solves, and writes the decision if it is another one than that which stands.

        The first look of a process may know nothing of demand: what its predecessor began with better knowledge goes on.
        """
        if not observed.mode.executes:
            await self._abandon(observed, f"spec.policy.mode is {observed.mode.value} since")
        signals = await self._demand(parse_duration(observed.pool.spec.policy.interval))
        observed = self._correct(replace(self._observe(observed.pool), signals=signals))
        circumstances = Circumstances.of(observed)
        due = cause(due, last.circumstances if last is not None else None, circumstances)
        note({"tidegate.trigger": due.value})
        view = allocation_view(observed)
        self._parts.questions.put(observed.pool.key, Question(observed.now, observed.mode, view.snapshot))
        before = self._clock.monotonic()
        assignment = await self._parts.solver.solve(view.snapshot)
        seconds = self._clock.monotonic() - before
        note({"tidegate.method": assignment.method.value, "tidegate.solve_seconds": seconds})
        metrics, pool = self._parts.metrics, observed.name
        metrics.solve_seconds.labels(pool).observe(seconds)
        metrics.solves.labels(pool, assignment.method.value).inc()
        metrics.decided(pool, now_s=self._clock.now().timestamp(), signals_usable=not signals.problem)
        spares = choose_warm_spares(view.snapshot, assignment)
        solved = Solved(assignment, predicted(view.snapshot, assignment), due, seconds, spares)
        body = plan_decision(observed, solved)
        blind = due is Trigger.STARTED and bool(signals.problem) and observed.standing is not None
        if body is not None and not blind:
            await self._write(observed, body)
        return _Look(before, circumstances, assignment, dict(view.left_out), signals)

    def _correct_nothing(self, key: ObjectKey) -> None:
        if self._corrections.pop(key, None) is not None:
            self._parts.metrics.corrected(key.name, {})

    def _correct(self, observed: AllocationObserved) -> AllocationObserved:
        """The same with capacities as production has them."""
        key = observed.pool.key
        known = self._corrections[key] = corrections(self._corrections.get(key, {}), observed)
        factors = {member: each.correction for member, each in known.items()}
        self._parts.metrics.corrected(observed.name, {str(each): factors[each].factor for each in factors})
        return replace(observed, corrections=factors)

    async def _demand(self, interval: timedelta) -> Signals:
        """One look for pools that decide at about the same time: rates over less than half an interval would be noise."""
        now = self._clock.monotonic()
        if self._heard is None or now - self._heard[0] >= interval.total_seconds() / 2:
            self._heard = now, await self._parts.demand.read()
        return self._heard[1]

    async def _abandon(self, observed: AllocationObserved, why: str) -> None:
        """What was under way when nothing is to be carried out any more."""
        for each in observed.decisions[:1]:
            if each.executed and not each.finished:
                await self._allocate_all(put_back(observed), each)
                await self._end(each, given_up(observed, each, why))

    async def _write(self, observed: AllocationObserved, body: Manifest) -> None:
        name = body["metadata"]["name"]
        note({DECISION: name})
        for each in observed.decisions[:1]:
            if each.executed and not each.finished:
                await self._end(
                    each, given_up(observed, each, f"decided anew by {name} before all of it was there")
                )
                self._reclaimed.pop(each.metadata.name, None)
        stored = await self._parts.cluster.apply(body, self._fence)
        self._stores.decisions.observe("MODIFIED", stored)
        written = AllocationDecision.parse(stored)
        metrics, mode = self._parts.metrics, written.spec.mode.value
        metrics.decisions.labels(observed.name, mode).inc()
        for move in written.spec.moves:
            direction = "up" if move.after > move.before else "down"
            moved = abs(move.after - move.before) * move.slices
            metrics.moved_slices.labels(observed.name, mode, move.tier.value, direction).inc(moved)
        log.info("decided", pool=observed.name, decision=name, moves=written.spec.move_count, mode=mode)
        for old in stale(self._decisions(observed.name)):
            await self._parts.cluster.delete(
                ALLOCATION_DECISION, old.key, uid=old.metadata.uid, fence=self._fence
            )
            self._forget(self._stores.decisions, old.key)

    async def _carry_out(self, observed: AllocationObserved) -> None:
        standing = observed.standing
        if standing is None or not standing.executed:
            return
        progress = carry_out(observed, standing)
        await self._allocate_all(progress.writes, standing)
        self._count(standing, progress)
        if progress.outcome is not None:
            await self._end(standing, progress.outcome)

    def _count(self, decision: AllocationDecision, progress: Progress) -> None:
        """Each Inference that gave slices, once it is done."""
        known = self._reclaimed.setdefault(decision.metadata.name, set())
        for key, each in progress.reclaimed.items():
            if key not in known:
                known.add(key)
                self._parts.metrics.reclaim_seconds.labels(each.tier.value).observe(each.seconds)
        if progress.outcome is not None:
            self._reclaimed.pop(decision.metadata.name, None)

    async def _clear(self, observed: AllocationObserved) -> None:
        """Of an Inference that has a fixed number again nothing decided is kept; what somebody else has put there stays."""
        for member in observed.members:
            if member.scaled or member.inference.status.allocation is None:
                self._cleared.pop(member.key, None)
            elif self._cleared.get(member.key) != member.inference.metadata.uid:
                await self._status(member.key, {})
                self._cleared[member.key] = member.inference.metadata.uid

    async def _allocate_all(self, shares: Mapping[ObjectKey, Share], decision: AllocationDecision) -> None:
        """All that one step of a decision writes, a few at a time: a thousand Inferences one by one would take their time."""
        waiting = iter(shares.items())

        async def write() -> None:
            for key, share in waiting:
                described: Attributes = {
                    DECISION: decision.metadata.name,
                    "tidegate.inference": str(key),
                    "tidegate.replicas": share.replicas,
                }
                with span("allocate", described):
                    await self._allocate(key, share, decision)

        writers = [asyncio.ensure_future(write()) for _ in range(min(_AT_ONCE, len(shares)))]
        try:
            # The first error is the one to tell, as it was said; the others end before anybody looks again.
            await asyncio.gather(*writers)
        finally:
            for each in writers:
                each.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _allocate(self, key: ObjectKey, share: Share, decision: AllocationDecision) -> None:
        """What an Inference is to have by a decision."""
        name = decision.metadata.name
        spares = {"spares": share.spares} if share.spares else {}
        allocation = {"replicas": share.replicas, **spares, "decision": name, "epoch": self._fence.epoch}
        try:
            await self._status(key, {"allocation": allocation})
        except PermanentError as error:
            # One status that is refused holds nobody else up; the next look tries again.
            log.warning("allocation_refused", inference=str(key), error=str(error))
            failed(str(error))
        else:
            log.info(
                "allocated", inference=str(key), replicas=share.replicas, spares=share.spares, decision=name
            )

    async def _status(self, key: ObjectKey, status: Manifest) -> None:
        inference = self._known.inferences.get(key)
        if inference is None:
            return
        stored = await self._parts.cluster.apply_status(
            INFERENCE, key, status, uid=inference.metadata.uid, fence=self._fence
        )
        if stored is not None:
            self._stores.inferences.observe("MODIFIED", stored)

    async def _end(self, decision: AllocationDecision, status: Manifest) -> None:
        stored = await self._parts.cluster.apply_status(
            ALLOCATION_DECISION, decision.key, status, uid=decision.metadata.uid, fence=self._fence
        )
        if stored is not None:
            self._stores.decisions.observe("MODIFIED", stored)
        else:
            self._forget(self._stores.decisions, decision.key)

    @staticmethod
    def _forget(store: ObjectStore, key: ObjectKey) -> None:
        body = store.get(key)
        if body is not None:
            store.observe("DELETED", body)

    def _again(self, pool: ComputePool, look: _Look) -> AllocationObserved:
        return replace(self._observe(pool), signals=look.signals)

    def _observe(self, pool: ComputePool) -> AllocationObserved:
        name = pool.metadata.name
        slices = self._known.views.slices(pool)
        healthy = slices.healthy_nodes
        members: list[Member] = []
        elsewhere = leaving = 0
        for claim in self._known.placements.list_claims(name):
            inference = self._known.inferences.get(claim.key)
            if inference is None or not _wants(inference, name):
                leaving += claim.count_slices(0, healthy)
                continue
            unhealthy = [share for node, share in claim.nodes.items() if node not in healthy]
            elsewhere += sum(share.ready for share in unhealthy)
            lost = sum(share.not_ready for share in unhealthy)
            apart = _apart(inference, claim, self._known.placements.find_workload(claim.key))
            refusal = refuse_claim(pool, slices, claim)
            refused = refusal.message if refusal is not None else ""
            members.append(Member(inference, claim, claim.ready, apart, refused, lost))
        now = self._clock.now()
        return AllocationObserved(
            pool=pool,
            now=now,
            frozen=freeze(pool.spec.policy.freeze, now),
            slices=slices,
            members=tuple(members),
            leaving=leaving,
            serving_elsewhere=elsewhere,
            overrides=self._known.overrides.all(),
            decisions=self._decisions(name),
        )

    def _decisions(self, pool: str) -> tuple[AllocationDecision, ...]:
        """Those of one pool; the label may be a hash of a long name, and anybody may have set it."""
        bodies = self._stores.decisions.by_label(POOL_LABEL, label_value(pool))
        keys = (ObjectKey("", body["metadata"]["name"]) for body in bodies)
        found = (self._known.decisions.get(key) for key in keys)
        return newest_first(each for each in found if each is not None and each.spec.pool == pool)


def _wants(inference: Inference, pool: str) -> bool:
    placement = inference.spec.placement
    deleted = inference.metadata.deletion_timestamp is not None
    return not deleted and placement is not None and placement.pool == pool


def _apart(inference: Inference, claim: Claim, live: LiveWorkload | None) -> str:
    """Why nothing can be decided about an Inference now, or empty."""
    if live is None:
        # Of a batch that is done nobody misses the Job.
        missed = inference.status.allocation is not None and shards_left(inference) != 0
        return "its Deployment or Job is not there" if missed else ""
    if live.replicas and (live.pool != label_value(_pool_of(inference)) or live.slices != claim.slices):
        return "its pods are in another pool or of another size, and are replaced here as there is room"
    return ""


def _pool_of(inference: Inference) -> str:
    return inference.spec.placement.pool if inference.spec.placement is not None else ""


def _overrides_here(observed: AllocationObserved) -> tuple[str, ...]:
    keys = {member.key for member in observed.members} | {observed.pool.key}
    return tuple(each.metadata.name for each in observed.active if each.spec.target.key in keys)
