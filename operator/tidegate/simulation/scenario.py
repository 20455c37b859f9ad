"""Inputs of a simulation: a pool, its Inferences, and the demand for each in every interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from functools import cached_property

from tidegate.allocation.curves import CapacityCurve, fit_joint_curve
from tidegate.allocation.errors import InvalidInputError, check_amount, check_count
from tidegate.allocation.shared_spares import SpareRules
from tidegate.allocation.snapshot import DEFAULT_DRAIN_S, DEFAULT_LOAD_S, PoolInput
from tidegate.api.inference import Tier
from tidegate.planning.allocator.event_calendar import EventCalendar

MAX_INTERVALS = 200_000


@dataclass(frozen=True)
class SimulatedModel:
    """An Inference; `replica_rate` is what one replica serves within the SLO, in requests per second (offline: slices).

    `together`: what several replicas serve at the same time, as (replicas, requests per second).
    `load_s` is the time from a decision until a new replica serves, `drain_s` that until a stopped one frees its slices.
    """

    key: str
    tier: Tier
    replica_rate: float
    slices: int = 1
    value: float = 1.0
    floor: int = 0
    ceiling: int | None = None
    load_s: float = DEFAULT_LOAD_S
    drain_s: float = DEFAULT_DRAIN_S
    keeps_node_spare: bool = False
    together: Sequence[tuple[int, float]] = ()

    def __post_init__(self) -> None:
        path = f"inference {self.key}"
        check_amount(f"{path}: capacity", self.replica_rate, minimum=1e-9)
        check_count(f"{path}: slices", self.slices, minimum=1)
        check_amount(f"{path}: value", self.value, minimum=1e-9)
        check_count(f"{path}: minReplicas", self.floor)
        if self.ceiling is not None:
            check_count(f"{path}: maxReplicas", self.ceiling, minimum=self.floor)
        for name, seconds in (("load time", self.load_s), ("drain time", self.drain_s)):
            check_amount(f"{path}: {name}", seconds)

    @cached_property
    def capacity_curve(self) -> CapacityCurve:
        """Return the requests per second that this many replicas serve."""
        return fit_joint_curve(self.replica_rate, self.together)

    @property
    def value_density(self) -> float:
        """Return the value per second that a busy slice serves."""
        return self.value * self.replica_rate / self.slices

    def count_needed(self, rate: float) -> int:
        """Return the fewest replicas that serve a rate, within the bounds."""
        return self.limit_replicas(self.capacity_curve.useful_replicas_for(rate))

    def limit_replicas(self, replicas: int) -> int:
        """Return a number of replicas within the bounds."""
        limited = max(replicas, self.floor)
        return limited if self.ceiling is None else min(limited, self.ceiling)


@dataclass(frozen=True, slots=True)
class NodeOutage:
    """Loss of a node at `start_s`, until it is back at `end_s`. Controllers notice both at the next interval."""

    node: int
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        path = f"outage of node {self.node}"
        check_count(path, self.node)
        check_amount(f"{path}: start", self.start_s)
        check_amount(f"{path}: end", self.end_s)
        if self.end_s <= self.start_s:
            raise InvalidInputError(f"{path}: end", f"{self.end_s:g} is not after its start {self.start_s:g}")


@dataclass(frozen=True)
class Scenario:
    """A pool, its models sorted by key, and their demand.

    `demand` has the rate of each model in each interval of `interval_s` seconds, in requests per second (offline: slices that
    the remaining work can use). `history` has rates of the intervals before, which policies may look at. The demand begins at
    `begin` and repeats by the hours of `zone`, and `calendar` has the events that the allocator plans for. `outages` are the nodes that are lost, in the order of
    their start. With `spare_rules`, real-time Inferences share spares, which get the share of the decided
    replicas that do not serve; with `spares_take_overflow`, as gateways do, also what these have no capacity for.
    """

    pool: PoolInput
    models: tuple[SimulatedModel, ...]
    demand: Mapping[str, Sequence[float]]
    interval_s: float = 60.0
    dwell_s: float = 300.0
    history: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    begin: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    zone: tzinfo = UTC
    calendar: EventCalendar = field(default_factory=EventCalendar)
    outages: Sequence[NodeOutage] = ()
    spare_rules: SpareRules | None = None
    spares_take_overflow: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(sorted(self.models, key=lambda model: model.key)))
        if not self.models:
            raise InvalidInputError("inferences", "is empty; a simulation needs at least one")
        if len({model.key for model in self.models}) < len(self.models):
            raise InvalidInputError("inferences", "two have the same name")
        if not 1 <= self.interval_s <= 3600:
            raise InvalidInputError("interval", f"{self.interval_s:g} s is not between 1 s and an hour")
        missing = [model.key for model in self.models if not self.demand.get(model.key)]
        if missing:
            raise InvalidInputError(f"demand of {missing[0]}", "is missing; the trace has no rate for it")
        lengths = {len(self.demand[model.key]) for model in self.models}
        if len(lengths) > 1:
            raise InvalidInputError("demand", f"has between {min(lengths)} and {max(lengths)} intervals")
        if self.interval_count > MAX_INTERVALS:
            raise InvalidInputError(
                "demand", f"has {self.interval_count} intervals, more than {MAX_INTERVALS}"
            )
        self._check_outages()
        for model in self.models:
            for number, rate in enumerate(self.demand[model.key]):
                check_amount(f"demand of {model.key}: interval {number}", rate)

    def _check_outages(self) -> None:
        ends: dict[int, float] = {}
        last_s = 0.0
        for outage in self.outages:
            path = f"outage of node {outage.node}"
            if outage.node >= self.pool.nodes:
                raise InvalidInputError(path, f"the pool has {self.pool.nodes} nodes, the first is 0")
            if outage.start_s < last_s:
                raise InvalidInputError(
                    path, f"starts at {outage.start_s:g}, before the one before it: sort them"
                )
            if outage.start_s < ends.get(outage.node, 0.0):
                raise InvalidInputError(
                    path, f"starts at {outage.start_s:g}, while the node is lost until {ends[outage.node]:g}"
                )
            last_s, ends[outage.node] = outage.start_s, outage.end_s

    @property
    def interval_count(self) -> int:
        """Return the number of intervals."""
        return len(self.demand[self.models[0].key])

    @property
    def assignable_slices(self) -> int:
        """Return the slices without those that the pool keeps for warm spares."""
        return max(self.pool.slices - self.pool.spares, 0)

    def pool_without(self, nodes: int) -> PoolInput:
        """Return the pool while this many of its nodes are lost."""
        remaining = max(self.pool.nodes - nodes, 0)
        slices = self.pool.slices * remaining // self.pool.nodes if nodes else self.pool.slices
        return replace(self.pool, nodes=remaining, slices=slices)

    @cached_property
    def tier_limits(self) -> Mapping[Tier, int]:
        """Return the most slices of each tier: its ceiling, and what the floors of the others leave."""
        assignable = replace(self.pool, slices=self.assignable_slices, spares=0)
        return {tier: max(assignable.limit_tier(tier), 0) for tier in Tier}

    @cached_property
    def by_key(self) -> Mapping[str, SimulatedModel]:
        """Return the models by key."""
        return {model.key: model for model in self.models}

    def select_tier(self, tier: Tier) -> tuple[SimulatedModel, ...]:
        """Return the models of a tier, those first whose slices earn most."""
        models = [model for model in self.models if model.tier is tier]
        return tuple(sorted(models, key=lambda model: (-model.value_density, model.key)))
