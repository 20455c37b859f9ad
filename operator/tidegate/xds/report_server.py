"""HTTP endpoints of an xDS server: what each proxy has accepted, for the controllers, and snapshots, for users."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from http import HTTPStatus

from aiohttp import web

from tidegate.routing.gateway_secrets import GatewaySecretState
from tidegate.xds import inspection
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyState
from tidegate.xds.ledger import AckLedger
from tidegate.xds.report import to_json
from tidegate.xds.resources import Snapshot


def build_report_application(ledger: AckLedger) -> web.Application:
    """Return an application that serves the report of `ledger` (xds.report.ProgrammedReport).

    The controllers poll four times a second, and ten thousand objects are a megabyte.
    So the answer has an ETag, and an unchanged one is not sent again.
    """
    process = uuid.uuid4().hex

    async def answer_report(request: web.Request) -> web.Response:
        tag = f'"{process}-{ledger.edition}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return web.Response(
            text=to_json(ledger.build_report()), content_type="application/json", headers={"ETag": tag}
        )

    application = web.Application()
    application.add_routes([web.get("/v2/programmed", answer_report)])
    return application


def add_inspection(
    application: web.Application,
    cache: SnapshotCache,
    states: Callable[[], Sequence[ProxyState]],
    secrets: Callable[[], Sequence[GatewaySecretState]] = tuple,
) -> None:
    """Add what `tidegate xds status`, `dump` and `diff` use: proxies, Secrets of their TLS port, and snapshots.

    It serves names and versions only: anyone who reaches this port may call it, and the content is the routing of every tenant.
    """

    async def answer_proxies(_: web.Request) -> web.Response:
        answer = {
            "proxies": inspection.list_proxies(states()),
            "gatewaySecrets": inspection.list_gateway_secrets(secrets()),
        }
        return web.json_response(answer)

    async def answer_snapshots(_: web.Request) -> web.Response:
        return web.json_response({"snapshots": inspection.list_revisions(cache.history)})

    application.add_routes(
        [web.get("/v1/proxies", answer_proxies), web.get("/v1/snapshots", answer_snapshots)]
    )
    _add_snapshots(
        application,
        cache,
        lambda snapshot, _: inspection.dump_versions(snapshot),
        lambda before, after, _: inspection.diff_versions(before, after),
    )


def build_contents_application(cache: SnapshotCache) -> web.Application:
    """Return an application that serves the content of single resources, for a port that only the pod reaches."""
    application = web.Application()
    _add_snapshots(application, cache, inspection.dump_contents, inspection.diff_contents)
    return application


def _add_snapshots(
    application: web.Application,
    cache: SnapshotCache,
    dump: Callable[[Snapshot, str], inspection.Document],
    diff: Callable[[Snapshot, Snapshot, str], inspection.Document],
) -> None:
    """Add routes whose answers `dump` and `diff` make from snapshots and the query `name`.

    One answer at a time is made, in a thread, so that the event loop keeps serving proxies.
    """
    one_at_a_time = asyncio.Lock()

    async def answer_json(make: Callable[[], inspection.Document]) -> web.Response:
        async with one_at_a_time:
            text = await asyncio.to_thread(lambda: json.dumps(make()))
        return web.Response(text=text, content_type="application/json")

    async def answer_snapshot(request: web.Request) -> web.Response:
        snapshot = inspection.find_snapshot(cache.history, request.match_info["revision"])
        name = request.query.get("name", "")
        return (
            _answer_unknown_revision(request)
            if snapshot is None
            else await answer_json(lambda: dump(snapshot, name))
        )

    async def answer_diff(request: web.Request) -> web.Response:
        before = inspection.find_snapshot(cache.history, request.query.get("from", inspection.PREVIOUS))
        after = inspection.find_snapshot(cache.history, request.query.get("to", inspection.CURRENT))
        if before is None or after is None:
            return _answer_unknown_revision(request)
        name = request.query.get("name", "")
        return await answer_json(lambda: diff(before, after, name))

    application.add_routes(
        [web.get("/v1/snapshots/{revision}", answer_snapshot), web.get("/v1/diff", answer_diff)]
    )


def _answer_unknown_revision(request: web.Request) -> web.Response:
    message = (
        f"no such revision is kept: {request.path_qs}; the oldest go when there are 32, "
        "or when they take more than TIDEGATE_HISTORY_BYTES: GET /v1/snapshots lists those that are kept"
    )
    return web.json_response({"error": message}, status=HTTPStatus.NOT_FOUND)
