"""All that a decision is made from, as immutable values: pools, Inferences, demand, curves, replicas by phase, bounds, budgets.

Every number is checked where it enters, so that the caller can leave out (or hold) the one object that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import inf, isnan
from typing import Final

from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.errors import InvalidInputError, check_amount, check_count
from tidegate.api.inference import Tier

_LEAST_VALUE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class TierRule:
    """How many slices of a pool a tier holds at least and at most; None: no limit."""

    tier: Tier
    floor: int = 0
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal slices: `slices` in good health, on `nodes` nodes.

    `spares`: slices kept free, or with a warm model without weight, for real-time.
    `budget`: slices that may still change hands in the window; None: no limit. `hold`: nothing moves except for safety.
    `price`: what one more slice would have earned in the last decision, in value per second; it is what moves cost.
    """

    name: str
    slices: int
    nodes: int = 1
    spares: int = 0
    tiers: tuple[TierRule, ...] = ()
    budget: int | None = None
    hold: bool = False
    price: float = 0.0

    def __post_init__(self) -> None:
        path = f"pool {self.name}"
        for field, count in (("slices", self.slices), ("nodes", self.nodes), ("spares", self.spares)):
            check_count(f"{path}: {field}", count)
        check_count(f"{path}: budget", self.budget or 0)
        check_amount(f"{path}: price", self.price)
        for rule in self.tiers:
            check_count(f"{path}: tiers.{rule.tier}.floor", rule.floor)
            if rule.ceiling is not None:
                check_count(f"{path}: tiers.{rule.tier}.ceiling", rule.ceiling, least=rule.floor)
        if len({rule.tier for rule in self.tiers}) < len(self.tiers):
            raise InvalidInputError(f"{path}: tiers", "names a tier twice")

    @property
    def movable(self) -> int | None:
        """Slices that may change hands now; None: no limit."""
        return 0 if self.hold else self.budget


@dataclass(frozen=True, slots=True)
class Bounds:
    """Replicas over all pools together, after overrides; the texts say whose bounds they are."""

    least: int = 0
    most: int | None = None
    least_by: str = "its minimum"
    most_by: str = "its maximum"


@dataclass(frozen=True, slots=True)
class Replicas:
    """By phase, moves that were decided and not yet seen included.

    `draining` ones still hold slices but serve nothing new; `spare` ones are loaded, have no weight, and count as spares.
    """

    ready: int = 0
    loading: int = 0
    draining: int = 0
    spare: int = 0

    @property
    def held(self) -> int:
        """Those that serve, or will."""
        return self.ready + self.loading


@dataclass(frozen=True, slots=True)
class Placement:
    """A pool that an Inference may use: slices per replica, its curve there, what it holds, measured times.

    `since_up_s` and `since_down_s`: seconds since its replicas last rose and fell.
    """

    pool: str
    curve: CapacityCurve
    slices: int = 1
    replicas: Replicas = Replicas()
    load_s: float = 30.0
    drain_s: float = 10.0
    since_up_s: float = inf
    since_down_s: float = inf


@dataclass(frozen=True, slots=True)
class Load:
    """Work offered, per step, in requests per second (offline: slices that the work left can use).

    `urgency` multiplies the value in each step: near-line and offline work nears its deadline. Empty: 1 throughout.
    """

    rates: tuple[float, ...]
    urgency: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Inference:
    """One model: what it is worth per request, what is asked of it, and where it may run.

    `load` None: the signals are missing or stale, so that it keeps what it has.
    """

    key: str
    tier: Tier
    placements: tuple[Placement, ...]
    load: Load | None
    bounds: Bounds = Bounds()
    value: float = 1.0

    def __post_init__(self) -> None:
        path = f"inference {self.key}"
        check_amount(f"{path}: value", self.value, least=_LEAST_VALUE)
        check_count(f"{path}: least", self.bounds.least)
        if self.bounds.most is not None:
            check_count(f"{path}: most", self.bounds.most, least=self.bounds.least)
        if not self.placements:
            raise InvalidInputError(f"{path}: placements", "is empty; name a pool")
        if len({placement.pool for placement in self.placements}) < len(self.placements):
            raise InvalidInputError(f"{path}: placements", "names a pool twice")
        if self.load is not None:
            _check_load(path, self.load)
        for placement in self.placements:
            _check_placement(f"{path}: placement {placement.pool}", placement)

    @property
    def held(self) -> int:
        """Replicas in all pools."""
        return sum(placement.replicas.held for placement in self.placements)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the horizon; later steps weigh less."""

    seconds: float
    weight: float = 1.0


@dataclass(frozen=True)
class Snapshot:
    """The inputs of one decision. Objects are sorted by name, so that their order says nothing.

    `dwell_s`: how long a real-time replica that was just started is not taken away again, unless for safety; those of other
    tiers are not while they load.
    """

    pools: tuple[Pool, ...]
    inferences: tuple[Inference, ...]
    steps: tuple[Step, ...] = (Step(600.0),)
    dwell_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pools", tuple(sorted(self.pools, key=lambda pool: pool.name)))
        object.__setattr__(self, "inferences", tuple(sorted(self.inferences, key=lambda each: each.key)))
        check_amount("dwell_s", self.dwell_s)
        if not self.steps:
            raise InvalidInputError("steps", "is empty; give the present one at least")
        for number, step in enumerate(self.steps):
            check_amount(f"steps[{number}].seconds", step.seconds, least=1e-3)
            check_amount(f"steps[{number}].weight", step.weight, least=1e-9)
        self._check_names()
        for inference in self.inferences:
            load = inference.load
            if load is not None and len(load.rates) != len(self.steps):
                path = f"inference {inference.key}: load"
                raise InvalidInputError(path, f"has {len(load.rates)} steps, the snapshot {len(self.steps)}")

    def _check_names(self) -> None:
        names = {pool.name for pool in self.pools}
        if len(names) < len(self.pools):
            raise InvalidInputError("pools", "two have one name")
        if len({inference.key for inference in self.inferences}) < len(self.inferences):
            raise InvalidInputError("inferences", "two have one key")
        for inference in self.inferences:
            for placement in inference.placements:
                if placement.pool not in names:
                    path = f"inference {inference.key}: placement {placement.pool}"
                    raise InvalidInputError(
                        path, f"there is no such pool; there are {', '.join(sorted(names)) or 'none'}"
                    )

    @cached_property
    def horizon_s(self) -> float:
        """Seconds that the decision looks ahead."""
        return sum(step.seconds for step in self.steps)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """What a second of each step counts; they sum to 1, so that values are per second of the horizon."""
        raw = [step.seconds * step.weight for step in self.steps]
        total = sum(raw)
        return tuple(each / total for each in raw)

    @cached_property
    def inputs_hash(self) -> str:
        """One hash of everything; two snapshots with the same one get the same assignment."""
        return sha256(repr(self).encode()).hexdigest()


def _check_load(path: str, load: Load) -> None:
    for number, rate in enumerate(load.rates):
        check_amount(f"{path}: load.rates[{number}]", rate)
    for number, urgency in enumerate(load.urgency):
        check_amount(f"{path}: load.urgency[{number}]", urgency)
    if load.urgency and len(load.urgency) != len(load.rates):
        raise InvalidInputError(
            f"{path}: load.urgency", f"has {len(load.urgency)} steps, rates {len(load.rates)}"
        )


def _check_placement(path: str, placement: Placement) -> None:
    check_count(f"{path}: slices", placement.slices, least=1)
    for field, seconds in (("load_s", placement.load_s), ("drain_s", placement.drain_s)):
        check_amount(f"{path}: {field}", seconds)
    for field, seconds in (("since_up_s", placement.since_up_s), ("since_down_s", placement.since_down_s)):
        if isnan(seconds) or seconds < 0:
            raise InvalidInputError(
                f"{path}: {field}", f"{seconds} is no time span; inf when it never happened"
            )
    replicas = placement.replicas
    for field in ("ready", "loading", "draining", "spare"):
        check_count(f"{path}: replicas.{field}", getattr(replicas, field))
