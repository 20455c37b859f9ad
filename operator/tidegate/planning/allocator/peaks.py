"""Let demand rise at once and fall slowly: a rate that drops for a few seconds takes no replica away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import Signals

MIN_PEAK_WINDOW: Final = timedelta(seconds=60)
"""How long a peak counts at least. A scrape may cover two seconds, and a new replica takes longer than that to serve."""


@dataclass(frozen=True, slots=True)
class RatePeak:
    """A confirmed rate, and none as high since."""

    per_s: float
    seen_at: datetime


Peaks = Mapping[ObjectKey, tuple[RatePeak, ...]]
"""By Inference, the oldest and highest first."""


def apply_peaks(
    before: Peaks, signals: Signals, now: datetime, windows: Mapping[ObjectKey, timedelta]
) -> tuple[Signals, Peaks]:
    """Add to each signal the highest rate of late; return the signals, and the peaks for the next call.

    `windows` has how long a peak counts, for those that count longer than MIN_PEAK_WINDOW. A held rate is no peak: an unconfirmed rate would count for longer than a confirmed one.
    """
    after: dict[ObjectKey, tuple[RatePeak, ...]] = {}
    raised = {}
    for key, signal in signals.by_key.items():
        window = max(windows.get(key, MIN_PEAK_WINDOW), MIN_PEAK_WINDOW)
        recent = tuple(peak for peak in before.get(key, ()) if timedelta() <= now - peak.seen_at < window)
        if signal.fresh and not signal.held_reason:
            higher = tuple(peak for peak in recent if peak.per_s > signal.offered_per_s)
            recent = (*higher, RatePeak(signal.offered_per_s, now))
        after[key] = recent
        raised[key] = replace(signal, peak_per_s=recent[0].per_s if recent else 0.0)
    return Signals(raised, signals.problem, signals.window), after
