"""Values of one decision: replicas, ordered moves, prices and reasons; equal inputs give equal bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.inference import Tier


class SolveMethod(StrEnum):
    """Way in which an answer was found."""

    MILP = "MILP"
    """Whole replicas by HiGHS, proven to be within the requested gap."""
    LINEAR = "LP"
    """The linear program's answer, rounded and repaired; the gap bounds its distance from the optimum."""
    GREEDY = "Greedy"
    """No solver: each slice goes to the replica that gains most from it. No bound is known."""


class MoveAction(StrEnum):
    """Kind of a move."""

    PROMOTE = "Promote"
    """Give weight to a warm spare; no slice changes its Inference."""
    START = "Start"
    STOP = "Stop"
    """Set the weight to 0, drain, then delete the pod."""
    STOP_SPARE = "StopSpare"
    """Delete warm spares that the pool no longer needs."""


@dataclass(frozen=True, slots=True)
class AssignedReplicas:
    """Replicas of an Inference in a pool."""

    inference: str
    pool: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Move:
    """Start or stop of `replicas` of `inference` in `pool`; `before` and `after` are those of the whole decision.

    Moves of one `wave` may run together. The next wave begins when the replicas that this one stopped are gone and those
    that it started are ready.
    """

    wave: int
    action: MoveAction
    inference: str
    tier: Tier
    pool: str
    replicas: int
    slices: int
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class BindingConstraint:
    """Constraint that limits the value: relaxing it by one unit would earn `price` more per second."""

    constraint: str
    price: float


@dataclass(frozen=True, slots=True)
class RelaxedRule:
    """Rule that the decision does not keep, the object it belongs to, and by how much."""

    rule: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Result of one decision.

    `objective` and `bound` are values per second less the cost of moves; the bound is None where none is known.
    `gap` is (bound - objective) / bound. `prices` maps a pool to what one more slice would earn per second.
    `postponed` describes moves that wait for others to end. `note` says why no better method was used, else it is empty.
    """

    replicas: tuple[AssignedReplicas, ...]
    moves: tuple[Move, ...]
    bindings: tuple[BindingConstraint, ...]
    prices: tuple[tuple[str, float], ...]
    relaxed: tuple[RelaxedRule, ...]
    postponed: tuple[str, ...]
    objective: float
    bound: float | None
    gap: float | None
    method: SolveMethod
    note: str
    inputs_hash: str

    def get_price(self, pool: str) -> float:
        """Return what one more slice of a pool would earn, in value per second; 0 for a pool that the snapshot does not have."""
        return dict(self.prices).get(pool, 0.0)

    def get_replicas(self, inference: str, pool: str) -> int:
        """Return the replicas of an Inference in a pool; raise KeyError for a pair that the snapshot does not have."""
        for assigned in self.replicas:
            if (assigned.inference, assigned.pool) == (inference, pool):
                return assigned.replicas
        raise KeyError(f"{inference} in {pool}")
