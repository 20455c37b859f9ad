"""What production says of a capacity curve: more than was measured, less, or nothing."""

from __future__ import annotations

from tidegate.allocation.curves import LEAST_FACTOR, CapacityCurve, Correction, Observation
from tidegate.planning.signals import Signal


def corrected(
    before: Correction,
    curve: CapacityCurve,
    signal: Signal | None,
    ready: int,
    slo_s: float | None,
    elapsed_s: float,
) -> Correction:
    """How far production is from `curve` after one more signal, `elapsed_s` after the last one, with `ready` replicas.

    It rises only where more was served than the curve promises and within the SLO.
    It falls only where the SLO was missed by what the curve promises to serve, and by half of it at least: more load than that
    says nothing about it, and little load is late for other reasons.
    Without either it fades; low load says nothing about saturation, and so does a signal that is held.
    """
    seen = _observed(before.applied(curve).at(ready), signal, ready, slo_s)
    return before.faded(elapsed_s) if seen is None else before.observed(curve, seen)


def _observed(promised: float, signal: Signal | None, ready: int, slo_s: float | None) -> Observation | None:
    if signal is None or not signal.fresh or signal.held or slo_s is None or ready <= 0:
        return None
    if signal.latency_p99_s is None or signal.served_per_s is None:
        return None
    if signal.latency_p99_s <= slo_s:
        above = signal.served_per_s > promised
        return Observation(ready, signal.served_per_s, saturated=False) if above else None
    as_promised = LEAST_FACTOR * promised <= signal.offered_per_s <= promised and signal.offered_per_s > 0
    return Observation(ready, min(signal.served_per_s, promised), saturated=True) if as_promised else None
