"""A gateway that is stricter than Tidegate believes: the object that it refuses says so, and no other one waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Gateway, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.proxies import judge_programmed
from tidegate.planning.inference.serving_status import Verdict
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds.report_server import build_report_application
from tidegate_controllers.proxies import ProxyReports

CTR = (("x-tidegate-access", "ads/ctr"),)


@pytest_asyncio.fixture
async def proxies(gateway: Gateway) -> AsyncIterator[ProxyReports]:
    """What the controllers know of the gateway, asked for over HTTP."""
    runner = web.AppRunner(build_report_application(gateway.control_plane.ledger))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    known = ProxyReports(lambda: [f"127.0.0.1:{runner.addresses[0][1]}"])
    asking = asyncio.create_task(known.run())
    yield known
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await runner.cleanup()


def matching(name: str, generation: int, regex: str) -> ModelAccess:
    """An access whose first route takes users by this expression."""
    by_user = a_route("users", "ctr", match={"headers": [{"name": "x-user", "regex": regex}]})
    routes = [by_user, a_route("default", "ctr")]
    return a_model_access(name, routes=routes, metadata={"generation": generation})


async def said_of(proxies: ProxyReports, access: ModelAccess, reason: Reason) -> Verdict:
    """The verdict on an access once it is for this reason."""
    host = HostKey(HostKind.ACCESS, ObjectKey("ads", access.metadata.name))

    async def verdict() -> Verdict | None:
        now = judge_programmed(proxies.view_object(host, access.metadata.uid), access.metadata.generation)
        return now if now.reason is reason else None

    return await eventually(verdict, f"{access.key} is {reason}")


@pytest.mark.produces(Reason.PROXY_REJECTED)
async def test_what_one_gateway_refuses_is_said_by_its_object_in_the_gateways_words(
    gateway: Gateway, proxies: ProxyReports
) -> None:
    """Envoy's own limit for expressions is 100 instructions, as ours; who runs it with another one is not known to us."""
    gateway.envoy.runtime = {"re2.max_program_size.error_level": 60}
    backend = backend_of("ctr", await gateway.upstream("ctr"))
    client = await gateway.start(matching("ctr", 1, "a"), matching("other", 1, "a"), backend)
    refused, other = matching("ctr", 2, "a{80}"), matching("other", 2, "b")
    gateway.control_plane.set(refused, other, backend)

    rejected = await said_of(proxies, refused, Reason.PROXY_REJECTED)
    assert rejected.stalled
    assert rejected.message.startswith("proxy gateway-1: ")
    assert "max program size of 60" in rejected.message
    await said_of(proxies, other, Reason.PROGRAMMED)
    assert await client.infer(metadata=CTR) == "ctr"

    mended = matching("ctr", 3, "a{4}")
    gateway.control_plane.set(mended, other, backend)
    await said_of(proxies, mended, Reason.PROGRAMMED)
