"""Choose the concurrency to try next, on one replica or on several, and find their throughput within the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.inference import MAX_JOINT_CAPACITIES

_GAIN: Final = 1.05
"""A doubling that gains less than this factor counts as flat; after _FLAT_TRIES of them the search ends."""
_FLAT_TRIES: Final = 2


@dataclass(frozen=True, slots=True)
class RandomInputs:
    """The shape of random requests: rows, the length of every other free dimension, and the largest whole number.

    `shared_inputs` have one row, as clients send them.
    """

    rows: int = 1
    length: int = 1
    largest: int = 1
    seed: int = 0
    shared_inputs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConcurrencyResult:
    """The result of `concurrency` simultaneous requests to each of one or more replicas, for a while."""

    concurrency: int
    requests_per_s: float
    latency_p50_s: float
    latency_p99_s: float
    errors: int = 0

    def meets_slo(self, slo_s: float | None) -> bool:
        """Return whether all requests were answered, and 99 of 100 within the SLO."""
        return not self.errors and (slo_s is None or self.latency_p99_s <= slo_s)


@dataclass(frozen=True, slots=True)
class JointResult:
    """The best result of several replicas at the same time."""

    replicas: int
    result: ConcurrencyResult


def choose_concurrency(measured: Sequence[ConcurrencyResult], slo_s: float | None, limit: int) -> int | None:
    """Return the concurrency to try next, up to `limit`; None once the search is done.

    It doubles until the SLO is missed or throughput stops rising, then tries once between the last two. The tries are few
    on purpose, since each takes seconds of a replica that may serve other callers.
    """
    if not measured:
        return 1
    tried = {result.concurrency for result in measured}
    passed = [result.concurrency for result in measured if result.meets_slo(slo_s)]
    failed = [result.concurrency for result in measured if not result.meets_slo(slo_s)]
    if failed:
        stepped_back = measured[-1].concurrency < max(tried)
        between = (max(passed, default=0) + min(failed)) // 2
        return between if passed and not stepped_back and between not in tried else None
    if max(tried) >= limit or _is_flat(measured):
        return None
    return min(max(tried) * 2, limit)


def choose_joint_concurrency(
    measured: Sequence[ConcurrencyResult], slo_s: float | None, alone: int
) -> int | None:
    """Return the concurrency to try next on each of several replicas; None once the search is done.

    It begins with the best one of a replica `alone`, since replicas that share nodes are never faster. It halves until the SLO is
    met, then tries once between the last two.
    """
    if not measured:
        return alone
    last = measured[-1]
    passed = [result.concurrency for result in measured if result.meets_slo(slo_s)]
    if not passed:
        return last.concurrency // 2 or None
    if passed != [last.concurrency] or last.concurrency == alone:
        return None
    between = (last.concurrency + measured[-2].concurrency) // 2
    return between if between > last.concurrency else None


def list_replica_counts(ready: int) -> Sequence[int]:
    """Return how many of `ready` replicas to measure at the same time: 2, 4, 8, … and all of them."""
    doubled = [2**power for power in range(1, MAX_JOINT_CAPACITIES) if 2**power < ready]
    return [*doubled, ready]


def find_best_result(measured: Sequence[ConcurrencyResult], slo_s: float | None) -> ConcurrencyResult | None:
    """Return the result with the highest throughput within the SLO; None if even one request at a time missed it."""
    return max(
        (result for result in measured if result.meets_slo(slo_s)),
        key=lambda result: result.requests_per_s,
        default=None,
    )


def explain_end(measured: Sequence[ConcurrencyResult], slo_s: float | None, limit: int) -> str:
    """Explain to a person why the search ended."""
    last = max(measured, key=lambda result: result.concurrency)
    if last.errors:
        return f"{last.errors} requests failed at concurrency {last.concurrency}"
    if slo_s is not None and not last.meets_slo(slo_s):
        p99_ms, slo_ms = last.latency_p99_s * 1_000, slo_s * 1_000
        return f"p99 was {p99_ms:.1f} ms at concurrency {last.concurrency}, above {slo_ms:g} ms"
    if _is_flat(measured):
        return f"throughput rose no more up to concurrency {last.concurrency}"
    return (
        f"concurrency {limit} is the most that was allowed"
        if last.concurrency >= limit
        else "the time limit was reached"
    )


def _is_flat(measured: Sequence[ConcurrencyResult]) -> bool:
    rates = [result.requests_per_s for result in sorted(measured, key=lambda result: result.concurrency)]
    if len(rates) <= _FLAT_TRIES:
        return False
    return max(rates[-_FLAT_TRIES:]) < _GAIN * max(rates[:-_FLAT_TRIES])
