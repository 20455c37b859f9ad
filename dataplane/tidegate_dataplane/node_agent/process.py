"""Wire the node agent's parts and run them until the pod ends."""

import asyncio
import datetime
import signal

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tidegate_dataplane.agent.certificates import make_server_certificate
from tidegate_dataplane.agent.control_server import ControlServer
from tidegate_dataplane.node_agent.control import control_app
from tidegate_dataplane.node_agent.metrics import NodeMetrics
from tidegate_dataplane.node_agent.mps import MpsControl
from tidegate_dataplane.node_agent.pods import pod_of
from tidegate_dataplane.node_agent.settings import NodeAgentSettings
from tidegate_dataplane.node_agent.watcher import MpsWatcher

log = structlog.get_logger()


async def run_node_agent(settings: NodeAgentSettings) -> None:
    """Run the node agent until SIGTERM or SIGINT."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    mps = MpsControl(settings.program, settings.pipe_directory, settings.command_timeout_s)
    watcher = MpsWatcher(
        settings.node_name,
        mps,
        lambda pid: pod_of(settings.proc, pid),
        lambda: datetime.datetime.now(datetime.UTC),
    )
    names = (settings.node_name, settings.pod_ip, "127.0.0.1", "localhost")
    pem = make_server_certificate(names, datetime.datetime.now(datetime.UTC))
    control = ControlServer(
        control_app(watcher),
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
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(watcher.run(settings.interval_s)),
                group.create_task(control.watch_authority()),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()
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
