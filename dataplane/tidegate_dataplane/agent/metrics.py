"""The agent's metrics, for alarms: what it serves, what it wants, what went wrong."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self.registry)
