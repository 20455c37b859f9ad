"""The report over real sockets: sent when something changed, and not again before."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from builders.loopback import on_loopback
from builders.proxy import CTR_HOST, a_snapshot
from builders.waiting import eventually
from tidegate.planning.access.proxies import ProxyView
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.ledger import AckLedger
from tidegate.xds.report_server import build_report_application
from tidegate.xds.stream import RunningState, StreamProgress
from tidegate_controllers.proxies import ProxyReports

FIRST = a_snapshot({"a": 1}, routes_to=["a"], generation=1)
SECOND = a_snapshot({"a": 1}, routes_to=["a"], generation=2)


@pytest.fixture
def ledger() -> AckLedger:
    cache = SnapshotCache()
    cache.set(FIRST)
    return AckLedger(cache)


@asynccontextmanager
async def served(ledger: AckLedger) -> AsyncIterator[tuple[str, Counter[int]]]:
    """The address, and how often each HTTP status was the answer."""
    statuses: Counter[int] = Counter()

    @web.middleware
    async def counted(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response = await handler(request)
        statuses[response.status] += 1
        return response

    application = build_report_application(ledger)
    application.middlewares.append(counted)
    async with on_loopback(application) as address:
        yield address, statuses


async def test_controllers_are_told_once_of_each_change(ledger: AckLedger) -> None:
    ledger.record_progress(
        1, StreamProgress("gateway-1", FIRST, None, resumed=False, running=RunningState(FIRST))
    )
    async with served(ledger) as (address, statuses):
        proxies = ProxyReports(lambda: [address])
        asking = asyncio.create_task(proxies.run())
        try:
            await eventually(lambda: statuses[304] >= 2, what="the same report is not sent again")
            assert statuses[200] == 1
            assert proxies.view_object(CTR_HOST, "uid") == (ProxyView("gateway-1", 1),)

            ledger.record_progress(
                1, StreamProgress("gateway-1", SECOND, None, resumed=False, running=RunningState(SECOND))
            )
            await eventually(
                lambda: proxies.view_object(CTR_HOST, "uid") == (ProxyView("gateway-1", 2),),
                what="the new generation arrives",
            )
            assert statuses[200] == 2
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def test_a_restarted_server_does_not_pass_for_the_old_one(ledger: AckLedger) -> None:
    async with aiohttp.ClientSession() as session:
        async with (
            served(ledger) as (address, _),
            session.get(f"http://{address}/v2/programmed") as response,
        ):
            tag = response.headers["ETag"]
        async with (
            served(ledger) as (address, _),
            session.get(f"http://{address}/v2/programmed", headers={"If-None-Match": tag}) as response,
        ):
            assert response.status == 200
