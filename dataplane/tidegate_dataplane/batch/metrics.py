"""The metrics of a shard's process, which has its own page because it may end before the pod's other processes."""

from prometheus_client import CollectorRegistry

from tidegate_dataplane.contract import exported


class BatchMetrics:
    """The metrics of one process in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.shard_rows = exported.SHARD_ROWS.register(self.registry)
        self.rows_left = exported.ROWS_LEFT.register(self.registry)
        self.rows = exported.ROWS.register(self.registry)
        self.rows_found = exported.ROWS_FOUND.register(self.registry)
        self.rows_refused = exported.ROWS_REFUSED.register(self.registry)
        self.requests = exported.REQUESTS.register(self.registry)
        self.retries = exported.RETRIES.register(self.registry)
