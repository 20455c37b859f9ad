"""What an xDS server tells over HTTP: what each connected proxy has accepted, for the controllers, and its snapshots, for people."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from http import HTTPStatus

from aiohttp import web

from tidegate.xds import inspection
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyState
from tidegate.xds.ledger import AckLedger


def report_application(ledger: AckLedger) -> web.Application:
    """Serves the report of `ledger` (xds.report.ProxyReport).

    The controllers ask four times a second, and ten thousand objects are a megabyte:
    so the answer carries an ETag, and one that is known already is not sent again.
    """
    process = uuid.uuid4().hex

    async def programmed(request: web.Request) -> web.Response:
        tag = f'"{process}-{ledger.edition}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        text = ledger.report().model_dump_json()
        return web.Response(text=text, content_type="application/json", headers={"ETag": tag})

    application = web.Application()
    application.add_routes([web.get("/v1/programmed", programmed)])
    return application


def add_inspection(
    application: web.Application, cache: SnapshotCache, states: Callable[[], Sequence[ProxyState]]
) -> None:
    """Adds what `tidegate xds status`, `dump` and `diff` ask for: the proxies, and the snapshots that `cache` keeps."""

    async def proxies(_: web.Request) -> web.Response:
        return web.json_response({"proxies": inspection.proxies(states())})

    async def snapshots(_: web.Request) -> web.Response:
        return web.json_response({"snapshots": inspection.revisions(cache.history)})

    async def snapshot(request: web.Request) -> web.Response:
        found = inspection.find(cache.history, request.match_info["revision"])
        return _unknown(request) if found is None else web.json_response(inspection.dump(found))

    async def diff(request: web.Request) -> web.Response:
        before = inspection.find(cache.history, request.query.get("from", inspection.PREVIOUS))
        after = inspection.find(cache.history, request.query.get("to", inspection.CURRENT))
        if before is None or after is None:
            return _unknown(request)
        return web.json_response(inspection.diff(before, after))

    application.add_routes(
        [
            web.get("/v1/proxies", proxies),
            web.get("/v1/snapshots", snapshots),
            web.get("/v1/snapshots/{revision}", snapshot),
            web.get("/v1/diff", diff),
        ]
    )


def _unknown(request: web.Request) -> web.Response:
    words = f"no such revision is kept: {request.path_qs}; GET /v1/snapshots lists those that are"
    return web.json_response({"error": words}, status=HTTPStatus.NOT_FOUND)
