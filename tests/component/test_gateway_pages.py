"""The gateways' pages of statistics, large and many: the event loop goes on meanwhile, and no gateway passes for silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from builders.loopback import on_loopback
from tidegate.publisher.snapshot_publisher import pause_garbage_collection
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import ScrapeTarget

COUNTERS = ("upstream_rq_total", "upstream_rq_2xx", "upstream_rq_timeout", "upstream_rq_retry")
LINES = "  {}=" + ", ".join(f"{edge},1:3" for edge in range(1, 21))
TIMES = "\n".join((LINES.format("totals"), LINES.format("intervals"), "  summary=P0(1,1) P100(20,20)"))


def a_page(inferences: int) -> str:
    """Envoy's own text, of so many Inferences that were asked by gRPC and by REST."""
    clusters = [
        f"cluster.inference/ads/m{n}/{protocol}" for n in range(inferences) for protocol in ("grpc", "http")
    ]
    lines = [f"{cluster}.{counter}: 7" for cluster in clusters for counter in COUNTERS]
    times = [f"{cluster}.upstream_rq_time:\n{TIMES}" for cluster in clusters]
    unused = "cluster.inference/ads/m0/unused.upstream_rq_time: No recorded values"
    return "\n".join([*lines, "server.uptime: 1000", *times, unused, ""])


class FakeGateway:
    """Answers with one page, and counts how many ask for it together."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.asking = self.most = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asking += 1
        self.most = max(self.most, self.asking)
        await asyncio.sleep(0.01)
        self.asking -= 1
        return web.Response(text=self.page)


@asynccontextmanager
async def served(fake: FakeGateway) -> AsyncIterator[str]:
    """The address of the page."""
    application = web.Application()
    application.router.add_get("/stats", fake.answer)
    async with on_loopback(application) as address:
        yield address


class Steps:
    """The event loop's steps, by the processor time of its thread that each takes."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.total_s = 0.0

    def note(self, before_s: float) -> float:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - before_s)
        self.total_s += now_s - before_s
        return now_s


@contextmanager
def measured() -> Iterator[Steps]:
    """Measure every step of the running loop until the end of the block, without the collector, which walks all other tests' objects."""
    steps, loop, last_s = Steps(), asyncio.get_running_loop(), time.thread_time()

    def turn() -> None:
        nonlocal last_s, handle
        last_s = steps.note(last_s)
        handle = loop.call_later(0, turn)

    handle = loop.call_later(0, turn)
    try:
        with pause_garbage_collection():
            yield steps
    finally:
        handle.cancel()


async def test_a_large_page_is_read_in_small_steps() -> None:
    async with served(FakeGateway(a_page(2_000))) as address:
        traffic = GatewayTraffic(lambda: [ScrapeTarget("gateway-1", address)], dict)
        with measured() as steps:
            assert (await traffic.scrape_signals()).silent_gateways == (
                "gateway-1",
            )  # seen once is nothing to compare with
            look = await traffic.scrape_signals()
    assert (look.silent_gateways, len(look.by_key)) == ((), 2_000)
    assert steps.longest_s < steps.total_s / 5


async def test_of_many_gateways_none_is_silent_for_the_time_that_others_take() -> None:
    fake = FakeGateway(a_page(1))
    async with served(fake) as address:
        traffic = GatewayTraffic(lambda: [ScrapeTarget(f"gateway-{n}", address) for n in range(40)], dict)
        await traffic.scrape_signals()
        assert (await traffic.scrape_signals()).silent_gateways == ()
    assert fake.most <= 8


@pytest.mark.parametrize("page", ["<html>", "a: b\n", a_page(1).replace("server.uptime", "uptime"), "", "{}"])
async def test_a_gateway_with_another_page_is_silent(page: str) -> None:
    async with served(FakeGateway(page)) as address:
        traffic = GatewayTraffic(lambda: [ScrapeTarget("gateway-1", address)], dict)
        await traffic.scrape_signals()
        assert (await traffic.scrape_signals()).silent_gateways == ("gateway-1",)
