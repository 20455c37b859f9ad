"""The node agent's metrics: what it found of MPS at its last look."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_dataplane.contract import exported
from tidegate_dataplane.contract.sharing import DaemonState, ServerStatus
from tidegate_dataplane.node_agent.watcher import Watcher


class NodeMetrics(Collector):
    """Read from the watcher's report when somebody asks."""

    def __init__(self, watcher: Watcher, registry: CollectorRegistry) -> None:
        self._watcher = watcher
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Give what the last look found; nothing before the first, and nothing where MPS cannot be asked."""
        report = self._watcher.report
        if report is None or report.daemon is DaemonState.UNKNOWN:
            return
        daemon = exported.DAEMON_ANSWERS.family()
        daemon.add_metric([], float(report.daemon is DaemonState.ANSWERS))
        yield daemon
        servers = exported.MPS_SERVERS.family()
        for status in ServerStatus:
            servers.add_metric([status.value], sum(each.status is status for each in report.servers))
        yield servers
        clients = exported.MPS_CLIENTS.family()
        clients.add_metric([], len(report.clients))
        yield clients
