"""What a bounded load test sent and got: figures of one run, and whether they are good enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: so many requests at once, or with a rate so many per second, of which at most `concurrency` are open."""

    seconds: float = 10.0
    concurrency: int = 8
    rate: float | None = None
    """Requests per second, evenly spaced, whatever the answers; None: each as soon as another was answered."""
    most_errors: float = inf
    """Without a rate, the load ends early after so many errors."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """What Triton counted for one model since it was loaded; what came in between is the difference of two."""

    inferences: int = 0
    executions: int = 0
    failures: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    def since(self, before: ServerCounters) -> ServerCounters | None:
        """What was counted after `before`; None where the server began anew meanwhile."""
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
class Run:
    """One run. `times_s` of those that were answered, ascending: with a rate from when each was due, so that waiting to be sent counts."""

    load: Load
    lasted_s: float
    sent: int
    times_s: Sequence[float]
    errors: Mapping[str, int] = field(default_factory=Counter[str])
    """By kind: the name of the gRPC status."""
    not_sent: int = 0
    """Due by the rate while as many as may be open were."""

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return len(self.times_s) / self.lasted_s if self.lasted_s > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Of all that were due, those that were not answered; 1 where nothing was due."""
        due = self.sent + self.not_sent
        return 1.0 if not due else (sum(self.errors.values()) + self.not_sent) / due

    def quantile_s(self, share: float) -> float | None:
        """The time that `share` of the answers did not exceed."""
        times = self.times_s
        return times[max(ceil(share * len(times)) - 1, 0)] if times else None
