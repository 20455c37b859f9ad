"""Prometheus metrics of the agent."""

from prometheus_client import CollectorRegistry, generate_latest

from tidegate_dataplane.agent.nearline.failure_policy import DeadReason
from tidegate_dataplane.contract import exported
from tidegate_dataplane.sampling.frames import Dropped

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AgentMetrics:
    """Metrics of one agent, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.triton_up = exported.TRITON_UP.on(self.registry)
        self.target_version = exported.TARGET_VERSION.on(self.registry)
        self._serving_version = exported.SERVING_VERSION.on(self.registry)
        self._serving_since = exported.SERVING_SINCE.on(self.registry)
        self._serving = 0
        self.fetched_bytes = exported.FETCHED_BYTES.on(self.registry)
        self.fetch_seconds = exported.FETCH_SECONDS.on(self.registry)
        self.load_seconds = exported.LOAD_SECONDS.on(self.registry)
        self.failures = exported.FAILURES.on(self.registry)
        self.runner_ends = exported.RUNNER_ENDS.on(self.registry)
        for cause in ("memory", "other"):
            self.runner_ends.labels(cause)
        self.samples = exported.SAMPLES.on(self.registry)
        self.samples_written = exported.SAMPLES_WRITTEN.on(self.registry)
        self.samples_duplicate = exported.SAMPLES_DUPLICATE.on(self.registry)
        self.samples_dropped = exported.SAMPLES_DROPPED.on(self.registry)
        for reason in Dropped:
            self.samples_dropped.labels(reason)
        self.samples_held = exported.SAMPLES_HELD.on(self.registry)
        self.samples_held_bytes = exported.SAMPLES_HELD_BYTES.on(self.registry)
        self._add_nearline_metrics()

    def _add_nearline_metrics(self) -> None:
        """Add the metrics of the near-line worker."""
        self.nearline_consuming = exported.CONSUMING.on(self.registry)
        self.nearline_backlog = exported.BACKLOG.on(self.registry)
        self.nearline_in_flight = exported.IN_FLIGHT.on(self.registry)
        self.nearline_messages = exported.MESSAGES.on(self.registry)
        self.nearline_redelivered = exported.REDELIVERED.on(self.registry)
        self.nearline_results = exported.RESULTS.on(self.registry)
        self.nearline_late = exported.LATE.on(self.registry)
        self.nearline_duplicates = exported.DUPLICATES.on(self.registry)
        self.nearline_returned = exported.RETURNED.on(self.registry)
        self.nearline_busy_seconds = exported.BUSY_SECONDS.on(self.registry)
        self.nearline_dead_letters = exported.DEAD_LETTERS.on(self.registry)
        for reason in DeadReason:
            self.nearline_dead_letters.labels(reason)

    def set_serving_version(self, version: int, now_s: float) -> None:
        """Set the version that answers since `now_s` (seconds since 1970); 0 means none."""
        if version != self._serving:
            self._serving_since.set(now_s if version else 0)
        self._serving = version
        self._serving_version.set(version)

    def render_text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self.registry)
