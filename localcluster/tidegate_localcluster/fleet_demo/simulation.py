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
from tidegate_localcluster.fleet_demo.agents import agents
from tidegate_localcluster.fleet_demo.api import Api
from tidegate_localcluster.fleet_demo.day import Day, clock_text
from tidegate_localcluster.fleet_demo.kubelet import Kubelets, Pods
from tidegate_localcluster.fleet_demo.objects import NAMESPACE, models_of
from tidegate_localcluster.fleet_demo.prometheus import SCRAPE_EVERY_S, Sample, StandIn, read_rules
from tidegate_localcluster.fleet_demo.scraped import scrape
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.state import Forward, Plan, StateDir
from tidegate_localcluster.supplies import source_root

WHAT_IT_IS: Final = (
    "a stand-in for Prometheus with a made-up day's load; no Prometheus, and nothing was measured"
)
VERSION: Final = "0.0.0-tidegate-stand-in"
DAY_FILE: Final = "day.json"

log = logging.getLogger("fleet-demo")


def day_of(files: StateDir, plan: Plan) -> Day:
    """Return the demo's clock of this state folder, the same for all its processes."""
    if plan.fleet is None:
        raise LocalClusterError(f"{files.path} holds no fleet demo; `make demo-fleet` makes one")
    return Day(files.data / DAY_FILE, plan.fleet.speed, time.time)


class Server:
    """The part of Prometheus's HTTP API that Tidegate uses."""

    def __init__(self, stand_in: StandIn, day: Day) -> None:
        """Answer from `stand_in`."""
        self._stand_in = stand_in
        self._day = day
        self._unknown: set[str] = set()

    def application(self) -> web.Application:
        """Return the application with its routes."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/", self._about),
                web.get("/-/healthy", self._about),
                web.get("/-/ready", self._about),
                web.get("/api/v1/status/buildinfo", self._build),
                *(
                    web.route(method, f"/api/v1/{path}", handler)
                    for method in ("GET", "POST")
                    for path, handler in (("query", self._query), ("query_range", self._range))
                ),
            ]
        )
        return application

    async def _about(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{WHAT_IT_IS}; it is {clock_text(self._day.hours_since())}\n")

    async def _build(self, _: web.Request) -> web.Response:
        return _success({"version": VERSION, "revision": WHAT_IT_IS, "branch": "", "goVersion": ""})

    async def _query(self, request: web.Request) -> web.Response:
        parameters = {**request.query, **await request.post()}
        query, time_s = str(parameters.get("query", "")), float(str(parameters.get("time", time.time())))
        self._note(query)
        result = [_point(sample, time_s) for sample in self._stand_in.instant(query, time_s)]
        return _success({"resultType": "vector", "result": result})

    async def _range(self, request: web.Request) -> web.Response:
        parameters = {**request.query, **await request.post()}
        query = str(parameters.get("query", ""))
        try:
            begin, end, step = (float(str(parameters[name])) for name in ("start", "end", "step"))
        except (KeyError, ValueError):
            return _refused("start, end and step are needed, in seconds")
        if step <= 0 or end < begin:
            return _refused("step must be above 0, and end not before start")
        self._note(query)
        series = self._stand_in.range(query, begin, end, step)
        result = [
            {"metric": dict(metric), "values": [[time_s, _text(value)] for time_s, value in points]}
            for metric, points in series
        ]
        return _success({"resultType": "matrix", "result": result})

    def _note(self, query: str) -> None:
        """Log each unknown query once, to explain an empty answer."""
        if not self._stand_in.knows(query) and query not in self._unknown and len(self._unknown) < 1000:
            self._unknown.add(query)
            log.info("unknown query, answered with no samples: %s", query)


def _success(data: dict[str, Any]) -> web.Response:
    return web.json_response({"status": "success", "data": data})


def _refused(message: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": "bad_data", "error": message}, status=400)


def _point(sample: Sample, time_s: float) -> dict[str, Any]:
    return {"metric": dict(sample.metric), "value": [time_s, _text(sample.value)]}


def _text(value: float) -> str:
    """Format a number as Prometheus does."""
    return "+Inf" if value == float("inf") else repr(round(value, 6))


async def _scrape(stand_in: StandIn) -> None:
    """Record the ready replicas every few seconds, as Prometheus scrapes."""
    while True:
        stand_in.scrape(time.time())
        await asyncio.sleep(SCRAPE_EVERY_S)


async def _run(files: StateDir, plan: Plan) -> None:
    pods, day = Pods(), day_of(files, plan)
    stand_in = StandIn(models_of(plan), NAMESPACE, day, pods, read_rules(source_root()))
    server = f"https://{LOOPBACK}:{plan.ports[Forward.APISERVER]}"
    administrator = KeyPair(files.pki / "admin.crt", files.pki / "admin.key")
    runner = web.AppRunner(Server(stand_in, day).application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        port = plan.ports[Forward.PROMETHEUS]
        await web.TCPSite(runner, LOOPBACK, port).start()
        log.info("http://%s:%d is %s", LOOPBACK, port, WHAT_IT_IS)
        authority = str(files.pki / "ca.crt")
        async with (
            agents(Pki(files.pki)),
            Api(server, authority, administrator) as api,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(Kubelets(api, pods).run())
            tasks.create_task(_scrape(stand_in))
            page = f"http://{LOOPBACK}:{plan.probes['controllers']}/metrics"
            tasks.create_task(scrape(stand_in.pools, page, SCRAPE_EVERY_S))
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str]) -> int:
    """Simulate the fleet of the given state folder until the process is stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    files = StateDir(Path(arguments[0]))
    plan = Plan.read(files.plan)
    if plan is None:
        raise LocalClusterError(f"{files.plan} does not exist; `make demo-fleet` writes it")
    asyncio.run(_run(files, plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
