"""Measure how long replicas load and drain in a pool, as its decisions and its pods show it, and how early they have to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from statistics import median
from typing import Final

from tidegate.api.allocation_decision import AllocationDecision, DecidedMove
from tidegate.planning.pools.claims import MAX_REPLICA_TIME_S

MAX_LEAD: Final = timedelta(hours=1)
"""How far ahead demand counts at most; spec.policy.forecast.horizon has the same limit."""


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """Median times of the replicas of one Inference in one pool, in seconds; None where nothing shows it.

    `load_s` is the time until a new replica serves, from when its slices are free; `drain_s` the time from a decision until a
    stopped replica has freed its slices.
    """

    load_s: float | None = None
    drain_s: float | None = None

    def include_pods(self, pod_load_s: float | None) -> ReplicaTimes:
        """Return the times that decisions and ready pods show together; `pod_load_s` is the median of the pods, in seconds.

        The shorter load time counts, because what disturbs a measurement lengthens it: a change of leader that of a decision,
        and many others that start at the same time that of a pod.
        """
        if pod_load_s is None:
            return self
        return replace(self, load_s=pod_load_s if self.load_s is None else min(self.load_s, pod_load_s))


def measure_decided_times(decisions: Iterable[AllocationDecision]) -> Mapping[str, ReplicaTimes]:
    """Return the times that the decisions about one pool show, by the Inference that their moves name.

    A decision has one time for all that it gives and one for all that it takes. A load time is therefore that of the decisions
    that gave slices to this Inference alone and took none: it is unknown whether replicas waited for slices that others gave up.
    A drain time is that of the decisions that took slices from this Inference alone.
    Times of more than MAX_REPLICA_TIME_S are not counted.
    """
    loads: dict[str, list[float]] = {}
    drains: dict[str, list[float]] = {}
    for decision in decisions:
        outcome, moves = decision.status.outcome, decision.spec.moves
        if outcome is None:
            continue
        givers = [move for move in moves if move.after < move.before]
        takers = [move for move in moves if move.after > move.before]
        if len(givers) == 1 and outcome.reclaim_seconds is not None:
            _add_time(drains, givers[0], outcome.reclaim_seconds)
        if not givers and len(takers) == 1 and not takers[0].promoted and outcome.applied_at is not None:
            _add_time(loads, takers[0], (outcome.applied_at - decision.spec.at).total_seconds())
    return {
        name: ReplicaTimes(_find_median(loads.get(name)), _find_median(drains.get(name)))
        for name in loads.keys() | drains.keys()
    }


def _add_time(times: dict[str, list[float]], move: DecidedMove, seconds: float) -> None:
    if 0 <= seconds <= MAX_REPLICA_TIME_S:
        times.setdefault(move.inference, []).append(seconds)


def _find_median(times: Sequence[float] | None) -> float | None:
    return median(times) if times else None


def compute_lead(load_s: float, interval: timedelta) -> timedelta:
    """Return how far ahead the demand for an Inference counts, in whole seconds: until a replica of the next decision serves."""
    return min(timedelta(seconds=ceil(load_s)) + interval, MAX_LEAD)
