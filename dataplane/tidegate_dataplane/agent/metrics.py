"""Prometheus metrics of the agent."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from tidegate_dataplane.agent.nearline.failure_policy import DeadReason
from tidegate_dataplane.contract import (
    DeadLetterCounts,
    EventStreamReport,
    RefusalReason,
    TableProblem,
    TableReport,
    exported,
)
from tidegate_dataplane.sampling.frames import DropReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AgentMetrics:
    """Metrics of one agent, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.triton_up = exported.TRITON_UP.register(self.registry)
        self.target_version = exported.TARGET_VERSION.register(self.registry)
        self._serving_version = exported.SERVING_VERSION.register(self.registry)
        self._serving_since = exported.SERVING_SINCE.register(self.registry)
        self._serving = 0
        self.fetched_bytes = exported.FETCHED_BYTES.register(self.registry)
        self.fetch_seconds = exported.FETCH_SECONDS.register(self.registry)
        self.load_seconds = exported.LOAD_SECONDS.register(self.registry)
        self.failures = exported.FAILURES.register(self.registry)
        self.graphs_refused = exported.GRAPHS_REFUSED.register(self.registry)
        self.runner_ends = exported.RUNNER_ENDS.register(self.registry)
        for cause in ("memory", "other"):
            self.runner_ends.labels(cause)
        self.samples = exported.SAMPLES.register(self.registry)
        self.samples_written = exported.SAMPLES_WRITTEN.register(self.registry)
        self.samples_duplicate = exported.SAMPLES_DUPLICATE.register(self.registry)
        self.samples_dropped = exported.SAMPLES_DROPPED.register(self.registry)
        for reason in DropReason:
            self.samples_dropped.labels(reason)
        self.samples_held = exported.SAMPLES_HELD.register(self.registry)
        self.samples_held_bytes = exported.SAMPLES_HELD_BYTES.register(self.registry)
        self._events_lag = exported.EVENTS_LAG.register(self.registry)
        self._events_pending = exported.EVENTS_PENDING.register(self.registry)
        self._events_stored = exported.EVENTS_STORED.register(self.registry)
        self._events_refused = exported.EVENTS_REFUSED.register(self.registry)
        self._events_dead_letters = exported.EVENTS_DEAD_LETTERS.register(self.registry)
        self._events_dead_letters_failed = exported.EVENTS_DEAD_LETTERS_FAILED.register(self.registry)
        self._events: dict[str, EventStreamReport] = {}
        self._table_loaded = exported.TABLE_LOADED.register(self.registry)
        self._table_keys = exported.TABLE_KEYS.register(self.registry)
        self._table_refused = exported.TABLE_REFUSED.register(self.registry)
        self.table_refusals = exported.TABLE_REFUSALS.register(self.registry)
        self._add_nearline_metrics()

    def _add_nearline_metrics(self) -> None:
        """Add the metrics of the near-line worker."""
        self.nearline_consuming = exported.CONSUMING.register(self.registry)
        self.nearline_backlog = exported.BACKLOG.register(self.registry)
        self.nearline_in_flight = exported.IN_FLIGHT.register(self.registry)
        self.nearline_messages = exported.MESSAGES.register(self.registry)
        self.nearline_redelivered = exported.REDELIVERED.register(self.registry)
        self.nearline_results = exported.RESULTS.register(self.registry)
        self.nearline_late = exported.LATE.register(self.registry)
        self.nearline_duplicates = exported.DUPLICATES.register(self.registry)
        self.nearline_returned = exported.RETURNED.register(self.registry)
        self.nearline_busy_seconds = exported.BUSY_SECONDS.register(self.registry)
        self.nearline_dead_letters = exported.DEAD_LETTERS.register(self.registry)
        for reason in DeadReason:
            self.nearline_dead_letters.labels(reason)

    def set_events(self, reports: Sequence[EventStreamReport]) -> None:
        """Set what the ingester reports of each stream; a report that is missing for a while changes no counter."""
        for report in reports:
            earlier = self._events.get(report.source)
            if earlier is None or earlier.stored > report.stored:
                earlier = report.model_copy(update={"stored": 0, "refused": {}, "dead_letters": None})
            self._events_lag.labels(report.source).set(report.lag_s)
            if report.pending is not None:
                self._events_pending.labels(report.source).set(report.pending)
            self._events_stored.labels(report.source).inc(report.stored - earlier.stored)
            for reason in RefusalReason:
                growth = report.refused.get(reason, 0) - earlier.refused.get(reason, 0)
                self._events_refused.labels(report.source, reason).inc(max(growth, 0))
            self._count_dead_letters(report, earlier)
        self._events |= {report.source: report for report in reports}

    def _count_dead_letters(self, report: EventStreamReport, earlier: EventStreamReport) -> None:
        """Add what the dead letters of a stream have gained; a stream without any has no series."""
        letters, before = report.dead_letters, earlier.dead_letters or DeadLetterCounts()
        if letters is not None:
            written, failed = letters.written - before.written, letters.failed - before.failed
            self._events_dead_letters.labels(report.source).inc(max(written, 0))
            self._events_dead_letters_failed.labels(report.source).inc(max(failed, 0))

    def set_tables(self, reports: Sequence[TableReport]) -> None:
        """Set which tables the pod serves from, and why not from the newest ones."""
        for report in reports:
            self._table_loaded.labels(report.source).set(report.loaded_s)
            if report.keys is not None:
                self._table_keys.labels(report.source).set(report.keys)
            for problem in TableProblem:
                self._table_refused.labels(report.source, problem).set(report.problem is problem)
                self.table_refusals.labels(report.source, problem)

    def set_serving_version(self, version: int, now_s: float) -> None:
        """Set the version that answers since `now_s` (seconds since 1970); 0 means none."""
        if version != self._serving:
            self._serving_since.set(now_s if version else 0)
        self._serving = version
        self._serving_version.set(version)

    def render_text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self.registry)


class _LabelledMetrics(Collector):
    """The metrics of several Inferences, with the Inference as a label, and those of ended runners, which are the pod's."""

    def __init__(self, by_inference: Mapping[str, AgentMetrics], pod: AgentMetrics) -> None:
        self._by_inference = by_inference
        self._pod = pod

    def collect(self) -> Iterator[Metric]:
        """Yield each family once."""
        families = {metric.name: metric for metric in self._pod.runner_ends.collect()}
        of_pod = frozenset(families)
        for inference, metrics in sorted(self._by_inference.items()):
            for metric in metrics.registry.collect():
                if metric.name in of_pod:
                    continue
                labelled = Metric(metric.name, metric.documentation, metric.type)
                family = families.setdefault(metric.name, labelled)
                for sample in metric.samples:
                    family.add_sample(sample.name, {**sample.labels, "inference": inference}, sample.value)
        yield from families.values()


def render_by_inference(by_inference: Mapping[str, AgentMetrics], pod: AgentMetrics) -> bytes:
    """Return the metrics of several Inferences in one pod, in the exposition format."""
    registry = CollectorRegistry()
    registry.register(_LabelledMetrics(by_inference, pod))
    return generate_latest(registry)
