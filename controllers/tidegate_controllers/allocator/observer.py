"""Observes a pool for the allocator: its slices, its Inferences and its decisions, as the caches have them."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from tidegate.allocation.curves import linear_curve
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.planning.allocator.event_calendar import EventCalendar, read_calendar
from tidegate.planning.allocator.freeze import find_freeze
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.other_pools import OtherPool, count_reliable
from tidegate.planning.allocator.pool_group import MAX_POOLS, list_neighbours
from tidegate.planning.allocator.replica_times import ReplicaTimes, measure_decided_times
from tidegate.planning.allocator.spare_plan import PoolSparePlan
from tidegate.planning.batch.remaining_shards import count_remaining_shards
from tidegate.planning.inference.deployments import LiveWorkload
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.pool_claims import refuse_claim
from tidegate.resources.names import POOL_LABEL, to_label_value
from tidegate.runtime.clock import Clock
from tidegate_controllers.placements import SPARES_CLAIM, Placements
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_controllers.typed_caches import OverrideIndex

log: Final = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other pools of a pool's group as the caches have them; `note` names those that could not be observed, or is empty."""

    pools: tuple[AllocationObserved, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _DecidedTimes:
    """What the decisions about a pool show of its Inferences' times."""

    decisions: Sequence[AllocationDecision] = ()
    times: Mapping[str, ReplicaTimes] = field(default_factory=dict[str, ReplicaTimes])


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObserver:
    """Reads one pool's slices, Inferences, decisions and overrides from the caches, for the allocator."""

    pools: TypedCache[ComputePool]
    inferences: TypedCache[Inference]
    decisions: TypedCache[AllocationDecision]
    slices_cache: PoolSlicesCache
    occupancy: NodeOccupancy
    placements: Placements
    spares: SharedSpares
    overrides: OverrideIndex
    clock: Clock
    _event_leads: dict[ObjectKey, timedelta] = field(default_factory=dict[ObjectKey, timedelta], init=False)
    """How long before its start an event counted as near when each pool was last observed."""
    _decided_times: dict[ObjectKey, _DecidedTimes] = field(
        default_factory=dict[ObjectKey, _DecidedTimes], init=False
    )
    """Kept until the decisions change: 200 with 1,000 moves each take 20 ms, and are read each second while one is executed."""

    def observe_pool(self, pool: ComputePool) -> AllocationObserved:
        """Return the pool as the caches have it now, without what the solver adds: signals, corrections, forecasts, event demands, price and mixes."""
        name = pool.metadata.name
        slices = self.slices_cache.get_slices(pool)
        healthy = slices.healthy_nodes
        claims, decisions = self.placements.list_claims(name), self.list_decisions(name)
        times = self._measure_times(pool.key, decisions)
        members: list[PoolMember] = []
        ready_on_unhealthy = departing = reserved = 0
        for claim in claims:
            if claim.key == SPARES_CLAIM:
                reserved = claim.count_slices(0, healthy)
                continue
            inference = self.inferences.get(claim.key)
            if inference is None or not _asks_for_pool(inference, name):
                departing += claim.count_slices(0, healthy)
                continue
            unhealthy = [share for node, share in claim.nodes.items() if node not in healthy]
            ready_on_unhealthy += sum(share.ready for share in unhealthy)
            lost = sum(share.not_ready for share in unhealthy)
            narrowed = inference.narrow_to_pool(name)
            exclusion_reason = self._find_exclusion_reason(narrowed, claim, name)
            refusal = refuse_claim(pool, slices, claim)
            refusal_message = refusal.message if refusal is not None else ""
            member = PoolMember(
                narrowed,
                claim,
                claim.ready,
                exclusion_reason,
                refusal_message,
                lost,
                times=times.get(str(claim.key), ReplicaTimes()).include_pods(claim.load_s),
            )
            members.append(self._add_other_pools(member, inference, name))
        now = self.clock.now()
        calendar = self._read_calendar(pool, members, now)
        return AllocationObserved(
            pool=pool,
            now=now,
            freeze=find_freeze(pool.spec.policy.freeze, now),
            calendar=calendar,
            slices=slices,
            members=tuple(members),
            departing_slices=departing,
            unhealthy_node_slices=ready_on_unhealthy,
            spare_slices=reserved,
            live_spares=self.spares.list_live(pool.key),
            spare_plan=self.spares.get_plan(pool.key) or PoolSparePlan(),
            overrides=self.overrides.list_all(),
            decisions=decisions,
        )

    def _add_other_pools(self, member: PoolMember, inference: Inference, pool: str) -> PoolMember:
        """Return the member with its replicas and free slices in the other pools of spec.placement.pools.

        Return it unchanged if it has one pool or no spec.scaling.
        """
        placement = inference.spec.placement
        if not member.has_several_pools or placement is None or inference.spec.scaling is None:
            return member
        names = [share.name for share in placement.pool_shares]
        pools: list[OtherPool] = []
        for index, share in enumerate(placement.pool_shares):
            claim = self.placements.find_claim(inference.key, share.name)
            if share.name == pool or claim is None:
                continue
            other_member = PoolMember(inference.narrow_to_pool(share.name), claim, claim.ready)
            allocation = other_member.inference.status.allocation
            decided = other_member.assigned_replicas if allocation is None else allocation.replicas
            free = self.placements.count_room(inference, share)
            pools.append(
                OtherPool(
                    replicas=count_reliable(
                        decided, other_member.serving_pods, other_member.assigned_replicas + free
                    ),
                    ready=other_member.serving_pods,
                    room=free if self._is_auto(share.name) else 0,
                    curve=other_member.usable_curve or linear_curve(0.0),
                    is_before=index < names.index(pool),
                    name=share.name,
                )
            )
        return replace(member, other_pools=tuple(pools), all_pools=inference)

    def observe_group(self, observed: AllocationObserved, deciding: Collection[str]) -> Neighbours:
        """Return the other pools that Inferences connect a pool with, also by way of others; the nearest if they are too many.

        Pools that are not among those `deciding`, or whose decisions are not executed, are left out, and so are those that only
        they connect. One that cannot be observed is left out too, with a note.
        """
        neighbours: dict[str, AllocationObserved] = {}
        failed: dict[str, str] = {}
        waiting = deque([observed])
        while waiting:
            for name in list_neighbours(waiting.popleft()):
                pool = self.pools.get(ObjectKey("", name))
                if (
                    name in {observed.name, *neighbours, *failed}
                    or pool is None
                    or len(neighbours) + 1 == MAX_POOLS
                ):
                    continue
                if name not in deciding or not self._is_auto(name):
                    continue
                try:
                    neighbours[name] = self.observe_pool(pool)
                except Exception as error:
                    # The other pool's own tick fails with the same error, and is counted there.
                    log.error("neighbour_not_observed", pool=observed.name, neighbour=name, exc_info=error)
                    failed[name] = type(error).__name__
                else:
                    waiting.append(neighbours[name])
        note = "; ".join(f"solved without {name}: {error}" for name, error in sorted(failed.items()))
        return Neighbours(tuple(neighbours[name] for name in sorted(neighbours)), note)

    def _is_auto(self, name: str) -> bool:
        """Return whether a pool is in mode Auto: only then are its free slices assigned."""
        pool = self.pools.get(ObjectKey("", name))
        return pool is not None and pool.spec.policy.mode is PolicyMode.AUTO

    def _find_exclusion_reason(self, inference: Inference, claim: PoolClaim, pool: str) -> str:
        placement = inference.spec.placement
        share = placement.find_share(pool) if placement is not None else None
        live = self.placements.find_pool_workload(inference, share) if share is not None else None
        return _explain_exclusion(inference, claim, live, pool)

    def _read_calendar(
        self, pool: ComputePool, members: Iterable[PoolMember], now: datetime
    ) -> EventCalendar:
        key, load_times_s = pool.key, (member.times.load_s for member in members)
        calendar = read_calendar(pool.spec.policy, load_times_s, now, self._event_leads.get(key, timedelta()))
        self._event_leads[key] = calendar.lead
        return calendar

    def _measure_times(
        self, pool: ObjectKey, decisions: Sequence[AllocationDecision]
    ) -> Mapping[str, ReplicaTimes]:
        """Return the times that the decisions about a pool show, by the Inference that their moves name."""
        decided = self._decided_times.get(pool, _DecidedTimes())
        # The cache parses each body once, so the decisions are the same objects until one of them changes.
        if decided.decisions != decisions:
            decided = self._decided_times[pool] = _DecidedTimes(decisions, measure_decided_times(decisions))
        return decided.times

    def forget_pool(self, key: ObjectKey) -> None:
        """Forget a pool that was deleted."""
        self._event_leads.pop(key, None)
        self._decided_times.pop(key, None)

    def list_decisions(self, pool: str) -> tuple[AllocationDecision, ...]:
        """Return the decisions of one pool, the newest first.

        The label may be a hash of a long name, and anyone may have set it, so the spec is checked.
        """
        bodies = self.decisions.store.by_label(POOL_LABEL, to_label_value(pool))
        keys = (ObjectKey("", body["metadata"]["name"]) for body in bodies)
        decisions = (self.decisions.get(key) for key in keys)
        return sort_newest_first(
            decision for decision in decisions if decision is not None and decision.spec.pool == pool
        )


def _asks_for_pool(inference: Inference, pool: str) -> bool:
    placement = inference.spec.placement
    deleted = inference.metadata.deletion_timestamp is not None
    return not deleted and placement is not None and placement.find_share(pool) is not None


def _explain_exclusion(inference: Inference, claim: PoolClaim, live: LiveWorkload | None, pool: str) -> str:
    """Return why an Inference is excluded from decisions now; empty if it is not."""
    if live is None:
        placement = inference.spec.placement
        # With several pools, a pool has no Deployment while it has no replicas, or while none of them has slices yet.
        is_expected = inference.status.allocation is not None and (
            placement is None or placement.pools is None
        )
        # A completed batch needs no Job.
        is_missing = is_expected and count_remaining_shards(inference) != 0
        return "its Deployment or Job does not exist" if is_missing else ""
    if live.replicas and (live.pool != to_label_value(pool) or live.slices != claim.slices):
        return "its pods run in another pool or have another number of slices; they are replaced in this pool as slices become free"
    return ""
