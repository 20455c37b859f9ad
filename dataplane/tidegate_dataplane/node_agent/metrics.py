"""The node agent's metrics, from its last report."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_dataplane.contract import exported
from tidegate_dataplane.contract.sharing import DaemonState, ServerStatus
from tidegate_dataplane.node_agent.watcher import MpsWatcher


class NodeMetrics(Collector):
    """Reads the watcher's report at every scrape."""

    def __init__(self, watcher: MpsWatcher, registry: CollectorRegistry) -> None:
        self._watcher = watcher
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the metrics; none before the first report, and none if MPS cannot be asked."""
        report = self._watcher.report
        if report is None or report.daemon is DaemonState.UNKNOWN:
            return
        daemon = exported.DAEMON_ANSWERS.make_family()
        daemon.add_metric([], float(report.daemon is DaemonState.ANSWERS))
        yield daemon
        servers = exported.MPS_SERVERS.make_family()
        for status in ServerStatus:
            servers.add_metric([status.value], sum(server.status is status for server in report.servers))
        yield servers
        clients = exported.MPS_CLIENTS.make_family()
        clients.add_metric([], len(report.clients))
        yield clients
