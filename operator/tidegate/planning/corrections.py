"""How far each Inference of a pool is from its measured capacity, as production says from look to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tidegate.allocation.curves import Correction, linear
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocation_view import AllocationObserved, Member
from tidegate.planning.capacity import corrected


@dataclass(frozen=True, slots=True)
class Corrected:
    """What was known of one Inference at the last look.

    `about`: what was measured, and of what: another version or capacity begins anew.
    `settled`: the replicas that answered while none started or went, or 0: what starts answers late, and says nothing.
    """

    correction: Correction
    about: object
    settled: int
    at: datetime


Corrections = Mapping[ObjectKey, Corrected]


def corrections(before: Corrections, observed: AllocationObserved) -> Corrections:
    """What to plan with after one more look at the pool.

    Only real-time Inferences with `spec.capacity` are corrected, since the others promise no latency.
    A look counts once, and where as many replicas answered at the one before and none started or went.
    """
    after: dict[ObjectKey, Corrected] = {}
    for member in observed.members:
        spec = member.inference.spec
        if spec.tier is not Tier.REALTIME or spec.capacity is None:
            continue
        about = (spec.model, spec.capacity, spec.slo, member.slices)
        settled = _settled(member)
        known = before.get(member.key)
        if known is None or known.about != about:
            after[member.key] = Corrected(Correction(), about, settled, observed.now)
            continue
        signal = observed.signals.by_key.get(member.key)
        anew = signal is not None and signal.at > known.at
        correction = corrected(
            known.correction,
            linear(float(spec.capacity.requests_per_second)),
            signal if anew else None,
            settled if settled == known.settled else 0,
            parse_duration(spec.slo.latency_p99).total_seconds() if spec.slo is not None else None,
            max((observed.now - known.at).total_seconds(), 0.0),
        )
        after[member.key] = Corrected(correction, about, settled, observed.now)
    return after


def _settled(member: Member) -> int:
    starting = member.held - member.serving
    return member.serving if starting <= 0 and member.draining == 0 and not member.apart else 0
