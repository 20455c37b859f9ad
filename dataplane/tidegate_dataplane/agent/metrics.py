"""The agent's metrics, for alarms: what it serves, what it wants, what went wrong."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tidegate_dataplane.agent.nearline.verdict import DeadReason
from tidegate_dataplane.sampling.frames import Dropped

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One agent's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.triton_up = Gauge("tidegate_agent_triton_up", "1 if Triton answers.", registry=self.registry)
        self.target_version = Gauge(
            "tidegate_agent_target_version",
            "Ordered version, 0 before the first order.",
            registry=self.registry,
        )
        self.serving_version = Gauge(
            "tidegate_agent_serving_version", "Version that answers, 0 if none does.", registry=self.registry
        )
        self.fetched_bytes = Counter(
            "tidegate_agent_fetched_bytes", "Bytes of artefacts received.", registry=self.registry
        )
        self.fetch_seconds = Histogram(
            "tidegate_agent_fetch_seconds",
            "Time to fetch and verify an artefact.",
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600),
            registry=self.registry,
        )
        self.load_seconds = Histogram(
            "tidegate_agent_load_seconds",
            "Time from Triton's load call until the version was ready.",
            buckets=(0.01, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 600),
            registry=self.registry,
        )
        self.failures = Counter(
            "tidegate_agent_failures",
            "Orders that could not be carried out.",
            ["reason"],
            registry=self.registry,
        )
        self.runner_ends = Counter(
            "tidegate_agent_runner_ends",
            "Processes of model versions that ended without having been unloaded, by why: memory or other.",
            ["why"],
            registry=self.registry,
        )
        for why in ("memory", "other"):
            self.runner_ends.labels(why)
        self.samples = Counter(
            "tidegate_agent_samples", "Answered requests that are in the sample.", registry=self.registry
        )
        self.samples_written = Counter(
            "tidegate_agent_samples_written", "Samples that the sink has confirmed.", registry=self.registry
        )
        self.samples_duplicate = Counter(
            "tidegate_agent_samples_duplicate",
            "Samples whose id was logged before: the request ran twice.",
            registry=self.registry,
        )
        self.samples_dropped = Counter(
            "tidegate_agent_samples_dropped",
            "Samples that are not in the log.",
            ["reason"],
            registry=self.registry,
        )
        for reason in Dropped:
            self.samples_dropped.labels(reason)
        self.samples_held = Gauge(
            "tidegate_agent_samples_held", "Samples that wait for the sink.", registry=self.registry
        )
        self.samples_held_bytes = Gauge(
            "tidegate_agent_samples_held_bytes", "What they take.", registry=self.registry
        )
        self._near_line()

    def _near_line(self) -> None:
        """What the worker of a near-line stream counts."""

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tidegate_agent_nearline_{name}", text, registry=self.registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"tidegate_agent_nearline_{name}", text, registry=self.registry)

        self.nearline_consuming = gauge("consuming", "1 if the pod consumes its stream.")
        self.nearline_backlog = gauge("backlog", "Messages of the stream that no pod has yet.")
        self.nearline_in_flight = gauge("in_flight", "Messages that the pod holds.")
        self.nearline_messages = counter("messages", "Messages delivered to the pod.")
        self.nearline_redelivered = counter(
            "redelivered", "Those that were delivered before, here or elsewhere."
        )
        self.nearline_results = counter("results", "Results kept.")
        self.nearline_late = counter("late", "Results kept after the message's deadline.")
        self.nearline_duplicates = counter("duplicates", "Messages whose id had a result already.")
        self.nearline_returned = counter("returned", "Messages given back to be delivered again.")
        self.nearline_busy_seconds = counter(
            "busy_seconds", "Time in which the model was asked at least one message."
        )
        self.nearline_dead_letters = Counter(
            "tidegate_agent_nearline_dead_letters",
            "Messages that went to the dead letters.",
            ["reason"],
            registry=self.registry,
        )
        for reason in DeadReason:
            self.nearline_dead_letters.labels(reason)

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self.registry)
