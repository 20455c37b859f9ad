"""Inputs of one decision as immutable values: pools, models, demand, curves, replicas, bounds and budgets.

Every number is checked on construction, so that the caller can leave out the one object that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import inf, isnan
from typing import Final

from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.errors import InvalidInputError, check_amount, check_count
from tidegate.api.inference import Tier

MIN_VALUE: Final = 1e-9
_SHARE_ERROR: Final = 1e-6
_MIN_EXPECTED_EVERY_S: Final = 1.0
DEFAULT_LOAD_S: Final = 30.0
"""Load time of a replica without a measurement."""
DEFAULT_DRAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TierRule:
    """Floor and ceiling of a tier in a pool, in slices; None is no limit."""

    tier: Tier
    floor: int = 0
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLossInput:
    """What the loss of nodes costs: each is lost once in `expected_every_s`, and that is noticed after `notice_s`.

    A request that is lost costs `lost_factor` times its value.
    """

    expected_every_s: float
    notice_s: float = 0.0
    lost_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolInput:
    """Pool of equal slices: `slices` are allocatable, on `nodes` nodes.

    `spares` slices stay free for real-time models, or have a warm model without weight. `budget` is how many slices may still
    move in the window, None for no limit. `hold` freezes the pool: only moves for safety happen.
    `price` is what one more slice would have earned in the last decision, in value per second; it is the cost of a move.
    `node_loss` prices the loss of a node; without it, every real-time Inference has what it takes to lose one, whatever the cost.
    """

    name: str
    slices: int
    nodes: int = 1
    spares: int = 0
    tiers: tuple[TierRule, ...] = ()
    budget: int | None = None
    hold: bool = False
    price: float = 0.0
    node_loss: NodeLossInput | None = None

    def __post_init__(self) -> None:
        path = f"pool {self.name}"
        for field, count in (("slices", self.slices), ("nodes", self.nodes), ("spares", self.spares)):
            check_count(f"{path}: {field}", count)
        check_count(f"{path}: budget", self.budget or 0)
        check_amount(f"{path}: price", self.price)
        if self.node_loss is not None:
            every = f"{path}: nodeLoss.expectedEvery"
            check_amount(every, self.node_loss.expected_every_s, minimum=_MIN_EXPECTED_EVERY_S)
            check_amount(f"{path}: nodeLoss.notice", self.node_loss.notice_s)
            check_amount(f"{path}: nodeLoss.lostFactor", self.node_loss.lost_factor)
        for rule in self.tiers:
            check_count(f"{path}: tiers.{rule.tier}.floor", rule.floor)
            if rule.ceiling is not None:
                check_count(f"{path}: tiers.{rule.tier}.ceiling", rule.ceiling, minimum=rule.floor)
        if len({rule.tier for rule in self.tiers}) < len(self.tiers):
            raise InvalidInputError(f"{path}: tiers", "has two rules for one tier; merge them")

    def limit_tier(self, tier: Tier) -> int:
        """Return the most slices that a tier may have: its ceiling, and what the floors of the others leave; may be negative."""
        limit = self.slices - sum(rule.floor for rule in self.tiers if rule.tier is not tier)
        ceilings = (rule.ceiling for rule in self.tiers if rule.tier is tier and rule.ceiling is not None)
        return min([limit, *ceilings])

    @property
    def movable_slices(self) -> int | None:
        """Return how many slices may move now; None is no limit."""
        return 0 if self.hold else self.budget


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """Floor and ceiling of an Inference's replicas over all pools, after overrides; the sources name their origin."""

    floor: int = 0
    ceiling: int | None = None
    floor_source: str = "its minimum"
    ceiling_source: str = "its maximum"


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Replicas by phase, as they will be after moves that were decided and are not yet observed.

    `draining` replicas hold slices and get no new requests. `spare` replicas are loaded and have no weight.
    """

    ready: int = 0
    loading: int = 0
    draining: int = 0
    spare: int = 0

    @property
    def current(self) -> int:
        """Return the replicas that are ready or loading."""
        return self.ready + self.loading


@dataclass(frozen=True, slots=True)
class NodeReplicas:
    """Ready replicas of an Inference on a node, warm spares included."""

    node: str
    replicas: int


@dataclass(frozen=True, slots=True)
class PlacementInput:
    """Pool that an Inference may use, with the slices per replica, its curve, its replicas and measured times there.

    `since_up_s` and `since_down_s` are the seconds since its replicas last rose and fell. `ready_by_node` has the nodes where it
    has ready replicas, the fullest first; empty if they are spread evenly. Of pools that are equally good, the one of the lowest
    `rank` gets new replicas first and gives them up last.
    """

    pool: str
    curve: CapacityCurve
    slices: int = 1
    replicas: ReplicaCounts = ReplicaCounts()
    load_s: float = DEFAULT_LOAD_S
    drain_s: float = DEFAULT_DRAIN_S
    since_up_s: float = inf
    since_down_s: float = inf
    ready_by_node: tuple[NodeReplicas, ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class ValueClass:
    """Requests of one value each, as a share of the demand."""

    value: float
    share: float


@dataclass(frozen=True, slots=True)
class DeadlineInput:
    """Delay within which each message is answered: that takes `rate` requests per second now, its backlog included."""

    rate: float
    max_delay_s: float


@dataclass(frozen=True, slots=True)
class DemandInput:
    """Demand per step, in requests per second (offline: slices that the remaining work can use).

    `urgency` multiplies the value in each step: near-line and offline work nears its deadline. Empty is 1 throughout.
    `expectation` is why these are not the present rates, like "expected within 5m", or empty.
    `elsewhere` is what serves requests beside these, like "2 replicas in gpu-b", or empty.
    `classes` divide the demand of each step by value, the highest first, which are served first. Empty: all requests have
    the model's value, or those that are served are no better than the others. `deadline` is for near-line work.
    """

    rates: tuple[float, ...]
    urgency: tuple[float, ...] = ()
    expectation: str = ""
    classes: tuple[ValueClass, ...] = ()
    deadline: DeadlineInput | None = None
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Model to place: the mean value of a request, its demand, and the pools where it may run.

    Without `load` the signals are missing or stale, and it keeps its replicas. With `keeps_node_spare` it has what it takes to
    lose a node, although its pool prices that loss. With `has_shared_spare` it holds nothing for that: a spare serves for it.
    """

    key: str
    tier: Tier
    placements: tuple[PlacementInput, ...]
    load: DemandInput | None
    bounds: ReplicaBounds = ReplicaBounds()
    value: float = 1.0
    keeps_node_spare: bool = False
    has_shared_spare: bool = False

    def __post_init__(self) -> None:
        path = f"inference {self.key}"
        check_amount(f"{path}: value", self.value, minimum=MIN_VALUE)
        check_count(f"{path}: bounds.floor", self.bounds.floor)
        if self.bounds.ceiling is not None:
            check_count(f"{path}: bounds.ceiling", self.bounds.ceiling, minimum=self.bounds.floor)
        if not self.placements:
            raise InvalidInputError(f"{path}: placements", "is empty; name a pool")
        if len({placement.pool for placement in self.placements}) < len(self.placements):
            raise InvalidInputError(f"{path}: placements", "names a pool twice")
        if self.load is not None:
            _check_load(path, self.load)
            if self.load.deadline is not None and self.tier is not Tier.NEARLINE:
                raise InvalidInputError(f"{path}: load.deadline", "is only for near-line work; leave it out")
        for placement in self.placements:
            _check_placement(f"{path}: placement {placement.pool}", placement)

    @property
    def value_layers(self) -> tuple[tuple[float, float], ...]:
        """Return pairs (share, value): serving a rate r of a demand d is worth the sum of value * min(r, share * d)."""
        classes = self.load.classes if self.load is not None else ()
        if not classes:
            return ((1.0, self.value),)
        layers: list[tuple[float, float]] = []
        reach = 0.0
        lower_values = (*(lower.value for lower in classes[1:]), 0.0)
        for value_class, lower_value in zip(classes, lower_values, strict=True):
            reach += value_class.share
            layers.append((reach, value_class.value - lower_value))
        return (*layers[:-1], (1.0, layers[-1][1]))

    def value_of_served(self, demand: float, rate: float) -> float:
        """Return the value per second of serving `rate` of `demand`, both in requests per second."""
        return sum(value * min(rate, share * demand) for share, value in self.value_layers)

    @property
    def current_replicas(self) -> int:
        """Return the current replicas in all pools."""
        return sum(placement.replicas.current for placement in self.placements)


@dataclass(frozen=True, slots=True)
class HorizonStep:
    """Step of the horizon; later ones have less weight."""

    seconds: float
    weight: float = 1.0


@dataclass(frozen=True)
class AllocationSnapshot:
    """Inputs of one decision; objects are sorted by name, so that their order has no effect.

    `dwell_s` is the stabilization window in seconds: how long a started real-time replica is not stopped again, except for safety. Replicas of other tiers are not
    stopped while they load.
    """

    pools: tuple[PoolInput, ...]
    inferences: tuple[ModelInput, ...]
    steps: tuple[HorizonStep, ...] = (HorizonStep(600.0),)
    dwell_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pools", tuple(sorted(self.pools, key=lambda pool: pool.name)))
        object.__setattr__(self, "inferences", tuple(sorted(self.inferences, key=lambda model: model.key)))
        check_amount("dwell_s", self.dwell_s)
        if not self.steps:
            raise InvalidInputError("steps", "is empty; give at least the present step")
        for number, step in enumerate(self.steps):
            check_amount(f"steps[{number}].seconds", step.seconds, minimum=1e-3)
            check_amount(f"steps[{number}].weight", step.weight, minimum=1e-9)
        self._check_names()
        for inference in self.inferences:
            load = inference.load
            if load is not None and len(load.rates) != len(self.steps):
                path = f"inference {inference.key}: load"
                raise InvalidInputError(path, f"has {len(load.rates)} steps, the snapshot {len(self.steps)}")

    def _check_names(self) -> None:
        names = {pool.name for pool in self.pools}
        if len(names) < len(self.pools):
            raise InvalidInputError("pools", "two pools have the same name")
        if len({inference.key for inference in self.inferences}) < len(self.inferences):
            raise InvalidInputError("inferences", "two models have the same key")
        for inference in self.inferences:
            for placement in inference.placements:
                if placement.pool not in names:
                    path = f"inference {inference.key}: placement {placement.pool}"
                    raise InvalidInputError(
                        path, f"there is no such pool; there are {', '.join(sorted(names)) or 'none'}"
                    )

    @cached_property
    def horizon_s(self) -> float:
        """Return the seconds that the decision looks ahead."""
        return sum(step.seconds for step in self.steps)

    @cached_property
    def step_weights(self) -> tuple[float, ...]:
        """Return the weight of each step; they sum to 1, so that values are per second of the horizon."""
        raw = [step.seconds * step.weight for step in self.steps]
        total = sum(raw)
        return tuple(weight / total for weight in raw)

    @cached_property
    def reclaim_s(self) -> Mapping[str, float]:
        """Return the longest drain time in each pool of Inferences whose slices others may take; absent without any."""
        longest: dict[str, float] = {}
        for model in self.inferences:
            if not model.tier.traits.preempts:
                for placement in model.placements:
                    longest[placement.pool] = max(longest.get(placement.pool, 0.0), placement.drain_s)
        return longest

    @cached_property
    def inputs_hash(self) -> str:
        """Return one hash of all inputs; equal hashes give equal assignments."""
        return sha256(repr(self).encode()).hexdigest()


def _check_load(path: str, load: DemandInput) -> None:
    for number, rate in enumerate(load.rates):
        check_amount(f"{path}: load.rates[{number}]", rate)
    for number, urgency in enumerate(load.urgency):
        check_amount(f"{path}: load.urgency[{number}]", urgency)
    if load.urgency and len(load.urgency) != len(load.rates):
        raise InvalidInputError(
            f"{path}: load.urgency", f"has {len(load.urgency)} steps, rates {len(load.rates)}"
        )
    if load.deadline is not None:
        check_amount(f"{path}: load.deadline.rate", load.deadline.rate)
        check_amount(f"{path}: load.deadline.maxDelay", load.deadline.max_delay_s, minimum=1e-3)
    _check_classes(f"{path}: load.classes", load.classes)


def _check_classes(path: str, classes: tuple[ValueClass, ...]) -> None:
    for number, value_class in enumerate(classes):
        check_amount(f"{path}[{number}].value", value_class.value)
        check_amount(f"{path}[{number}].share", value_class.share)
        if number and value_class.value >= classes[number - 1].value:
            raise InvalidInputError(
                f"{path}[{number}].value", "is not below the one before; sort the classes"
            )
    total = sum(value_class.share for value_class in classes)
    if classes and abs(total - 1.0) > _SHARE_ERROR:
        raise InvalidInputError(path, f"the shares sum to {total:g}; they must sum to 1")


def _check_placement(path: str, placement: PlacementInput) -> None:
    check_count(f"{path}: slices", placement.slices, minimum=1)
    for field, seconds in (("load_s", placement.load_s), ("drain_s", placement.drain_s)):
        check_amount(f"{path}: {field}", seconds)
    for field, seconds in (("since_up_s", placement.since_up_s), ("since_down_s", placement.since_down_s)):
        if isnan(seconds) or seconds < 0:
            raise InvalidInputError(
                f"{path}: {field}", f"{seconds} is not a duration; use inf when it never happened"
            )
    replicas = placement.replicas
    for field in ("ready", "loading", "draining", "spare"):
        check_count(f"{path}: replicas.{field}", getattr(replicas, field))
    counts = [item.replicas for item in placement.ready_by_node]
    for item in placement.ready_by_node:
        check_count(f"{path}: readyByNode.{item.node}", item.replicas, minimum=1)
    if counts != sorted(counts, reverse=True):
        raise InvalidInputError(f"{path}: readyByNode", "is not sorted; put the fullest node first")
    if len({item.node for item in placement.ready_by_node}) < len(counts):
        raise InvalidInputError(f"{path}: readyByNode", "names a node twice")
