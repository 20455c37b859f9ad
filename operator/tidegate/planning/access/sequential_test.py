"""Bound the true share of failures by their count, with bounds that stay valid however often they are computed.

A test for a single evaluation gives a false alarm sooner or later if it runs every few seconds and stops at the first alarm.
Here the whole sequence of evaluations shares one probability of error.

For independent requests that fail with probability p, the likelihood of the observation, averaged over a Beta(a, b), relative to its likelihood under p, is

    M(p) = B(a + failures, b + successes) / (B(a, b) p^failures (1 - p)^successes)

It is a martingale under p with mean 1, so it ever reaches 1 / alpha with a probability of alpha at most (Ville's inequality).
All p with M(p) < 1 / alpha are therefore an interval that contains the true share at all times at once, with probability 1 - alpha.
(H. Robbins, Statistical methods related to the law of the iterated logarithm, 1970; S. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, 2021.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log, pi
from typing import Final

# Jeffreys' prior: as good for shares near 0 as for shares near 0.5.
_A: Final = 0.5
_B: Final = 0.5
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """Interval that contains the true share."""

    low: float
    high: float


def compute_share_bounds(failures: int, requests: int, alpha: float) -> ShareBounds:
    """Return the bounds of the share of failures after `failures` in `requests` requests.

    Over all evaluations together they are wrong with probability `alpha` at most.
    """
    if requests <= 0:
        return ShareBounds(0.0, 1.0)
    failures = min(max(failures, 0), requests)
    successes = requests - failures
    constant = _log_beta(_A + failures, _B + successes) - _log_beta(_A, _B) + log(alpha)
    observed = failures / requests

    def is_rejected(share: float) -> bool:
        return constant - _log_likelihood(failures, successes, share) >= 0

    low = 0.0 if failures == 0 else _find_edge(rejected_at=0.0, accepted_at=observed, is_rejected=is_rejected)
    high = (
        1.0 if successes == 0 else _find_edge(rejected_at=1.0, accepted_at=observed, is_rejected=is_rejected)
    )
    return ShareBounds(low, high)


def spend_alpha(alpha: float, test_number: int) -> float:
    """Return the part of `alpha` for test `test_number`, from 1, of an endless series that together keeps `alpha`.

    It is 6 / (pi n)^2, whose sum over all n is 1.
    """
    return alpha * 6 / (pi * test_number) ** 2


def _find_edge(*, rejected_at: float, accepted_at: float, is_rejected: Callable[[float], bool]) -> float:
    """Return the share between `rejected_at` and `accepted_at` at which rejection begins, by bisection.

    The result is on the rejected side, so that rounding widens the bounds.
    """
    outside, inside = rejected_at, accepted_at
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if is_rejected(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_likelihood(failures: int, successes: int, share: float) -> float:
    first = failures * log(share) if failures else 0.0
    second = successes * log(1 - share) if successes else 0.0
    return first + second


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
