"""Value of each number of replicas of an Inference, and by how much it violates the Inference's own rules.

Values are per second, averaged over the steps of the horizon by their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import inf

from tidegate.allocation.node_loss import LossPrice, NodeSpread, make_spread, price_losses, sum_losses
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    ModelInput,
    NodeLossInput,
    PlacementInput,
    PoolInput,
)
from tidegate.api.inference import Tier


class RulePriority(IntEnum):
    """Priority of a rule: one priority is never traded for any number of lower ones; value comes after the last."""

    REALTIME_FLOOR = 0
    BUDGET = 1
    SPARE_NODE = 2
    NEARLINE_FLOOR = 3
    OFFLINE_FLOOR = 4
    CEILING = 5
    SLO = 6
    DEADLINE = 7
    WARM_SPARES = 8


FLOOR_PRIORITIES: Mapping[Tier, RulePriority] = {
    Tier.REALTIME: RulePriority.REALTIME_FLOOR,
    Tier.NEARLINE: RulePriority.NEARLINE_FLOOR,
    Tier.OFFLINE: RulePriority.OFFLINE_FLOOR,
}
NO_VIOLATIONS = (0.0,) * len(RulePriority)
_MIN_FLOOR_WEIGHT = 1e-3
_MIN_GAIN = 1e-3
_MIN_SPARE_GAIN = 1e-6
"""The same where losses of nodes have a price, which is small beside what a replica serves: spares use slices that are free."""


class PoolOption:
    """Inference in one pool: the slices of a replica, the current replicas, and the cost of moving one.

    `cap` is the most replicas that the pool and the Inference's ceiling allow. `cap_plus_one` allows the pool one more, to
    find out what one more slice would earn. Costs are values per second of the horizon.
    """

    __slots__ = (
        "cap",
        "cap_plus_one",
        "current",
        "down_cost",
        "frozen_down",
        "frozen_up",
        "placement",
        "pool",
        "slices",
        "up_cost",
    )

    def __init__(
        self, snapshot: AllocationSnapshot, model: ModelInput, placement: PlacementInput, pool: PoolInput
    ) -> None:
        self.placement = placement
        self.pool = pool.name
        self.slices = placement.slices
        self.current = placement.replicas.current
        ceiling = _ceiling_of(model)
        self.cap = int(min(pool.slices // placement.slices, ceiling))
        self.cap_plus_one = int(min(pool.slices // placement.slices + 1, ceiling))
        # A move costs what its slices would have earned, by the last price, while nothing runs on them.
        earned = pool.price * placement.slices / snapshot.horizon_s
        # Without a price a move would be free: ask for a gain of at least this share of a replica's value.
        gain_share = _MIN_GAIN if find_loss(model, pool) is None else _MIN_SPARE_GAIN
        negligible = gain_share * model.value * placement.curve.rate_at(1)
        self.up_cost = earned * placement.load_s + negligible * (1 + placement.rank)
        self.down_cost = earned * placement.drain_s + negligible / (1 + placement.rank)
        # A tier that preempts takes slices from the others, so their replicas may stop as soon as they are loaded.
        dwell_s = snapshot.dwell_s if model.tier.traits.preempts else 0.0
        self.frozen_down = placement.since_up_s < max(dwell_s, placement.load_s)
        self.frozen_up = placement.since_down_s < placement.load_s


class DemandStep:
    """Demand of equal steps: `rate` per second, worth `value` each; `ready`: replicas that start now serve in them.

    Demand of several values has an entry for each value: its rate and all higher ones together, and how much more a request
    of it is worth than one of the next lower value. `slo_value` is the value without urgency, where the SLO promises the rate.
    A deadline has an entry of its own, whose requests have no other value.
    """

    __slots__ = (
        "rate",
        "ready",
        "slo_value",
        "value",
    )

    def __init__(self, rate: float, value: float, slo_value: float, *, ready: bool) -> None:
        self.rate = rate
        self.value = value
        self.slo_value = slo_value
        self.ready = ready


class ModelUtility:
    """Value and rules of one Inference, prepared for many evaluations.

    `floor` and `ceiling` bound its replicas in all pools; the ceiling may be infinite. `promised_rate` is what its SLO takes, or
    its deadline where it is near-line work, which has the priority `promise`; for an Inference in one pool `slo_replicas` serve
    that. It is either strict about the loss of a node, and `reserve_replicas` is what its SLO takes
    with one node less; or the loss has a price, `loss_price`, which is part of the value. In several pools the price is left to
    the decision about each pool. `spread` is how replicas are on nodes; None without an SLO, in several pools, and with one node.
    """

    __slots__ = (
        "_rations_moves",
        "_ready",
        "_values",
        "_violations",
        "ceiling",
        "demand",
        "floor",
        "floor_priority",
        "floor_weight",
        "is_strict",
        "loss_price",
        "model",
        "nodes",
        "options",
        "promise",
        "promised_rate",
        "promised_rate_without_node",
        "reserve_replicas",
        "slo_replicas",
        "spread",
        "value_density",
    )

    def __init__(
        self, snapshot: AllocationSnapshot, model: ModelInput, pools: Mapping[str, PoolInput]
    ) -> None:
        placements = sorted(model.placements, key=lambda placement: placement.pool)
        self.model = model
        self.options = tuple(
            PoolOption(snapshot, model, placement, pools[placement.pool]) for placement in placements
        )
        self.nodes = tuple(pools[placement.pool].nodes for placement in placements)
        self.demand = _group_demand(snapshot, model)
        self.ceiling = _ceiling_of(model)
        self.floor = model.bounds.floor
        if model.load is None:
            self.floor = int(min(max(self.floor, model.current_replicas), self.ceiling))
        self.floor_priority = FLOOR_PRIORITIES[model.tier]
        self.floor_weight = 1.0
        self.value_density = max(
            model.value * option.placement.curve.rate_at(1) / option.slices for option in self.options
        )
        self.is_strict = model.keeps_node_spare or any(
            pools[placement.pool].node_loss is None for placement in placements
        )
        self._ready = all(demand_step.ready for demand_step in self.demand)
        self._rations_moves = False
        self._values: dict[tuple[int, ...], float] = {}
        self._violations: dict[tuple[int, ...], tuple[float, ...]] = {}
        self.loss_price: LossPrice | None = None
        self._set_promises()
        self._set_loss_price(snapshot, pools[placements[0].pool])

    def _set_promises(self) -> None:
        """Set the rate that the SLO promises, with all nodes and with one less, and the replicas that it takes."""
        self.promised_rate = self.promised_rate_without_node = 0.0
        self.slo_replicas = self.reserve_replicas = 0
        self.spread: NodeSpread | None = None
        has_slo, load = self.model.tier.traits.has_slo, self.model.load
        self.promise = RulePriority.SLO if has_slo else RulePriority.DEADLINE
        rate = max((demand_step.rate for demand_step in self.demand), default=0.0)
        if not has_slo:
            rate = min(rate, load.deadline.rate) if load is not None and load.deadline is not None else 0.0
        if rate <= 0:
            return
        reach = [option.placement.curve.rate_at(option.cap) for option in self.options]
        self.promised_rate = min(rate, sum(reach))
        if len(self.options) == 1:
            [option], [nodes] = self.options, self.nodes
            self.slo_replicas = min(option.placement.curve.replicas_for(self.promised_rate) or 0, option.cap)
            if has_slo and nodes > 1:
                placed = [item.replicas for item in option.placement.ready_by_node]
                self.spread = make_spread(nodes, placed, self.slo_replicas, is_strict=self.is_strict)
                self.reserve_replicas = min(self.spread.count_covering(self.slo_replicas), option.cap)
        elif has_slo and self.is_strict and any(nodes > 1 for nodes in self.nodes):
            self.promised_rate_without_node = min(rate, self._rate_without_node(reach))

    def _set_loss_price(self, snapshot: AllocationSnapshot, pool: PoolInput) -> None:
        """Turn the node reserve into a price, where the pool has one for the loss of a node."""
        if self.model.has_shared_spare:
            self.reserve_replicas = 0
            return
        node_loss, spread = find_loss(self.model, pool), self.spread
        if node_loss is None or spread is None:
            return
        covering, self.reserve_replicas = self.reserve_replicas, 0
        if covering <= self.slo_replicas:
            return
        option = self.options[0]
        curve, rate, needed = option.placement.curve, self.promised_rate, self.slo_replicas
        outage_s = node_loss.notice_s + snapshot.reclaim_s.get(pool.name, 0.0) + option.placement.load_s
        share = min(outage_s / node_loss.expected_every_s, 1.0 / pool.nodes)
        factor = self.model.value * node_loss.lost_factor * share
        points = price_losses(curve, rate, needed, covering, spread, factor)
        lost_rate = sum_losses(curve, rate, needed, spread) / spread.count_nodes(needed)
        self.loss_price = LossPrice(points, outage_s, lost_rate * outage_s)

    @property
    def required_replicas(self) -> int:
        """Return the replicas that floor, SLO or deadline, and node reserve ask for together, for an Inference in one pool."""
        return max(self.floor, self.slo_replicas, self.reserve_replicas)

    @property
    def max_replicas(self) -> float:
        """Return the most replicas in all pools to scale up to: its ceiling, or the current ones above it.

        Replicas above the ceiling stop as the budget allows.
        """
        return max(self.ceiling, self.model.current_replicas)

    def weigh_floor(self, densest: float) -> None:
        """Weigh the floor of a real-time model by its value; `densest` is the most that a slice earns anywhere."""
        if self.floor_priority is RulePriority.REALTIME_FLOOR:
            self.floor_weight = max(self.value_density / densest, _MIN_FLOOR_WEIGHT)

    def ration_moves(self) -> None:
        """Let stops cost SLO as much as the start that they are for, because the SLOs cannot all be kept.

        Otherwise each tick would move replicas for the least difference between two models that both miss theirs.
        """
        self._rations_moves = True

    def rates_at(self, replicas: Sequence[int]) -> list[float]:
        """Return the requests per second that the replicas serve, by pool."""
        return [
            option.placement.curve.rate_at(count)
            for option, count in zip(self.options, replicas, strict=True)
        ]

    def served_rates(self, replicas: Sequence[int]) -> list[float]:
        """Return the served requests per second of each entry of `demand`."""
        capacity = sum(self.rates_at(replicas))
        before = capacity
        if any(not demand_step.ready for demand_step in self.demand):
            before = sum(
                self.rates_at(
                    [min(count, option.current) for count, option in zip(replicas, self.options, strict=True)]
                )
            )
        return [
            min(demand_step.rate, capacity if demand_step.ready else before) for demand_step in self.demand
        ]

    def value_at(self, replicas: tuple[int, ...]) -> float:
        """Return the value per second of the requests served, less what is lost with nodes on average."""
        value = self._values.get(replicas)
        if value is None:
            existing = [
                min(count, option.current) for count, option in zip(replicas, self.options, strict=True)
            ]
            value = self._values[replicas] = self.value_of_rates(
                sum(self.rates_at(replicas)), sum(self.rates_at(existing))
            ) - self.loss_at(sum(replicas))
        return value

    def value_of_rates(self, capacity: float, before: float) -> float:
        """Return the value per second of serving `capacity`, and `before` until new replicas are ready."""
        total = 0.0
        for demand_step in self.demand:
            rate = capacity if demand_step.ready else before
            total += demand_step.value * (rate if rate < demand_step.rate else demand_step.rate)
        return total

    def loss_at(self, replicas: int) -> float:
        """Return the value per second that the loss of nodes costs on average; 0 where it has no price."""
        return 0.0 if self.loss_price is None else self.loss_price.value_at(replicas)

    def violations_at(self, replicas: tuple[int, ...]) -> tuple[float, ...]:
        """Return the violation of each priority by this Inference alone: weighted slices; for the SLO value per second."""
        if (
            len(replicas) == 1
            and self.required_replicas <= replicas[0] <= self.ceiling
            and self._ready
            and not self._rations_moves
        ):
            return NO_VIOLATIONS
        violations = self._violations.get(replicas)
        if violations is None:
            violations = self._violations[replicas] = self._compute_violations(replicas)
        return violations

    def _compute_violations(self, replicas: tuple[int, ...]) -> tuple[float, ...]:
        violations = list(NO_VIOLATIONS)
        total = sum(replicas)
        slices = min(option.slices for option in self.options)
        violations[self.floor_priority] += max(self.floor - total, 0) * slices * self.floor_weight
        violations[RulePriority.CEILING] += max(total - self.ceiling, 0) * slices
        if self._rations_moves:
            violations[self.promise] += sum(
                max(option.current - count, 0) * (option.down_cost + option.up_cost)
                for option, count in zip(self.options, replicas, strict=True)
            )
        if self.promised_rate <= 0:
            return tuple(violations)
        if len(self.options) == 1:
            violations[RulePriority.SPARE_NODE] += max(self.reserve_replicas - total, 0) * slices
        else:
            violations[RulePriority.SPARE_NODE] += self.unserved_without_node(replicas) * self.model.value
        served = self.served_rates(replicas)
        violations[self.promise] += sum(
            max(min(demand_step.rate, self.promised_rate) - rate, 0.0) * demand_step.slo_value
            for demand_step, rate in zip(self.demand, served, strict=True)
        )
        return tuple(violations)

    def unserved_without_node(self, replicas: Sequence[int]) -> float:
        """Return the requests per second of the SLO that could not be served if the worst pool lost a node."""
        if self.promised_rate_without_node <= 0:
            return 0.0
        return max(self.promised_rate_without_node - self._rate_without_node(self.rates_at(replicas)), 0.0)

    def _rate_without_node(self, rates: Sequence[float]) -> float:
        """Return what is left of `rates`, by pool, with one node less in the worst pool of several nodes."""
        lost = (rate / nodes for rate, nodes in zip(rates, self.nodes, strict=True) if nodes > 1)
        return sum(rates) - max(lost, default=0.0)

    def move_cost(self, replicas: Sequence[int]) -> float:
        """Return the value per second lost by moving from the current replicas to `replicas`."""
        cost = 0.0
        for option, count in zip(self.options, replicas, strict=True):
            change = count - option.current
            cost += change * option.up_cost if change > 0 else -change * option.down_cost
        return cost


def find_loss(model: ModelInput, pool: PoolInput) -> NodeLossInput | None:
    """Return what the loss of a node costs a model, so that replicas in reserve are worth it or not; None if it has no price."""
    may_have_price = pool.nodes > 1 and model.tier.traits.has_slo and len(model.placements) == 1
    return pool.node_loss if may_have_price and not model.keeps_node_spare else None


def _ceiling_of(model: ModelInput) -> float:
    return inf if model.bounds.ceiling is None else model.bounds.ceiling


def _group_demand(snapshot: AllocationSnapshot, model: ModelInput) -> tuple[DemandStep, ...]:
    """Group equal steps of the demand.

    Replicas that start now count from the step in which they are loaded, from the last one at latest.
    """
    load = model.load
    if load is None:
        return ()
    load_s = min(placement.load_s for placement in model.placements)
    grouped: dict[tuple[float, float, bool], float] = {}
    end_s = 0.0
    for number, (step, rate, weight) in enumerate(
        zip(snapshot.steps, load.rates, snapshot.step_weights, strict=True)
    ):
        end_s += step.seconds
        # In several pools new replicas count at once: the program has one served rate per step, not per phase.
        ready = end_s >= load_s or number == len(load.rates) - 1 or len(model.placements) > 1
        key = (rate, load.urgency[number] if load.urgency else 1.0, ready)
        grouped[key] = grouped.get(key, 0.0) + weight
    has_slo = model.tier.traits.has_slo
    demand = [
        DemandStep(rate * share, value * urgency * weight, value * weight if has_slo else 0.0, ready=ready)
        for (rate, urgency, ready), weight in grouped.items()
        for share, value in model.value_layers
    ]
    if load.deadline is not None:
        demand += [
            DemandStep(min(rate, load.deadline.rate), 0.0, model.value * weight, ready=ready)
            for (rate, _, ready), weight in grouped.items()
        ]
    return tuple(demand)
