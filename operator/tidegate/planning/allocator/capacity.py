"""Correct a measured capacity curve by what production shows: more, less, or nothing."""

from __future__ import annotations

from tidegate.allocation.curves import MIN_FACTOR, CapacityCorrection, CapacityCurve, CapacityObservation
from tidegate.planning.allocator.signals import Signal


def update_correction(
    before: CapacityCorrection,
    curve: CapacityCurve,
    signal: Signal | None,
    ready: int,
    slo_s: float | None,
    elapsed_s: float,
) -> CapacityCorrection:
    """Return the correction of `curve` after one more signal, `elapsed_s` after the last one, with `ready` replicas.

    The correction rises only where more was served than the curve promises, within the SLO.
    It falls only where the SLO was missed under a load of half to all of what the curve promises: a higher load says nothing
    about the curve, and a low load is late for other reasons.
    Otherwise it fades. A low load or a held signal says nothing about saturation.
    """
    observation = _observe_capacity(before.apply_to(curve).rate_at(ready), signal, ready, slo_s)
    return before.decay_for(elapsed_s) if observation is None else before.update_from(curve, observation)


def _observe_capacity(
    promised: float, signal: Signal | None, ready: int, slo_s: float | None
) -> CapacityObservation | None:
    if signal is None or not signal.fresh or signal.held_reason or slo_s is None or ready <= 0:
        return None
    if signal.latency_p99_s is None or signal.served_per_s is None:
        return None
    if signal.latency_p99_s <= slo_s:
        above = signal.served_per_s > promised
        return CapacityObservation(ready, signal.served_per_s, saturated=False) if above else None
    as_promised = MIN_FACTOR * promised <= signal.offered_per_s <= promised and signal.offered_per_s > 0
    return (
        CapacityObservation(ready, min(signal.served_per_s, promised), saturated=True)
        if as_promised
        else None
    )
