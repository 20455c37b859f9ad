"""The process that simulates what a fleet has besides its control plane: kubelets, agents, gateways, Prometheus.

    python -m tidegate_localcluster.fleet_demo.simulation STATE_DIR

Its log, /-/healthy and its version say that it is a simulation.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo.agents import serve_agents
from tidegate_localcluster.fleet_demo.api import ApiServerClient
from tidegate_localcluster.fleet_demo.day import DemoClock, format_hours
from tidegate_localcluster.fleet_demo.kubelet import ReadyPods, SimulatedKubelets
from tidegate_localcluster.fleet_demo.objects import NAMESPACE, list_models
from tidegate_localcluster.fleet_demo.pool_metrics import scrape_pools
from tidegate_localcluster.fleet_demo.prometheus import (
    SCRAPE_EVERY_S,
    SimulatedPrometheus,
    VectorSample,
    read_rules,
)
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.state import ClusterPlan, Forward, StateDir
from tidegate_localcluster.supplies import find_source_root

DISCLAIMER: Final = (
    "a stand-in for Prometheus with a made-up day's load; no Prometheus, and nothing was measured"
)
VERSION: Final = "0.0.0-tidegate-stand-in"
DAY_FILE: Final = "day.json"

log = logging.getLogger("fleet-demo")


def open_clock(files: StateDir, plan: ClusterPlan) -> DemoClock:
    """Return the demo's clock of this state folder, the same for all its processes."""
    if plan.fleet is None:
        raise LocalClusterError(f"{files.path} holds no fleet demo; `make demo-fleet` makes one")
    return DemoClock(files.data / DAY_FILE, plan.fleet.speed, time.time)


class PrometheusServer:
    """The part of Prometheus's HTTP API that Tidegate uses."""

    def __init__(self, stand_in: SimulatedPrometheus, day: DemoClock) -> None:
        """Answer from `stand_in`."""
        self._stand_in = stand_in
        self._day = day
        self._unknown: set[str] = set()

    def make_application(self) -> web.Application:
        """Return the application with its routes."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/", self._get_about),
                web.get("/-/healthy", self._get_about),
                web.get("/-/ready", self._get_about),
                web.get("/api/v1/status/buildinfo", self._get_build_info),
                *(
                    web.route(method, f"/api/v1/{path}", handler)
                    for method in ("GET", "POST")
                    for path, handler in (("query", self._get_instant), ("query_range", self._get_range))
                ),
            ]
        )
        return application

    async def _get_about(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{DISCLAIMER}; it is {format_hours(self._day.hours_at())}\n")

    async def _get_build_info(self, _: web.Request) -> web.Response:
        return _success_response({"version": VERSION, "revision": DISCLAIMER, "branch": "", "goVersion": ""})

    async def _get_instant(self, request: web.Request) -> web.Response:
        parameters = {**request.query, **await request.post()}
        query, time_s = str(parameters.get("query", "")), float(str(parameters.get("time", time.time())))
        self._log_unknown(query)
        result = [_format_point(sample, time_s) for sample in self._stand_in.query_instant(query, time_s)]
        return _success_response({"resultType": "vector", "result": result})

    async def _get_range(self, request: web.Request) -> web.Response:
        parameters = {**request.query, **await request.post()}
        query = str(parameters.get("query", ""))
        try:
            begin, end, step = (float(str(parameters[name])) for name in ("start", "end", "step"))
        except (KeyError, ValueError):
            return _error_response("start, end and step are needed, in seconds")
        if step <= 0 or end < begin:
            return _error_response("step must be above 0, and end not before start")
        self._log_unknown(query)
        series = self._stand_in.query_range(query, begin, end, step)
        result = [
            {"metric": dict(metric), "values": [[time_s, _format_number(value)] for time_s, value in points]}
            for metric, points in series
        ]
        return _success_response({"resultType": "matrix", "result": result})

    def _log_unknown(self, query: str) -> None:
        """Log each unknown query once, to explain an empty answer."""
        if not self._stand_in.knows_query(query) and query not in self._unknown and len(self._unknown) < 1000:
            self._unknown.add(query)
            log.info("unknown query, answered with no samples: %s", query)


def _success_response(data: dict[str, Any]) -> web.Response:
    return web.json_response({"status": "success", "data": data})


def _error_response(message: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": "bad_data", "error": message}, status=400)


def _format_point(sample: VectorSample, time_s: float) -> dict[str, Any]:
    return {"metric": dict(sample.metric), "value": [time_s, _format_number(sample.value)]}


def _format_number(value: float) -> str:
    """Format a number as Prometheus does."""
    return "+Inf" if value == float("inf") else repr(round(value, 6))


async def _record_replicas(stand_in: SimulatedPrometheus) -> None:
    """Record the ready replicas every few seconds, as Prometheus scrapes."""
    while True:
        stand_in.record_replicas(time.time())
        await asyncio.sleep(SCRAPE_EVERY_S)


async def _serve_fleet(files: StateDir, plan: ClusterPlan) -> None:
    pods, day = ReadyPods(), open_clock(files, plan)
    stand_in = SimulatedPrometheus(list_models(plan), NAMESPACE, day, pods, read_rules(find_source_root()))
    server = f"https://{LOOPBACK}:{plan.ports[Forward.APISERVER]}"
    administrator = KeyPair(files.pki / "admin.crt", files.pki / "admin.key")
    runner = web.AppRunner(
        PrometheusServer(stand_in, day).make_application(), access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        port = plan.ports[Forward.PROMETHEUS]
        await web.TCPSite(runner, LOOPBACK, port).start()
        log.info("http://%s:%d is %s", LOOPBACK, port, DISCLAIMER)
        authority = str(files.pki / "ca.crt")
        async with (
            serve_agents(Pki(files.pki)),
            ApiServerClient(server, authority, administrator) as api,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(SimulatedKubelets(api, pods).run())
            tasks.create_task(_record_replicas(stand_in))
            page = f"http://{LOOPBACK}:{plan.probes['controllers']}/metrics"
            tasks.create_task(scrape_pools(stand_in.pools, page, SCRAPE_EVERY_S))
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str]) -> int:
    """Simulate the fleet of the given state folder until the process is stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    files = StateDir(Path(arguments[0]))
    plan = ClusterPlan.read(files.plan)
    if plan is None:
        raise LocalClusterError(f"{files.plan} does not exist; `make demo-fleet` writes it")
    asyncio.run(_serve_fleet(files, plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
