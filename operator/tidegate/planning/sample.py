"""What gateways counted of the two sides of a release, and how counters that restart become one sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.release import MAX_GATEWAYS, GatewayCounts

_NO_TIMES: Final[Mapping[int, int]] = MappingProxyType({})
NOT_AT_ONCE: Final = 8
"""So far apart may counters be that belong together: a page is not written at one instant."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests, those that failed, how many took how many milliseconds (the lower edges of Envoy's own bins), and how many got no answer in time."""

    requests: int = 0
    failures: int = 0
    times: Mapping[int, int] = field(default_factory=lambda: _NO_TIMES)
    unanswered: int = 0

    def __add__(self, other: Tally) -> Tally:
        times = {at: self.times.get(at, 0) + other.times.get(at, 0) for at in self.times.keys() | other.times}
        return Tally(
            self.requests + other.requests,
            self.failures + other.failures,
            times,
            self.unanswered + other.unanswered,
        )

    def since(self, base: Tally) -> Tally:
        """What came after `base`; all of it when the counters cannot go on from there, since then they began anew."""
        requests, failures = self.requests - base.requests, self.failures - base.failures
        unanswered = self.unanswered - base.unanswered
        if min(requests, failures, unanswered, requests - failures) < -NOT_AT_ONCE:
            return self
        if any(self.times.get(at, 0) < count for at, count in base.times.items()):
            return self
        times = {at: count - base.times.get(at, 0) for at, count in self.times.items()}
        return Tally(
            max(requests, 0),
            max(min(requests, failures), 0),
            {at: count for at, count in times.items() if count},
            max(unanswered, 0),
        )

    @property
    def timed(self) -> int:
        """How many requests it is known of whether they were answered within a time."""
        return sum(self.times.values()) + self.unanswered

    def slower_than(self, milliseconds: float) -> int:
        """How many took longer; those without an answer did, whatever the time."""
        return sum(count for at, count in self.times.items() if at > milliseconds) + self.unanswered

    def render(self) -> str:
        """In short, for the status: `requests failures time:count,… unanswered`."""
        times = ",".join(f"{at}:{count}" for at, count in sorted(self.times.items()))
        if self.unanswered:
            return f"{self.requests} {self.failures} {times or '-'} {self.unanswered}"
        return f"{self.requests} {self.failures} {times}".rstrip()

    @classmethod
    def parse(cls, text: str) -> Tally:
        """Reads what `render` wrote; anything else is an empty tally, as if nothing had been counted yet."""
        try:
            requests, failures, *rest = text.split(" ")
            times, unanswered = (*rest, *("-", "0")[len(rest) :])
            pairs = (pair.split(":") for pair in times.split(",")) if times != "-" else ()
            counts = {int(at): int(count) for at, count in pairs}
            return cls(int(requests), int(failures), counts, int(unanswered))
        except ValueError:
            return cls()


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """What one gateway has counted since it started `age` ago, for one release."""

    gateway: str
    age: timedelta
    target: Tally
    stable: Tally


@dataclass(frozen=True, slots=True)
class Sample:
    """Both sides of a release, over the same time."""

    target: Tally = Tally()
    stable: Tally = Tally()

    def __add__(self, other: Sample) -> Sample:
        return Sample(self.target + other.target, self.stable + other.stable)


def counted_since(readings: Iterable[GatewayReading], bases: Sequence[GatewayCounts]) -> Sample:
    """What the gateways counted since `bases`; one without a base counts from now on."""
    known = {base.gateway: base for base in bases}
    total = Sample()
    for reading in readings:
        base = known.get(reading.gateway)
        if base is not None:
            total += _since(reading, base)
    return total


def bases_of(
    readings: Iterable[GatewayReading], before: Iterable[GatewayCounts] = ()
) -> tuple[GatewayCounts, ...]:
    """Where to count from, from now on; `before` is kept of gateways that say nothing, for when they speak again.

    Gateways beyond the number that the status takes are not counted.
    """
    fresh = [
        GatewayCounts(
            gateway=reading.gateway,
            uptime=int(reading.age.total_seconds()),
            target=reading.target.render(),
            stable=reading.stable.render(),
        )
        for reading in readings
    ]
    said = {base.gateway for base in fresh}
    silent = (base for base in before if base.gateway not in said)
    return tuple(sorted((*fresh, *silent), key=lambda base: base.gateway)[:MAX_GATEWAYS])


def _since(reading: GatewayReading, base: GatewayCounts) -> Sample:
    # Ages are compared and no times of day: nobody's clock is trusted.
    if reading.age.total_seconds() < base.uptime:
        return Sample(reading.target, reading.stable)
    return Sample(
        reading.target.since(Tally.parse(base.target)), reading.stable.since(Tally.parse(base.stable))
    )
