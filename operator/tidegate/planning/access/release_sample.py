"""Count requests of both sides of a release, and combine counters of gateways that restart into one sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.release import MAX_GATEWAYS, GatewayCounts

_NO_TIMES: Final[Mapping[int, int]] = MappingProxyType({})
COUNTER_SKEW: Final = 8
"""Counters of one page may differ by this much, because a gateway does not write them at one instant."""


@dataclass(frozen=True, slots=True)
class RequestTally:
    """Counts of requests: all, failed, by latency, and without an answer in time.

    `times` has the number of requests by milliseconds, the lower edges of Envoy's own bins.
    """

    requests: int = 0
    failures: int = 0
    times: Mapping[int, int] = field(default_factory=lambda: _NO_TIMES)
    unanswered: int = 0

    def __add__(self, other: RequestTally) -> RequestTally:
        times = {
            time_ms: self.times.get(time_ms, 0) + other.times.get(time_ms, 0)
            for time_ms in self.times.keys() | other.times
        }
        return RequestTally(
            self.requests + other.requests,
            self.failures + other.failures,
            times,
            self.unanswered + other.unanswered,
        )

    def count_since(self, base: RequestTally) -> RequestTally:
        """Return what came after `base`; all of it if the counters were reset in between."""
        requests, failures = self.requests - base.requests, self.failures - base.failures
        unanswered = self.unanswered - base.unanswered
        if min(requests, failures, unanswered, requests - failures) < -COUNTER_SKEW:
            return self
        if any(self.times.get(time_ms, 0) < count for time_ms, count in base.times.items()):
            return self
        times = {time_ms: count - base.times.get(time_ms, 0) for time_ms, count in self.times.items()}
        return RequestTally(
            max(requests, 0),
            max(min(requests, failures), 0),
            {time_ms: count for time_ms, count in times.items() if count},
            max(unanswered, 0),
        )

    @property
    def timed_requests(self) -> int:
        """Return the number of requests with a known latency; those without an answer count as slow."""
        return sum(self.times.values()) + self.unanswered

    def count_slower_than(self, milliseconds: float) -> int:
        """Return how many took longer than this; those without an answer always do."""
        return sum(count for time_ms, count in self.times.items() if time_ms > milliseconds) + self.unanswered

    def render(self) -> str:
        """Format it for the status: `requests failures time:count,… unanswered`."""
        times = ",".join(f"{time_ms}:{count}" for time_ms, count in sorted(self.times.items()))
        if self.unanswered:
            return f"{self.requests} {self.failures} {times or '-'} {self.unanswered}"
        return f"{self.requests} {self.failures} {times}".rstrip()

    @classmethod
    def parse(cls, text: str) -> RequestTally:
        """Parse the result of `render`; return an empty tally for any other text, as if nothing was counted yet."""
        try:
            requests, failures, *fields = text.split(" ")
            times, unanswered = (*fields, *("-", "0")[len(fields) :])
            pairs = (pair.split(":") for pair in times.split(",")) if times != "-" else ()
            counts = {int(time_ms): int(count) for time_ms, count in pairs}
            return cls(int(requests), int(failures), counts, int(unanswered))
        except ValueError:
            return cls()


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """Counts of one gateway for one release since it started `age` ago."""

    gateway: str
    age: timedelta
    target: RequestTally
    stable: RequestTally


@dataclass(frozen=True, slots=True)
class ReleaseSample:
    """Counts of both sides of a release over the same time."""

    target: RequestTally = RequestTally()
    stable: RequestTally = RequestTally()

    def __add__(self, other: ReleaseSample) -> ReleaseSample:
        return ReleaseSample(self.target + other.target, self.stable + other.stable)


def sum_counts_since(readings: Iterable[GatewayReading], bases: Sequence[GatewayCounts]) -> ReleaseSample:
    """Return what the gateways counted since `bases`; a gateway without a base counts from now on."""
    base_by_gateway = {base.gateway: base for base in bases}
    sample = ReleaseSample()
    for reading in readings:
        base = base_by_gateway.get(reading.gateway)
        if base is not None:
            sample += _count_reading(reading, base)
    return sample


def make_bases(
    readings: Iterable[GatewayReading], previous: Iterable[GatewayCounts] = ()
) -> tuple[GatewayCounts, ...]:
    """Return the counts from which the next sample is measured; silent gateways keep their `previous` base.

    Gateways beyond the number that the status can hold are not counted.
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
    gateways = {base.gateway for base in fresh}
    silent = (base for base in previous if base.gateway not in gateways)
    return tuple(sorted((*fresh, *silent), key=lambda base: base.gateway)[:MAX_GATEWAYS])


def _count_reading(reading: GatewayReading, base: GatewayCounts) -> ReleaseSample:
    # Compare ages, not times of day: clocks may differ.
    if reading.age.total_seconds() < base.uptime:
        return ReleaseSample(reading.target, reading.stable)
    return ReleaseSample(
        reading.target.count_since(RequestTally.parse(base.target)),
        reading.stable.count_since(RequestTally.parse(base.stable)),
    )
