"""Figures of one run of a bounded load test, and whether they are good enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The requests to send.

    Either `concurrency` at once, or `rate` per second, of which at most `concurrency` are open.
    """

    seconds: float = 10.0
    concurrency: int = 8
    rate: float | None = None
    """Requests per second, evenly spaced, whatever the answers; None sends one as soon as another is answered."""
    max_errors: float = inf
    """Without a rate, the load ends early after this many errors."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Triton's counters of one model since it was loaded; the difference of two is what happened in between."""

    inferences: int = 0
    executions: int = 0
    failures: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    def subtract(self, before: ServerCounters) -> ServerCounters | None:
        """Return what was counted after `before`; None if the server was restarted in between."""
        if self.inferences < before.inferences or self.executions < before.executions:
            return None
        return ServerCounters(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.failures - before.failures,
            self.queue_s - before.queue_s,
            self.compute_s - before.compute_s,
        )


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of one run.

    `times_s` are the latencies of answered requests, ascending. With a rate they count from when a request was due, so
    that the time that it waited to be sent is part of them.
    """

    load: LoadSpec
    lasted_s: float
    sent: int
    times_s: Sequence[float]
    errors: Mapping[str, int] = field(default_factory=Counter[str])
    """By kind: the name of the gRPC status."""
    not_sent: int = 0
    """Requests that were due by the rate while `concurrency` others were open."""

    @property
    def per_second(self) -> float:
        """Return the answers per second."""
        return len(self.times_s) / self.lasted_s if self.lasted_s > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Return the share of due requests that were not answered; 1 if none was due."""
        due = self.sent + self.not_sent
        return 1.0 if not due else (sum(self.errors.values()) + self.not_sent) / due

    def quantile_s(self, share: float) -> float | None:
        """Return the latency that `share` of the answers did not exceed; None without answers."""
        times = self.times_s
        return times[max(ceil(share * len(times)) - 1, 0)] if times else None
