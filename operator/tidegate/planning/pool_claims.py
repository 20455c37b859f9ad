"""What everybody claims of one pool, and the share of each: what `share_out` gives, kept up to date change by change.

Who waits stands in a queue, and the queue is cut into blocks that know how much room all of theirs take, and how little the most
modest of them. So a share is found by a look at each block instead of each claim: with n claims a change costs about √n steps.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.claims import Claim
from tidegate.planning.compute_pool import readiness
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.sharing_out import STILL_GIVES, Admission, Ledger

_BLOCK: Final = 64
"""Claims of a block at least, but for the last; twice as many are cut in two. About √10,000."""

_Rank = tuple[str, ObjectKey]
"""The older first; of two of one age the name decides."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one claim wants in one round."""

    rank: _Rank
    slices: int
    """Of each replica."""
    before: int
    """Replicas that it has before."""
    replicas: int
    """Replicas that it wants to have after."""
    has: int
    """Slices that it has before; those beyond its replicas are room for itself alone."""

    @property
    def least(self) -> int:
        """The room with which it gets at least one replica more."""
        return (self.before + 1) * self.slices - self.has

    @property
    def whole(self) -> int:
        """The room that it takes where it gets all that it wants."""
        return max(self.replicas * self.slices - self.has, 0)

    def more(self, room: int) -> int:
        """How many more replicas it gets where so many slices are left."""
        left = room + self.has - self.before * self.slices
        return max(min(self.replicas - self.before, left // self.slices), 0)

    def takes(self, room: int) -> int:
        """Of so many slices, those that are its own then."""
        return max((self.before + self.more(room)) * self.slices - self.has, 0)


class _Block:
    """Some wishes that come one after the other."""

    def __init__(self, wishes: list[_Wish]) -> None:
        self.wishes = wishes
        self._sums: tuple[int, int] | None = None

    @property
    def last(self) -> _Rank:
        return self.wishes[-1].rank

    @property
    def sums(self) -> tuple[int, int]:
        """The room with which any of it gets something, and the room that all of it takes."""
        if self._sums is None:
            self._sums = min(wish.least for wish in self.wishes), sum(wish.whole for wish in self.wishes)
        return self._sums

    def insert(self, wish: _Wish) -> None:
        self.wishes.insert(_place(self, wish.rank), wish)
        self._sums = None

    def remove(self, wish: _Wish) -> None:
        del self.wishes[_place(self, wish.rank)]
        self._sums = None

    def serve(self, room: int) -> int:
        """The room that is left after all of it."""
        least, whole = self.sums
        if room < least:
            return room
        if whole <= room and room >= 0:
            return room - whole
        for wish in self.wishes:
            room -= wish.takes(room)
        return room


class _Queue:
    """The wishes of one tier in one round, in the order in which they are served."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def put(self, wish: _Wish) -> None:
        """Takes it in at its rank, where there is none."""
        if not self._blocks:
            self._blocks.append(_Block([wish]))
            return
        at = min(self._block(wish.rank), len(self._blocks) - 1)
        block = self._blocks[at]
        block.insert(wish)
        if len(block.wishes) >= 2 * _BLOCK:
            self._blocks[at : at + 1] = [_Block(block.wishes[:_BLOCK]), _Block(block.wishes[_BLOCK:])]

    def remove(self, wish: _Wish) -> None:
        """Takes it out again."""
        at = self._block(wish.rank)
        block = self._blocks[at]
        block.remove(wish)
        if not block.wishes:
            del self._blocks[at]

    def serve(self, room: int) -> int:
        """The room that is left after everybody."""
        for block in self._blocks:
            room = block.serve(room)
        return room

    def room_for(self, wish: _Wish, room: int) -> int:
        """The room that is left for one of its wishes."""
        at = self._block(wish.rank)
        for block in self._blocks[:at]:
            room = block.serve(room)
        for before in self._blocks[at].wishes:
            if before.rank >= wish.rank:
                break
            room -= before.takes(room)
        return room

    def gains(self, room: int) -> Iterator[tuple[_Wish, int]]:
        """Those that get more replicas, and how many."""
        for block in self._blocks:
            least, _ = block.sums
            if room < least:
                continue
            for wish in block.wishes:
                more = wish.more(room)
                if more:
                    yield wish, more
                room -= wish.takes(room)

    def _block(self, rank: _Rank) -> int:
        return bisect_left(self._blocks, rank, key=lambda block: block.last)


def _place(block: _Block, rank: _Rank) -> int:
    return bisect_left(block.wishes, rank, key=lambda wish: wish.rank)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A claim as it is counted."""

    claim: Claim
    has: int
    """Slices that it has with what it keeps."""
    wishes: tuple[_Wish | None, _Wish | None]
    """Of the round in which replicas are given, and of that of warm spares; None where it wants none."""


class Shares:
    """What each claim is given of a pool, as `share_out` gives it; until the next change of the claims or of the pool."""

    def __init__(
        self,
        entries: Mapping[ObjectKey, _Entry],
        rounds: Sequence[Mapping[Tier, _Queue]],
        ledger: Ledger,
        *,
        gives: bool,
    ) -> None:
        """Serves all queues; `ledger` has what everybody keeps, and where not `gives`, that is all."""
        self.ledger = ledger
        """Who has how many slices once everybody has theirs."""
        self._entries = entries
        self._served: list[dict[Tier, tuple[_Queue, int]]] = []
        for queues in rounds if gives else ():
            served: dict[Tier, tuple[_Queue, int]] = {}
            for tier in Tier:
                room = ledger.room(tier)
                served[tier] = queues[tier], room
                ledger.has[tier] += room - queues[tier].serve(room)
            self._served.append(served)

    def replicas(self, key: ObjectKey) -> int:
        """Pods for one claim: those that it keeps, and those that it is given. Raises KeyError where there is none."""
        entry = self._entries[key]
        replicas = entry.claim.kept
        for served, wish in zip(self._served, entry.wishes, strict=False):
            if wish is not None:
                queue, room = served[entry.claim.tier]
                replicas += wish.more(queue.room_for(wish, room))
        return replicas

    def gains(self) -> Mapping[ObjectKey, int]:
        """Pods for each claim that is given more than it keeps."""
        gains: dict[ObjectKey, int] = {}
        for served in self._served:
            for queue, room in served.values():
                for wish, more in queue.gains(room):
                    gains[wish.rank[1]] = wish.before + more
        return gains


class PoolClaims:
    """Everybody's claims on one pool, put and removed one by one."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._by_key: dict[ObjectKey, Claim] = {}
        self._changed: set[ObjectKey] = set()
        """Those that are not counted yet as they are."""
        self._entries: dict[ObjectKey, _Entry] = {}
        self._seated: set[ObjectKey] = set()
        """Those that have pods of which it matters on which nodes they are."""
        self._rounds = tuple({tier: _Queue() for tier in Tier} for _ in range(2))
        self._has = dict.fromkeys(Tier, 0)
        self._under: tuple[ComputePool, PoolSlices] | None = None
        self._shares: Shares | None = None
        for claim in claims:
            self.put(claim)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._by_key.values())

    def keys(self) -> Sequence[ObjectKey]:
        """Whose they are."""
        return tuple(self._by_key)

    def waiting(self) -> Sequence[ObjectKey]:
        """Those that want more than they keep."""
        return tuple(claim.key for claim in self._by_key.values() if claim.kept < claim.replicas)

    def put(self, claim: Claim) -> None:
        """In place of the one that its Inference had, if it had one."""
        if self._by_key.get(claim.key) != claim:
            self._by_key[claim.key] = claim
            self._changed.add(claim.key)

    def remove(self, key: ObjectKey) -> None:
        """The Inference wants nothing here any more, and has nothing; it may never have."""
        if self._by_key.pop(key, None) is not None:
            self._changed.add(key)

    def shares(self, pool: ComputePool, slices: PoolSlices) -> Shares:
        """What each is given of `pool`, whose `slices` these are. Costs what has changed since it was last asked."""
        self._look_at(pool, slices)
        if self._changed:
            admission = Admission.of(pool, slices)
            for key in self._changed:
                self._count(key, admission, slices.healthy_nodes)
            self._changed.clear()
            self._shares = None
        if self._shares is None:
            ledger = Ledger(pool.spec.tiers, slices.healthy, slices.healthy_nodes, dict(self._has))
            gives = readiness(pool, slices).reason in STILL_GIVES
            self._shares = Shares(self._entries, self._rounds, ledger, gives=gives)
        return self._shares

    def _look_at(self, pool: ComputePool, slices: PoolSlices) -> None:
        """Has those counted again for whom another pool, or other nodes of it, make a difference."""
        before, self._under = self._under, (pool, slices)
        if before is None or (before[0] is not pool and before[0].spec != pool.spec):
            self._changed.update(self._by_key)
        elif before[1] is slices:
            return
        elif before[1].largest != slices.largest:
            self._changed.update(self._by_key)
        elif before[1].healthy_nodes is not slices.healthy_nodes:
            self._changed.update(self._seated)
        self._shares = None

    def _count(self, key: ObjectKey, admission: Admission, nodes: frozenset[str]) -> None:
        before, claim = self._entries.pop(key, None), self._by_key.get(key)
        if before is not None:
            self._has[before.claim.tier] -= before.has
            for queues, wish in zip(self._rounds, before.wishes, strict=True):
                if wish is not None:
                    queues[before.claim.tier].remove(wish)
        self._seated.discard(key)
        if claim is None:
            return
        if claim.pods:
            self._seated.add(key)
        has = claim.has(claim.kept, nodes)
        waits = claim.kept < claim.replicas and admission.refusal(claim) is None
        entry = self._entries[key] = _Entry(claim, has, _wishes(claim, has) if waits else (None, None))
        self._has[claim.tier] += has
        for queues, wish in zip(self._rounds, entry.wishes, strict=True):
            if wish is not None:
                queues[claim.tier].put(wish)


def _wishes(claim: Claim, has: int) -> tuple[_Wish | None, _Wish | None]:
    """For its replicas, and then for its spares.

    The second is written as if the first had been granted in whole: where it was not, there is no room for one replica more, and
    the room of a tier never grows while shares are given out.
    """
    rank, needed = (claim.made, claim.key), claim.replicas - claim.spares
    replicas = spares = None
    kept = claim.kept
    if needed > kept:
        replicas = _Wish(rank, claim.slices, kept, needed, has)
        kept, has = needed, max(has, needed * claim.slices)
    if claim.replicas > kept:
        spares = _Wish(rank, claim.slices, kept, claim.replicas, has)
    return replicas, spares
