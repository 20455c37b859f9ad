"""The figures of a shard's process, on a page of its own: it may end long before the pod's other processes."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class BatchMetrics:
    """One process's figures in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"tidegate_batch_{name}", text, registry=self.registry)

        self.shard_rows = Gauge("tidegate_batch_shard_rows", "Rows of the shard.", registry=self.registry)
        self.rows_left = Gauge(
            "tidegate_batch_rows_left", "Rows of the shard that are in no file yet.", registry=self.registry
        )
        self.rows = counter("rows", "Rows that this process asked the model and wrote.")
        self.rows_found = counter("rows_found", "Rows that an earlier pod had written.")
        self.rows_refused = counter(
            "rows_refused", "Rows that are in a file of refused ones, with the reason."
        )
        self.requests = counter("requests", "Requests to the model, repeated ones not counted.")
        self.troubles = counter("troubles", "Times that the store or the server failed, and was tried again.")
