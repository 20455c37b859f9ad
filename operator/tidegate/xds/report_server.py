"""What an xDS server tells over HTTP: what each connected proxy has accepted, for the controllers, and its snapshots, for people."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus

from aiohttp import web

from tidegate.routing.gateway_secrets import HeldSecret
from tidegate.routing.snapshot import Snapshot
from tidegate.xds import inspection
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyState
from tidegate.xds.ledger import AckLedger
from tidegate.xds.report import ProxyReport, to_json


def report_application(ledger: AckLedger) -> web.Application:
    """Serves the report of `ledger` (xds.report.ProxyReport).

    The controllers ask four times a second, and ten thousand objects are a megabyte:
    so the answer carries an ETag, and one that is known already is not sent again.
    """
    process = uuid.uuid4().hex

    async def programmed(request: web.Request, write: Callable[[ProxyReport], str]) -> web.Response:
        tag = f'"{process}-{ledger.edition}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        text = write(ledger.report())
        return web.Response(text=text, content_type="application/json", headers={"ETag": tag})

    application = web.Application()
    application.add_routes(
        [
            web.get("/v2/programmed", partial(programmed, write=to_json)),
            # For controllers of the release before, in an upgrade: each proxy with all that it runs.
            web.get("/v1/programmed", partial(programmed, write=ProxyReport.model_dump_json)),
        ]
    )
    return application


def add_inspection(
    application: web.Application,
    cache: SnapshotCache,
    states: Callable[[], Sequence[ProxyState]],
    secrets: Callable[[], Sequence[HeldSecret]] = tuple,
) -> None:
    """Adds what `tidegate xds status`, `dump` and `diff` ask for: the proxies, the Secrets of their TLS port, and the snapshots that `cache` keeps.

    Names and versions only: whoever reaches this port may ask, and the content is the routing of every tenant.
    """

    async def proxies(_: web.Request) -> web.Response:
        answer = {"proxies": inspection.proxies(states()), "gatewaySecrets": inspection.held(secrets())}
        return web.json_response(answer)

    async def snapshots(_: web.Request) -> web.Response:
        return web.json_response({"snapshots": inspection.revisions(cache.history)})

    application.add_routes([web.get("/v1/proxies", proxies), web.get("/v1/snapshots", snapshots)])
    _add_snapshots(
        application,
        cache,
        lambda snapshot, _: inspection.dump(snapshot),
        lambda before, after, _: inspection.diff(before, after),
    )


def contents_application(cache: SnapshotCache) -> web.Application:
    """Serves the content of single resources, by the query `name`; for a port that the pod alone reaches."""
    application = web.Application()
    _add_snapshots(application, cache, inspection.contents, inspection.diff_of_contents)
    return application


def _add_snapshots(
    application: web.Application,
    cache: SnapshotCache,
    dump: Callable[[Snapshot, str], inspection.Document],
    diff: Callable[[Snapshot, Snapshot, str], inspection.Document],
) -> None:
    """Both take snapshots and the name that is asked for. One answer at a time is made, and beside the event loop, which serves the proxies."""
    one_at_a_time = asyncio.Lock()

    async def answered(make: Callable[[], inspection.Document]) -> web.Response:
        async with one_at_a_time:
            text = await asyncio.to_thread(lambda: json.dumps(make()))
        return web.Response(text=text, content_type="application/json")

    async def one_snapshot(request: web.Request) -> web.Response:
        found = inspection.find(cache.history, request.match_info["revision"])
        name = request.query.get("name", "")
        return _unknown(request) if found is None else await answered(lambda: dump(found, name))

    async def difference(request: web.Request) -> web.Response:
        before = inspection.find(cache.history, request.query.get("from", inspection.PREVIOUS))
        after = inspection.find(cache.history, request.query.get("to", inspection.CURRENT))
        if before is None or after is None:
            return _unknown(request)
        name = request.query.get("name", "")
        return await answered(lambda: diff(before, after, name))

    application.add_routes(
        [web.get("/v1/snapshots/{revision}", one_snapshot), web.get("/v1/diff", difference)]
    )


def _unknown(request: web.Request) -> web.Response:
    words = (
        f"no such revision is kept: {request.path_qs}; the oldest go when there are 32, "
        "or when they take more than TIDEGATE_HISTORY_BYTES: GET /v1/snapshots lists those that are kept"
    )
    return web.json_response({"error": words}, status=HTTPStatus.NOT_FOUND)
