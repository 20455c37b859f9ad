"""Measure how long replicas load and drain in a pool, as its decisions and its pods show it, and how early they have to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from statistics import median
from typing import Final

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.meta import ObjectKey

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


def measure_times(
    decisions: Iterable[AllocationDecision], pod_loads: Mapping[ObjectKey, float]
) -> Mapping[ObjectKey, ReplicaTimes]:
    """Return the times of the Inferences that the decisions about one pool or its pods show.

    A decision has one time for all that it gives and one for all that it takes, so a load time is that of the decisions that
    gave slices to this Inference alone, and a drain time that of those that took slices from it alone.
    Without such a decision, the load time is the one of the ready pods, `pod_loads`: these may be few, and may have started
    together with many others.
    """
    loads: dict[ObjectKey, list[float]] = {}
    drains: dict[ObjectKey, list[float]] = {}
    for decision in decisions:
        outcome, moves = decision.status.outcome, decision.spec.moves
        if outcome is None:
            continue
        takers = [move for move in moves if move.after > move.before]
        givers = [move for move in moves if move.after < move.before]
        if outcome.reclaim_seconds is not None and len(givers) == 1:
            drains.setdefault(ObjectKey.parse(givers[0].inference), []).append(outcome.reclaim_seconds)
        reclaim_s = outcome.reclaim_seconds if len(moves) > 1 else 0.0
        if outcome.applied_at is None or reclaim_s is None or len(takers) != 1 or takers[0].promoted:
            continue
        load_s = (outcome.applied_at - decision.spec.at).total_seconds() - reclaim_s
        loads.setdefault(ObjectKey.parse(takers[0].inference), []).append(max(load_s, 0.0))
    medians = {**pod_loads, **{key: median(seconds) for key, seconds in loads.items()}}
    return {
        key: ReplicaTimes(medians.get(key), median(drains[key]) if key in drains else None)
        for key in sorted(medians.keys() | drains.keys())
    }


def compute_lead(load_s: float, interval: timedelta) -> timedelta:
    """Return how far ahead the demand for an Inference counts, in whole seconds: until a replica of the next decision serves."""
    return min(timedelta(seconds=ceil(load_s)) + interval, MAX_LEAD)
