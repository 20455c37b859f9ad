"""Track how far each Inference of a pool is from its measured capacity, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.allocation.curves import CapacityCorrection, linear_curve
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocation_view import AllocationObserved, Member
from tidegate.planning.capacity import corrected
from tidegate.planning.signals import Signal


@dataclass(frozen=True, slots=True)
class Corrected:
    """The correction of one Inference after the last tick.

    `about`: the measurement and what it was made of; with another version or capacity the correction begins again.
    `settled`: the ready replicas since `since` while none starts or terminates, or 0, since a starting replica is slow.
    `counted`: the time of the last scrape that counted; no other may overlap it.
    """

    correction: CapacityCorrection
    about: object
    settled: int
    since: datetime
    counted: datetime
    at: datetime


Corrections = Mapping[ObjectKey, Corrected]


def corrections(before: Corrections, observed: AllocationObserved) -> Corrections:
    """Return the corrections after one more tick of the pool.

    Only real-time Inferences with `spec.capacity` are corrected, since the others promise no latency.
    A scrape counts if the same number of replicas was ready throughout its window, none started or terminated, and the
    window does not overlap one that has counted.
    """
    after: dict[ObjectKey, Corrected] = {}
    for member in observed.members:
        spec = member.inference.spec
        if spec.tier is not Tier.REALTIME or spec.capacity is None:
            continue
        now, settled = observed.now, _settled(member)
        about = (spec.model, spec.capacity, spec.slo, member.slices)
        previous = before.get(member.key)
        if previous is None or previous.about != about:
            after[member.key] = Corrected(
                CapacityCorrection(), about, settled, since=now, counted=now, at=now
            )
            continue
        since = previous.since if settled == previous.settled else now
        signal = observed.signals.by_key.get(member.key)
        earliest = max(since, previous.counted)
        counts = settled > 0 and signal is not None and _after(signal, observed.signals.window, earliest)
        correction = corrected(
            previous.correction,
            linear_curve(float(spec.capacity.requests_per_second)),
            signal if counts else None,
            settled,
            parse_duration(spec.slo.latency_p99).total_seconds() if spec.slo is not None else None,
            max((now - previous.at).total_seconds(), 0.0),
        )
        counted = now if counts else previous.counted
        after[member.key] = Corrected(correction, about, settled, since=since, counted=counted, at=now)
    return after


def _after(signal: Signal, window: timedelta, earliest: datetime) -> bool:
    """Return whether the window of a signal begins after `earliest`.

    Without a window it begins at the previous scrape.
    """
    return signal.at > earliest and signal.at - window >= earliest


def _settled(member: Member) -> int:
    starting = member.held - member.serving
    return member.serving if starting <= 0 and member.draining == 0 and not member.apart else 0
