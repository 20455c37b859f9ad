"""How far each Inference of a pool is from its measured capacity, as production says from look to look."""

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
    """What was known of one Inference at the last look.

    `about`: what was measured, and of what: another version or capacity begins anew.
    `settled`: the replicas that answer since `since` while none starts or goes, or 0: what starts answers late, and says nothing.
    `counted`: when a look was last taken into account, which no other may overlap.
    """

    correction: CapacityCorrection
    about: object
    settled: int
    since: datetime
    counted: datetime
    at: datetime


Corrections = Mapping[ObjectKey, Corrected]


def corrections(before: Corrections, observed: AllocationObserved) -> Corrections:
    """What to plan with after one more look at the pool.

    Only real-time Inferences with `spec.capacity` are corrected, since the others promise no latency.
    A look counts where the same number of replicas answered all the time that its figures are of, and none started or went;
    and where it shares none of that time with one that was counted before.
    """
    after: dict[ObjectKey, Corrected] = {}
    for member in observed.members:
        spec = member.inference.spec
        if spec.tier is not Tier.REALTIME or spec.capacity is None:
            continue
        now, settled = observed.now, _settled(member)
        about = (spec.model, spec.capacity, spec.slo, member.slices)
        known = before.get(member.key)
        if known is None or known.about != about:
            after[member.key] = Corrected(
                CapacityCorrection(), about, settled, since=now, counted=now, at=now
            )
            continue
        since = known.since if settled == known.settled else now
        signal = observed.signals.by_key.get(member.key)
        earliest = max(since, known.counted)
        counts = settled > 0 and signal is not None and _after(signal, observed.signals.window, earliest)
        correction = corrected(
            known.correction,
            linear_curve(float(spec.capacity.requests_per_second)),
            signal if counts else None,
            settled,
            parse_duration(spec.slo.latency_p99).total_seconds() if spec.slo is not None else None,
            max((now - known.at).total_seconds(), 0.0),
        )
        counted = now if counts else known.counted
        after[member.key] = Corrected(correction, about, settled, since=since, counted=counted, at=now)
    return after


def _after(signal: Signal, window: timedelta, earliest: datetime) -> bool:
    """Whether all that its figures are of came after that; with no window they begin at the look before."""
    return signal.at > earliest and signal.at - window >= earliest


def _settled(member: Member) -> int:
    starting = member.held - member.serving
    return member.serving if starting <= 0 and member.draining == 0 and not member.apart else 0
