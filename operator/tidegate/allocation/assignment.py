"""What was decided: replicas, moves in order, prices and reasons. Only values; the same inputs give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.inference import Tier


class Method(StrEnum):
    """How the answer was found."""

    MILP = "MILP"
    """Whole replicas by HiGHS, proven to be within the gap that was asked for."""
    LINEAR = "LP"
    """The linear program's answer, rounded and mended; the gap says how good it is at worst."""
    GREEDY = "Greedy"
    """No solver: slices to whoever gains most from the next one. No bound is known."""


class Action(StrEnum):
    """One kind of step."""

    PROMOTE = "Promote"
    """Give weight to a warm spare: no slice changes hands."""
    START = "Start"
    STOP = "Stop"
    """Weight to 0, drain, then end."""
    STOP_SPARE = "StopSpare"
    """End warm spares that nobody asks for any more."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Replicas of an Inference in a pool."""

    inference: str
    pool: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Move:
    """`replicas` of `inference` in `pool` are started or stopped, from `before` to `after` over the whole decision.

    Moves of one `wave` may run together. The next wave begins when what this one stopped is gone and what it started is ready.
    """

    wave: int
    action: Action
    inference: str
    tier: Tier
    pool: str
    replicas: int
    slices: int
    before: int
    after: int
    why: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint that holds the value down: one unit less of it would earn `price` more per second."""

    constraint: str
    price: float


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A rule that could not be kept: which, whose, and by how much."""

    rule: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One decision. `objective`, `bound`: value per second, less what moving costs; the bound is None where none is known.

    `gap`: (bound - objective) / bound. `prices`: by pool, what one more slice would earn per second.
    `postponed`: moves that wait for others to end, in words. `note`: why no better method was used, else empty.
    """

    replicas: tuple[Placed, ...]
    moves: tuple[Move, ...]
    bindings: tuple[Binding, ...]
    prices: tuple[tuple[str, float], ...]
    relaxed: tuple[Relaxation, ...]
    postponed: tuple[str, ...]
    objective: float
    bound: float | None
    gap: float | None
    method: Method
    note: str
    inputs_hash: str

    def of(self, inference: str, pool: str) -> int:
        """Replicas of an Inference in a pool. Raises KeyError for one that was not in the snapshot."""
        for placed in self.replicas:
            if (placed.inference, placed.pool) == (inference, pool):
                return placed.replicas
        raise KeyError(f"{inference} in {pool}")
