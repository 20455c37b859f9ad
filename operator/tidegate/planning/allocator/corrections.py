"""Track how far each Inference of a pool is from its measured capacity, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.allocation.curves import (
    MIN_FACTOR,
    CapacityCorrection,
    CapacityCurve,
    CapacityObservation,
)
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.signals import Signal


@dataclass(frozen=True, slots=True)
class TrackedCorrection:
    """The correction of one Inference after the last tick.

    `basis`: the measured capacity and its model version; if either changes, the correction begins again.
    `settled_replicas`: the number of ready replicas since `since`; 0 while a replica starts or terminates, because it is slow then.
    `counted_at`: the time of the last scrape that was used; the windows of used scrapes do not overlap.
    """

    correction: CapacityCorrection
    basis: object
    settled_replicas: int
    since: datetime
    counted_at: datetime
    updated_at: datetime


Corrections = Mapping[ObjectKey, TrackedCorrection]


def update_corrections(before: Corrections, observed: AllocationObserved) -> Corrections:
    """Return the corrections after one more tick of the pool.

    Only Inferences with an SLO and `spec.capacity` are corrected, since the others promise no latency; and only Inferences in one
    pool, since what is measured of several is their mixture.
    A scrape is used if the same number of replicas was ready throughout its window, none started or terminated, and the
    window does not overlap that of another used scrape.
    Where a shared spare serves too, the answers are not those of the replicas alone, so the correction does not rise.
    """
    after: dict[ObjectKey, TrackedCorrection] = {}
    on_spares = {
        ObjectKey(live.planned.namespace, name) for live in observed.live_spares for name in live.serving
    }
    for member in observed.members:
        spec = member.inference.spec
        if not spec.tier.traits.has_slo or member.has_several_pools or (curve := member.usable_curve) is None:
            continue
        now, settled = observed.now, _count_settled(member)
        about = (spec.model, spec.capacity, spec.slo, member.replica_slices)
        previous = before.get(member.key)
        if previous is None or previous.basis != about:
            after[member.key] = TrackedCorrection(
                CapacityCorrection(), about, settled, since=now, counted_at=now, updated_at=now
            )
            continue
        since = previous.since if settled == previous.settled_replicas else now
        signal = observed.signals.by_key.get(member.key)
        earliest = max(since, previous.counted_at)
        counts = settled > 0 and signal is not None and _is_after(signal, observed.signals.window, earliest)
        correction = update_correction(
            previous.correction,
            curve,
            signal if counts else None,
            settled,
            parse_duration(spec.slo.latency_p99).total_seconds() if spec.slo is not None else None,
            max((now - previous.updated_at).total_seconds(), 0.0),
            can_rise=member.key not in on_spares,
        )
        counted = now if counts else previous.counted_at
        after[member.key] = TrackedCorrection(
            correction, about, settled, since=since, counted_at=counted, updated_at=now
        )
    return after


def _is_after(signal: Signal, window: timedelta, earliest: datetime) -> bool:
    """Return whether the window of a signal begins after `earliest`.

    Without a window it begins at the previous scrape.
    """
    return signal.read_at > earliest and signal.read_at - window >= earliest


def _count_settled(member: PoolMember) -> int:
    starting = member.assigned_replicas - member.serving_pods
    return (
        member.serving_pods
        if starting <= 0 and member.draining_replicas == 0 and not member.excluded_reason
        else 0
    )


def update_correction(
    before: CapacityCorrection,
    curve: CapacityCurve,
    signal: Signal | None,
    ready: int,
    slo_s: float | None,
    elapsed_s: float,
    *,
    can_rise: bool = True,
) -> CapacityCorrection:
    """Return the correction of `curve` after one more signal, `elapsed_s` after the last one, with `ready` replicas.

    The correction rises only if the replicas served more than the curve promises, within the SLO, and never without `can_rise`.
    It falls only if the SLO was missed at 50 to 100 % of the load that the curve promises: a higher load shows nothing
    about the curve, and a low load is late for other reasons.
    Otherwise it fades. A low load or a held signal shows nothing about saturation.
    """
    observation = _observe_capacity(before.apply_to(curve).rate_at(ready), signal, ready, slo_s)
    if observation is None or not (observation.saturated or can_rise):
        return before.decay_for(elapsed_s)
    return before.update_from(curve, observation)


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
