"""Answer for the cluster of a recorded fleet: as its API server, its Prometheus and its controllers, on one address.

Lists and watches of any kind are answered, with the recorded objects or none. Nothing changes, and nobody may write.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from tidegate.recorded.record import RecordedFleet
from tidegate.telemetry.prometheus_api import RangeSeries

LOOPBACK: Final = "127.0.0.1"
USER: Final = "visitor"
READING: Final = frozenset({"get", "list", "watch"})
_RESOURCE_VERSION: Final = "1"
_COLLECTION: Final = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)


class RecordedCluster:
    """Handlers of requests to the recorded cluster."""

    def __init__(self, fleet: RecordedFleet) -> None:
        self._fleet = fleet

    def make_app(self) -> web.Application:
        """Return the application that answers all requests."""
        app = web.Application()
        for method in ("GET", "POST"):
            app.router.add_route(method, "/api/v1/query", self._answer_query)
            app.router.add_route(method, "/api/v1/query_range", self._answer_range)
        app.router.add_get("/allocation/{pool}", self._answer_solver_input)
        app.router.add_post("/apis/{group}/{version}/selfsubjectreviews", self._answer_who)
        app.router.add_post("/apis/{group}/{version}/selfsubjectaccessreviews", self._answer_rights)
        app.router.add_get("/{path:.*}", self._answer_objects)
        app.router.add_route("*", "/{path:.*}", self._refuse_write)
        return app

    async def _answer_objects(self, request: web.Request) -> web.StreamResponse:
        """Answer a get, a list or a watch of any kind."""
        match = _COLLECTION.fullmatch(request.path)
        if match is None:
            return _make_status(404, f"a recorded fleet has no {request.path}")
        bodies = [
            body
            for body in self._fleet.bodies.get(match["plural"], ())
            if match["namespace"] in (None, body["metadata"].get("namespace"))
        ]
        if match["name"] is not None:
            chosen = next((body for body in bodies if body["metadata"]["name"] == match["name"]), None)
            return web.json_response(chosen) if chosen is not None else _make_status(404, "not recorded")
        if request.query.get("watch") in {"true", "1"}:
            return await _hold_watch(request)
        selected = _select_labels(bodies, request.query.get("labelSelector", ""))
        metadata = {"resourceVersion": _RESOURCE_VERSION}
        return web.json_response(
            {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": selected}
        )

    async def _refuse_write(self, _: web.Request) -> web.Response:
        return _make_status(403, "this is a recorded fleet, in which nothing can be changed")

    async def _answer_who(self, _: web.Request) -> web.Response:
        return web.json_response({"status": {"userInfo": {"username": USER, "groups": []}}})

    async def _answer_rights(self, request: web.Request) -> web.Response:
        attributes = (await request.json())["spec"].get("resourceAttributes", {})
        right = attributes.get("verb"), attributes.get("resource")
        # What-ifs need that right, and change nothing.
        is_allowed = right[0] in READING or right == ("create", "computeoverrides")
        return web.json_response({"status": {"allowed": is_allowed}})

    async def _answer_solver_input(self, _: web.Request) -> web.Response:
        return web.json_response(self._fleet.solver_input)

    async def _answer_query(self, request: web.Request) -> web.Response:
        """Answer the dashboard's queries for the rate and the p99 of each Envoy cluster."""
        query = (await _read_parameters(request)).get("query", "")
        is_rate = "upstream_rq_total" in query
        if not is_rate and "upstream_rq_time_bucket" not in query:
            return _make_answer("vector", ())
        time = self._fleet.time.timestamp()
        values = {
            name: rate if is_rate else p99
            for name, (rate, p99) in self._fleet.traffic.items()
            if is_rate or "0.99" in query
        }
        result = [
            {"metric": {"envoy_cluster_name": name}, "value": [time, str(value)]}
            for name, value in values.items()
            if value is not None
        ]
        return _make_answer("vector", result)

    async def _answer_range(self, request: web.Request) -> web.Response:
        """Answer a query of a chart with the recorded series, at the asked times."""
        parameters = await _read_parameters(request)
        begin, end, step = (float(parameters[name]) for name in ("start", "end", "step"))
        return _make_answer("matrix", self.sample_series(parameters.get("query", ""), begin, end, step))

    def sample_series(self, query: str, begin: float, end: float, step: float) -> Sequence[RangeSeries]:
        """Return the recorded series that a chart's query means, at each step; times are seconds since 1970."""
        return [
            {"metric": series["metric"], "values": values}
            for series in self._find_series(query)
            if (values := _sample_series(series["values"], begin, end, step))
        ]

    def _find_series(self, query: str) -> Sequence[RangeSeries]:
        """Return the series that traffic_series or the charts of a pool ask for by this query; none if they are not recorded."""
        if "tidegate_pool_" in query:
            return self._fleet.series["pool"]
        for charted, answer in self._fleet.series.items():
            kind, _, key = charted.partition("/")
            namespace, _, name = key.partition("/")
            if kind == "release" and f"release/{key}/" in query:
                return answer
            if kind == "inference" and f"(inference/{namespace}|" in query and f")/{name}(" in query:
                return answer
        return ()


@asynccontextmanager
async def serve_recorded_cluster(fleet: RecordedFleet) -> AsyncGenerator[str]:
    """Serve the recorded cluster on loopback while the block runs; yield its host:port."""
    runner = web.AppRunner(RecordedCluster(fleet).make_app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield f"{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def make_kubeconfig(address: str) -> str:
    """Return a kubeconfig for the server at that address."""
    name = "recorded"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": f"http://{address}"}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
    )


async def _hold_watch(request: web.Request) -> web.StreamResponse:
    """Keep a watch open without an event, until the client or the server ends."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await asyncio.sleep(float(request.query.get("timeoutSeconds", "300")))
    return response


async def _read_parameters(request: web.Request) -> Mapping[str, str]:
    form = await request.post() if request.method == "POST" else {}
    return {**request.query, **{name: str(value) for name, value in form.items()}}


def _select_labels(bodies: Sequence[Mapping[str, Any]], selector: str) -> list[Mapping[str, Any]]:
    """Return the objects with these labels; of selectors other than `name=value`, all."""
    wanted_labels = dict(
        part.split("=", 1) for part in selector.split(",") if re.fullmatch(r"[^!=]+=[^=]+", part)
    )
    return [
        body for body in bodies if wanted_labels.items() <= (body["metadata"].get("labels") or {}).items()
    ]


def _sample_series(
    values: Sequence[tuple[float, str]], begin: float, end: float, step: float
) -> list[tuple[float, str]]:
    """Return the latest value at each step, unless it is older than two recorded intervals."""
    if len(values) < 2 or step <= 0:
        return []
    stale = 2 * (values[1][0] - values[0][0])
    sampled: list[tuple[float, str]] = []
    position = 0
    for number in range(int((end - begin) / step) + 1):
        time = begin + number * step
        while position + 1 < len(values) and values[position + 1][0] <= time + step / 1000:
            position += 1
        if values[position][0] <= time + step / 1000 and time - values[position][0] <= max(stale, step):
            sampled.append((time, values[position][1]))
    return sampled


def _make_answer(kind: str, result: Sequence[Any]) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}})


def _make_status(code: int, message: str) -> web.Response:
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": code}
    return web.json_response(status, status=code)
