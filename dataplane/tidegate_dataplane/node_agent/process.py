"""Wire the node agent's parts and run them until the pod ends."""

import datetime
import math
import re
from collections.abc import Iterable
from pathlib import Path

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_dataplane.agent.certificates import make_server_certificate
from tidegate_dataplane.agent.control_server import ControlServer, controllers_only
from tidegate_dataplane.agent.stopping import run_until, watch_stop_signals
from tidegate_dataplane.contract import exported
from tidegate_dataplane.contract.sharing import DaemonState, ServerStatus
from tidegate_dataplane.node_agent.mps import MpsControl
from tidegate_dataplane.node_agent.settings import NodeAgentSettings
from tidegate_dataplane.node_agent.watcher import MpsWatcher

log = structlog.get_logger()

MAX_WAIT_S = 30.0
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


async def run_node_agent(settings: NodeAgentSettings) -> None:
    """Run the node agent until SIGTERM or SIGINT."""
    stop = watch_stop_signals()
    mps = MpsControl(settings.program, settings.pipe_directory, settings.command_timeout_s)
    watcher = MpsWatcher(
        settings.node_name,
        mps,
        lambda pid: find_pod(settings.proc, pid),
        lambda: datetime.datetime.now(datetime.UTC),
    )
    names = (settings.node_name, settings.pod_ip, "127.0.0.1", "localhost")
    pem = make_server_certificate(names, datetime.datetime.now(datetime.UTC))
    control = ControlServer(
        _make_control_app(watcher),
        pem,
        settings.client_authority,
        address=settings.address,
        port=settings.control_port,
    )
    registry = CollectorRegistry()
    NodeMetrics(watcher, registry)
    probes = web.AppRunner(_make_probes_app(watcher, registry), access_log=None, handle_signals=False)
    await control.start()
    await probes.setup()
    await web.TCPSite(probes, settings.address, settings.http_port).start()
    log.info("node_agent_started", node=settings.node_name, http_port=probes.addresses[0][1])
    try:
        await run_until(stop, lambda: watcher.run(settings.interval_s), control.watch_authority)
    finally:
        await watcher.close()
        await control.stop()
        await probes.cleanup()


def _make_probes_app(watcher: MpsWatcher, registry: CollectorRegistry) -> web.Application:
    """Return /healthz, /readyz and /metrics; the agent is ready after its first query of MPS, whatever the result."""

    async def get_health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def get_readiness(_: web.Request) -> web.Response:
        if watcher.report is None:
            return web.Response(text="MPS has not been queried yet\n", status=503)
        return web.Response(text="ok\n")

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)
    app.router.add_get("/metrics", get_metrics)
    return app


def _make_control_app(watcher: MpsWatcher) -> web.Application:
    """Return the application that serves `GET /v1/node?known=<revision>&wait=<seconds>` to the controllers alone.

    It answers as soon as the report has another revision, so that a client can follow many nodes without polling.
    """

    async def get_node(request: web.Request) -> web.Response:
        revision = request.query.get("known", "")
        try:
            wait_s = float(request.query.get("wait", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= MAX_WAIT_S:
            return web.json_response({"error": f"wait is not from 0 to {MAX_WAIT_S:g} s"}, status=422)
        report = await watcher.wait_for_change(revision, wait_s) if wait_s and revision else watcher.report
        if report is None:
            return web.json_response({"error": "MPS has not been queried yet"}, status=503)
        return web.Response(text=report.to_json(), content_type="application/json")

    app = web.Application(middlewares=[controllers_only])
    app.router.add_get("/v1/node", get_node)
    return app


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


def find_pod(proc: Path, pid: int) -> str:
    """Return the uid of the pod of process `pid`, from the path of its cgroup; empty without a pod or a process."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""
    match = _POD.search(text)
    # The systemd driver of the kubelet writes _ for -, since - has a meaning in a slice's name.
    return match.group(1).replace("_", "-") if match else ""
