"""Report a load test, as figures and as a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.api.meta import ApiModel
from tidegate.planning.diagnosis.bench import LoadRun, ServerCounters
from tidegate.reports.report import Report

_MS_PER_S = 1_000


@dataclass(frozen=True, slots=True)
class BenchLimits:
    """The limits that a load test must keep; None means no limit."""

    p99_s: float | None = None
    error_share: float | None = None


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The server under test, and the way to it."""

    model: str
    target: str
    """The Inference or the address, as typed."""
    route: str
    """The way to the server in words: a port forward to a pod, or an address."""
    round_trip_s: float
    """The round trip of an empty request, which is part of every latency."""


class ServerReport(ApiModel):
    """The server's own counters during the test, of all its callers."""

    inferences: int
    executions: int
    failures: int
    rows_per_execution: float | None
    """More than one if the server joined requests, or if requests have several rows."""
    queue_ms: float | None
    """The average of one inference."""
    compute_ms: float | None


class BenchReport(Report):
    """One load test."""

    target: str
    model: str
    way: str
    way_ms: float
    seconds: float
    concurrency: int
    """Requests at once; with a rate, the most at once."""
    rate: float | None
    """Requests per second to send; absent if each answer triggers the next request."""
    sent: int
    answered: int
    not_sent: int
    """Requests that were due by the rate while the concurrency was used up."""
    requests_per_second: float
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p99_ms: float | None
    latency_max_ms: float | None
    errors: Mapping[str, int]
    """The number of errors by gRPC status."""
    error_share: float
    server: ServerReport | None
    """Absent if the server's counters are not known, as behind a gateway."""
    failures: tuple[str, ...]
    """The limits that the test exceeded."""

    @property
    def passed(self) -> bool:
        """Return whether the test kept its limits."""
        return not self.failures

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the figures, one line per topic."""
        del wide
        how = f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} per second"
        yield f"{self.target}: model {self.model}, {self.way}, {how} for {self.seconds:g} s"
        yield _format_line(
            "requests",
            f"{self.sent} sent, {self.answered} answered: {self.requests_per_second:.1f} per second",
        )
        times = (self.latency_p50_ms, self.latency_p90_ms, self.latency_p99_ms, self.latency_max_ms)
        latencies = " ".join(
            f"{name} {'-' if time is None else f'{time:.2f}'}"
            for name, time in zip(("p50", "p90", "p99", "max"), times, strict=True)
        )
        yield _format_line(
            "latency", f"{latencies} ms, of which an empty question takes {self.way_ms:.2f} ms"
        )
        counts = ", ".join(f"{count} {kind}" for kind, count in self.errors.items()) or "none"
        yield _format_line("errors", f"{counts} ({self.error_share:.2%})")
        if self.not_sent:
            yield _format_line(
                "not sent",
                f"{self.not_sent} were due while {self.concurrency} were open: raise --concurrency",
            )
        server = self.server
        if server is None:
            yield _format_line("server", "does not say what it counted")
        else:
            mean = f"{_format_number(server.queue_ms)} ms in the queue, {_format_number(server.compute_ms)} ms at work on average"
            yield _format_line(
                "server", f"{server.inferences} inferences in {server.executions} executions, {mean}"
            )
        for failure in self.failures:
            yield _format_line("failed", failure)

    def object_names(self) -> Iterator[str]:
        """Yield nothing: a load test has no objects."""
        return iter(())


def report_bench(
    target: BenchTarget, run: LoadRun, server: ServerCounters | None, limits: BenchLimits
) -> BenchReport:
    """Report one run; `server` holds the server's counters of the same time."""
    return BenchReport(
        target=target.target,
        model=target.model,
        way=target.route,
        way_ms=_to_ms(target.round_trip_s) or 0.0,
        seconds=round(run.lasted_s, 3),
        concurrency=run.load.concurrency,
        rate=run.load.rate,
        sent=run.sent,
        answered=len(run.times_s),
        not_sent=run.not_sent,
        requests_per_second=round(run.per_second, 3),
        latency_p50_ms=_to_ms(run.quantile_s(0.5)),
        latency_p90_ms=_to_ms(run.quantile_s(0.9)),
        latency_p99_ms=_to_ms(run.quantile_s(0.99)),
        latency_max_ms=_to_ms(run.quantile_s(1.0)),
        errors=dict(sorted(run.errors.items())),
        error_share=round(run.error_share, 6),
        server=_report_counters(server) if server is not None else None,
        failures=tuple(_list_failures(run, limits)),
    )


def _list_failures(run: LoadRun, limits: BenchLimits) -> Iterator[str]:
    p99 = run.quantile_s(0.99)
    if p99 is None:
        yield "no request was answered"
        return
    if limits.p99_s is not None and p99 > limits.p99_s:
        yield f"p99 is {p99 * _MS_PER_S:.2f} ms, above {limits.p99_s * _MS_PER_S:g} ms"
    if limits.error_share is not None and run.error_share > limits.error_share:
        yield f"{run.error_share:.2%} were not answered, above {limits.error_share:.2%}"


def _report_counters(counters: ServerCounters) -> ServerReport:
    inferences = counters.inferences
    return ServerReport(
        inferences=inferences,
        executions=counters.executions,
        failures=counters.failures,
        rows_per_execution=round(inferences / counters.executions, 3) if counters.executions else None,
        queue_ms=_to_ms(counters.queue_s / inferences) if inferences else None,
        compute_ms=_to_ms(counters.compute_s / inferences) if inferences else None,
    )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS_PER_S, 3)


def _format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"


def _format_line(label: str, text: str) -> str:
    return f"  {label:12}{text}"
