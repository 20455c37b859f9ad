"""What gateways counted of the two sides of a release, and how counters that restart become one sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.release import GatewayCounts

# Envoy tells its age in whole seconds.
_AGE_UNIT: Final = timedelta(seconds=1)
_NO_TIMES: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests, those that failed, and how many took how many milliseconds (the lower edges of Envoy's own bins)."""

    requests: int = 0
    failures: int = 0
    times: Mapping[int, int] = field(default_factory=lambda: _NO_TIMES)

    def __add__(self, other: Tally) -> Tally:
        times = {at: self.times.get(at, 0) + other.times.get(at, 0) for at in self.times.keys() | other.times}
        return Tally(self.requests + other.requests, self.failures + other.failures, times)

    def since(self, base: Tally) -> Tally:
        """What came after `base`; all of it when some counter is lower now, since then they began anew."""
        if self.requests < base.requests or self.failures < base.failures:
            return self
        if any(self.times.get(at, 0) < count for at, count in base.times.items()):
            return self
        times = {at: count - base.times.get(at, 0) for at, count in self.times.items()}
        return Tally(
            self.requests - base.requests,
            self.failures - base.failures,
            {at: count for at, count in times.items() if count},
        )

    @property
    def timed(self) -> int:
        """How many requests a time is known of."""
        return sum(self.times.values())

    def slower_than(self, milliseconds: float) -> int:
        """How many took longer."""
        return sum(count for at, count in self.times.items() if at > milliseconds)

    def render(self) -> str:
        """In short, for the status: `requests failures time:count,…`."""
        times = ",".join(f"{at}:{count}" for at, count in sorted(self.times.items()))
        return f"{self.requests} {self.failures} {times}".rstrip()

    @classmethod
    def parse(cls, text: str) -> Tally:
        """Reads what `render` wrote; anything else is an empty tally, as if nothing had been counted yet."""
        try:
            requests, failures, *rest = text.split(" ")
            pairs = (pair.split(":") for pair in rest[0].split(",")) if rest else ()
            return cls(int(requests), int(failures), {int(at): int(count) for at, count in pairs})
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


def counted_since(
    readings: Iterable[GatewayReading], bases: Sequence[GatewayCounts], now: datetime
) -> Sample:
    """What the gateways counted since `bases`; one without a base counts from now on."""
    known = {base.gateway: base for base in bases}
    total = Sample()
    for reading in readings:
        base = known.get(reading.gateway)
        if base is not None:
            total += _since(reading, base, now)
    return total


def bases_of(
    readings: Sequence[GatewayReading], before: Sequence[GatewayCounts], now: datetime
) -> tuple[GatewayCounts, ...]:
    """Where to count from, from now on; what a silent gateway had is kept, for when it speaks again."""
    said = {reading.gateway for reading in readings}
    fresh = (
        GatewayCounts(
            gateway=reading.gateway,
            at=now,
            target=reading.target.render(),
            stable=reading.stable.render(),
        )
        for reading in readings
    )
    silent = (base for base in before if base.gateway not in said)
    return tuple(sorted((*fresh, *silent), key=lambda base: base.gateway))


def _since(reading: GatewayReading, base: GatewayCounts, now: datetime) -> Sample:
    if now - reading.age - _AGE_UNIT > base.at:
        return Sample(reading.target, reading.stable)
    return Sample(
        reading.target.since(Tally.parse(base.target)), reading.stable.since(Tally.parse(base.stable))
    )
