"""What is asked for rises at once and falls slowly: a rate of a few seconds that falls for a moment takes no replica away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.signals import Signals

LOWERED_AFTER: Final = timedelta(seconds=60)
"""For so long the highest rate that was seen counts. A look may be two seconds long, and a new replica takes longer to serve."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A rate that was believed, and nothing as high since."""

    per_s: float
    at: datetime


Peaks = Mapping[ObjectKey, tuple[Peak, ...]]
"""Of each Inference, the oldest and highest first."""


def with_peaks(before: Peaks, signals: Signals, now: datetime) -> tuple[Signals, Peaks]:
    """The same signals, each with the highest rate of the last LOWERED_AFTER, and what to remember for the next ones.

    A rate that is held, for whatever reason, is no peak: what was not believed would count for longer than what was.
    """
    after: dict[ObjectKey, tuple[Peak, ...]] = {}
    raised = {}
    for key, signal in signals.by_key.items():
        kept = tuple(peak for peak in before.get(key, ()) if now - peak.at < LOWERED_AFTER)
        if signal.fresh and not signal.held:
            higher = tuple(peak for peak in kept if peak.per_s > signal.offered_per_s)
            kept = (*higher, Peak(signal.offered_per_s, now))
        after[key] = kept
        raised[key] = replace(signal, peak_per_s=kept[0].per_s if kept else 0.0)
    return Signals(raised, signals.problem, signals.window), after
