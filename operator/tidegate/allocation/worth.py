"""What any number of replicas of one Inference is worth, and how far it falls short of what the Inference must have.

Values are per second, averaged over the steps of the horizon by their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import ceil, inf

from tidegate.allocation.snapshot import Inference, Placement, Pool, Snapshot
from tidegate.api.inference import Tier


class Level(IntEnum):
    """What is kept before what: nothing of a level is given up for all of those after it. Value comes after the last."""

    REALTIME_FLOOR = 0
    BUDGET = 1
    SPARE_NODE = 2
    NEARLINE_FLOOR = 3
    OFFLINE_FLOOR = 4
    CEILING = 5
    SLO = 6
    WARM_SPARES = 7


FLOOR_LEVELS: Mapping[Tier, Level] = {
    Tier.REALTIME: Level.REALTIME_FLOOR,
    Tier.NEARLINE: Level.NEARLINE_FLOOR,
    Tier.OFFLINE: Level.OFFLINE_FLOOR,
}
NOTHING = (0.0,) * len(Level)
_LEAST_FLOOR_WEIGHT = 1e-3
_NEGLIGIBLE = 1e-3


class Spot:
    """One Inference in one pool: what a replica takes there, how many there are, and what moving one costs.

    `cap`: as many as the pool and the Inference's maximum let there be; `beyond`: one more than the pool does, so that it is
    known what one more slice would earn. Costs are values per second of the horizon.
    """

    __slots__ = (
        "beyond",
        "cap",
        "down_cost",
        "frozen_down",
        "frozen_up",
        "held",
        "placement",
        "pool",
        "slices",
        "up_cost",
    )

    def __init__(self, snapshot: Snapshot, inference: Inference, placement: Placement, pool: Pool) -> None:
        self.placement = placement
        self.pool = pool.name
        self.slices = placement.slices
        self.held = placement.replicas.held
        most = _most(inference)
        self.cap = int(min(pool.slices // placement.slices, most))
        self.beyond = int(min(pool.slices // placement.slices + 1, most))
        # What the slices would have earned while nothing runs on them, by the last price.
        earned = pool.price * placement.slices / snapshot.horizon_s
        # Without a price a move is nearly free; what gains less than this share of a replica is still left alone.
        negligible = _NEGLIGIBLE * inference.value * placement.curve.at(1)
        self.up_cost = earned * placement.load_s + negligible
        self.down_cost = earned * placement.drain_s + negligible
        # Other tiers are what real-time demand is served from: theirs may go as soon as they are loaded.
        dwell_s = snapshot.dwell_s if inference.tier is Tier.REALTIME else 0.0
        self.frozen_down = placement.since_up_s < max(dwell_s, placement.load_s)
        self.frozen_up = placement.since_down_s < placement.load_s


class Asked:
    """Demand of the steps that are alike: `rate` per second, worth `value` each; `ready`: replicas started now count."""

    __slots__ = ("rate", "ready", "value", "weight")

    def __init__(self, rate: float, value: float, weight: float, *, ready: bool) -> None:
        self.rate = rate
        self.value = value
        self.weight = weight
        self.ready = ready


class Worth:
    """One Inference, ready to be asked about.

    `floor`: replicas in all pools that its bounds ask for. `needed` (in one pool): what its SLO takes.
    `spare_node` (in one pool): what its SLO takes with one node fewer. `most`: its upper bound, or infinity.
    """

    __slots__ = (
        "_levels",
        "_ready",
        "_values",
        "asked",
        "density",
        "floor",
        "floor_level",
        "floor_weight",
        "inference",
        "most",
        "needed",
        "nodes",
        "promised",
        "promised_without_node",
        "spare_node",
        "spots",
    )

    def __init__(self, snapshot: Snapshot, inference: Inference, pools: Mapping[str, Pool]) -> None:
        placements = sorted(inference.placements, key=lambda placement: placement.pool)
        self.inference = inference
        self.spots = tuple(Spot(snapshot, inference, each, pools[each.pool]) for each in placements)
        self.nodes = tuple(pools[each.pool].nodes for each in placements)
        self.asked = _asked(snapshot, inference)
        self.most = _most(inference)
        self.floor = inference.bounds.least
        if inference.load is None:
            self.floor = int(min(max(self.floor, inference.held), self.most))
        self.floor_level = FLOOR_LEVELS[inference.tier]
        self.floor_weight = 1.0
        self.density = max(inference.value * spot.placement.curve.at(1) / spot.slices for spot in self.spots)
        self._ready = all(asked.ready for asked in self.asked)
        self._values: dict[tuple[int, ...], float] = {}
        self._levels: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._promise()

    def _promise(self) -> None:
        self.promised = self.promised_without_node = 0.0
        self.needed = self.spare_node = 0
        rate = max((asked.rate for asked in self.asked), default=0.0)
        if self.inference.tier is not Tier.REALTIME or rate <= 0:
            return
        reach = [spot.placement.curve.at(spot.cap) for spot in self.spots]
        self.promised = min(rate, sum(reach))
        if len(self.spots) == 1:
            [spot], [nodes] = self.spots, self.nodes
            self.needed = min(spot.placement.curve.needed(self.promised) or 0, spot.cap)
            if nodes > 1:
                self.spare_node = min(_with_spare_node(self.needed, nodes), spot.cap)
        elif any(nodes > 1 for nodes in self.nodes):
            self.promised_without_node = min(rate, self._without_node(reach))

    @property
    def must(self) -> int:
        """In one pool: what floors, SLO and the loss of a node take together."""
        return max(self.floor, self.needed, self.spare_node)

    @property
    def highest(self) -> float:
        """In all pools: its maximum, which nothing exceeds by growing; what is held above it goes as the budget allows."""
        return max(self.most, self.inference.held)

    def weigh_floor(self, densest: float) -> None:
        """Floors of real-time models give way by value: `densest` is the most that a slice earns anywhere."""
        if self.floor_level is Level.REALTIME_FLOOR:
            self.floor_weight = max(self.density / densest, _LEAST_FLOOR_WEIGHT)

    def rates(self, replicas: Sequence[int]) -> list[float]:
        """Requests per second that so many replicas serve, by pool."""
        return [spot.placement.curve.at(count) for spot, count in zip(self.spots, replicas, strict=True)]

    def served(self, replicas: Sequence[int]) -> list[float]:
        """Requests per second that are served of each entry of `asked`."""
        capacity = sum(self.rates(replicas))
        before = capacity
        if any(not asked.ready for asked in self.asked):
            before = sum(
                self.rates([min(n, spot.held) for n, spot in zip(replicas, self.spots, strict=True)])
            )
        return [min(asked.rate, capacity if asked.ready else before) for asked in self.asked]

    def value(self, replicas: tuple[int, ...]) -> float:
        """Value per second of what is served."""
        found = self._values.get(replicas)
        if found is None:
            now = [min(count, spot.held) for count, spot in zip(replicas, self.spots, strict=True)]
            found = self._values[replicas] = self.earned(sum(self.rates(replicas)), sum(self.rates(now)))
        return found

    def earned(self, capacity: float, before: float) -> float:
        """Value per second of serving so many requests; `before`: until what is started now is ready."""
        total = 0.0
        for asked in self.asked:
            rate = capacity if asked.ready else before
            total += asked.value * (rate if rate < asked.rate else asked.rate)
        return total

    def levels(self, replicas: tuple[int, ...]) -> tuple[float, ...]:
        """How far each level is missed by this Inference alone: slices, by weight; SLO: value per second."""
        if len(replicas) == 1 and self.must <= replicas[0] <= self.most and self._ready:
            return NOTHING
        found = self._levels.get(replicas)
        if found is None:
            found = self._levels[replicas] = self._missed(replicas)
        return found

    def _missed(self, replicas: tuple[int, ...]) -> tuple[float, ...]:
        missed = list(NOTHING)
        total = sum(replicas)
        slices = min(spot.slices for spot in self.spots)
        missed[self.floor_level] += max(self.floor - total, 0) * slices * self.floor_weight
        missed[Level.CEILING] += max(total - self.most, 0) * slices
        if self.promised <= 0:
            return tuple(missed)
        if len(self.spots) == 1:
            missed[Level.SPARE_NODE] += max(self.spare_node - total, 0) * slices
        else:
            missed[Level.SPARE_NODE] += self.missed_without_node(replicas) * self.inference.value
        served = self.served(replicas)
        missed[Level.SLO] += sum(
            max(min(asked.rate, self.promised) - rate, 0.0) * asked.weight * self.inference.value
            for asked, rate in zip(self.asked, served, strict=True)
        )
        return tuple(missed)

    def missed_without_node(self, replicas: Sequence[int]) -> float:
        """Requests per second that could not be served when a node of the worst pool is lost."""
        if self.promised_without_node <= 0:
            return 0.0
        return max(self.promised_without_node - self._without_node(self.rates(replicas)), 0.0)

    def _without_node(self, rates: Sequence[float]) -> float:
        """What is left of `rates`, by pool, with one node fewer in the worst pool; those of one node have none to spare."""
        lost = (each / nodes for each, nodes in zip(rates, self.nodes, strict=True) if nodes > 1)
        return sum(rates) - max(lost, default=0.0)

    def move_cost(self, replicas: Sequence[int]) -> float:
        """Value per second lost by going from what is held to `replicas`."""
        cost = 0.0
        for spot, count in zip(self.spots, replicas, strict=True):
            change = count - spot.held
            cost += change * spot.up_cost if change > 0 else -change * spot.down_cost
        return cost


def _most(inference: Inference) -> float:
    return inf if inference.bounds.most is None else inference.bounds.most


def _with_spare_node(needed: int, nodes: int) -> int:
    """The fewest replicas, spread over `nodes`, of which `needed` are left when the fullest node is lost."""
    count = ceil(needed * nodes / (nodes - 1))
    while count - ceil(count / nodes) < needed:
        count += 1
    return count


def _asked(snapshot: Snapshot, inference: Inference) -> tuple[Asked, ...]:
    """Steps that ask the same are one. Replicas started now count from the step in which they are loaded, the last at latest."""
    load = inference.load
    if load is None:
        return ()
    load_s = min(placement.load_s for placement in inference.placements)
    grouped: dict[tuple[float, float, bool], float] = {}
    end_s = 0.0
    for number, (step, rate, weight) in enumerate(
        zip(snapshot.steps, load.rates, snapshot.weights, strict=True)
    ):
        end_s += step.seconds
        # In several pools what starts now counts at once: the program has one served rate per step, not per phase.
        ready = end_s >= load_s or number == len(load.rates) - 1 or len(inference.placements) > 1
        key = (rate, load.urgency[number] if load.urgency else 1.0, ready)
        grouped[key] = grouped.get(key, 0.0) + weight
    return tuple(
        Asked(rate, inference.value * urgency * weight, weight, ready=ready)
        for (rate, urgency, ready), weight in grouped.items()
    )
