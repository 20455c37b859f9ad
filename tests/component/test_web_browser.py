"""The dashboard in a real browser: what a person sees, what the browser refuses, and what axe finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from builders.inference import an_inference
from builders.recorded_fleet import a_recorded_fleet, recorded_series
from builders.release import ERRORS, LATENCY, a_release, released
from builders.shown_fleet import ready, shown_series
from builders.waiting import eventually
from fixtures.app_server import served
from fixtures.browser import (
    ColorScheme,
    Visitor,
    axe,
    connected,
    visiting,
)
from fixtures.dashboard import Dashboard, a_dashboard
from tidegate.api.reasons import Reason
from tidegate.telemetry.prometheus_api import PrometheusError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Route


pytestmark = pytest.mark.asyncio(loop_scope="module")  # the loop of the one connection to the browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with connected(chromium) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(browser: Browser) -> AsyncIterator[Visitor]:
    """Opens pages with cookies of the test's own."""
    async with visiting(browser) as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def shown() -> AsyncIterator[tuple[Dashboard, str]]:
    """With a fleet, and its address."""
    async with a_dashboard() as dashboard:
        dashboard.show_fleet()
        dashboard.put(released(a_release(checks=[ERRORS, LATENCY]), step=2, weight=5, target="9 1 5:9"))
        async with served(dashboard.app) as address:
            yield dashboard, address


Shown = tuple[Dashboard, str]
PAGES = {
    "overview": "/",
    "list": "/list/inferences",
    "inference": "/inferences/ads/din",
    "failed": "/inferences/ads/wide",
    "inference charts": "/inferences/ads/din/charts",
    "access": "/modelaccesses/ads/din",
    "release": "/modelaccesses/ads/ctr/release",
    "power": "/computepools/cpu-a",
    "simulate": "/computepools/cpu-a/simulate",
    "decisions": "/decisions",
    "decision": "/decisions/cpu-a-2",
    "overrides": "/overrides",
    "override": "/overrides?target=ads/din",
    "search": "/?q=din&namespace=ads",
    "sorted": "/list/inferences?sort=-p99",
}


async def test_the_overview_shows_the_worst_first(shown: Shown, visitor: Visitor) -> None:
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)

    rows = page.get_by_role("region", name="Inferences").get_by_role("row")
    text = [await row.inner_text() for row in await rows.all()]
    named = [next(name for name in ("wide", "young", "din", "score-all") if name in row) for row in text[1:]]
    assert named == ["wide", "young", "din", "score-all"]
    assert "no such file: /models/wide/1/model.onnx" in text[1]


def change(dashboard: Dashboard) -> None:
    """An Inference says something else than before: `changed`."""
    dashboard.put(
        an_inference(
            "young",
            status={
                "observedGeneration": 1,
                "conditions": [ready(Reason.LOAD_FAILED, "changed", status=False)],
            },
        )
    )


async def test_a_change_is_seen_without_a_reload(shown: Shown, visitor: Visitor) -> None:
    """How soon is measured by bench/dashboard.py."""
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)
    await page.evaluate("window.same = true")
    await eventually(lambda: dashboard.parts.changes.subscriber_count > 0, what="the page listens")
    change(dashboard)

    await page.get_by_text("changed").first.wait_for()
    assert await page.evaluate("window.same")


async def test_a_change_before_the_page_listens_is_seen(shown: Shown, visitor: Visitor) -> None:
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)
    changed = asyncio.Event()

    async def later(route: Route) -> None:
        await changed.wait()
        await route.continue_()

    await page.route("**/api/v1/events**", later)
    await page.reload()
    change(dashboard)
    changed.set()

    await page.get_by_text("changed").first.wait_for()


async def test_a_change_while_nothing_could_be_heard_is_seen_afterwards(
    shown: Shown, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.web.topic_feed.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("tidegate.web.api._STREAM_S", 0.5)
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)
    await eventually(lambda: dashboard.parts.changes.subscriber_count > 0, what="the page listens")
    refused: list[str] = []

    async def refuse(route: Route) -> None:
        refused.append(route.request.url)
        await route.abort()

    await page.route("**/api/v1/events**", refuse)
    # One that was begun before it has ended by then.
    await eventually(lambda: len(refused) > 0, what="the page tries to listen")
    await eventually(lambda: dashboard.parts.changes.subscriber_count == 0, what="the stream has ended")
    await page.get_by_text("Not live").wait_for()
    change(dashboard)
    tries = len(refused)
    await eventually(lambda: len(refused) > tries, what="the page tries to listen again")
    assert await page.get_by_text("changed").count() == 0
    await page.unroute("**/api/v1/events**")

    await page.get_by_text("changed").first.wait_for()
    # As long as the page is open, its streams end twice a second, and the console calls each end an error.
    await page.close()
    expected = ("[object Event]", "Failed to load resource: net::ERR_FAILED")
    assert [error for error in visitor.errors if not error.startswith(expected)] == []
    visitor.errors.clear()


async def test_charts_over_time_are_drawn_and_told_in_words(shown: Shown, visitor: Visitor) -> None:
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)
    await page.goto("/computepools/cpu-a")

    for kind, count, words in (
        ("samples", 2, "slices by tier. Now realtime 20, nearline 6, offline 14, free 8, healthy 48."),
        ("demand", 3, "by tier. Now realtime 14, nearline 8, offline 28, allocatable 48."),
    ):
        chart = page.locator(f"#{kind}-charts canvas[role=img]").first
        await chart.wait_for()
        assert words in (await chart.get_attribute("aria-label") or "")
        assert await page.locator(f"#{kind}-charts canvas[role=img]").count() == count
        assert await page.locator(f"#{kind}-charts .u-legend").count() == count
    value = page.locator("#demand-charts canvas[role=img]").last
    words = "clients sent. Now value served 1400, value refused 0, value lost 0."
    assert words in (await value.get_attribute("aria-label") or "")
    await page.get_by_text("The numbers").first.click()
    table = page.get_by_role("region", name="Slices by tier over time")
    await table.get_by_role("row").nth(12).wait_for()
    assert await table.get_by_role("row").count() == 13


async def test_a_chart_gives_way_to_why_there_is_none_and_comes_back(shown: Shown, visitor: Visitor) -> None:
    dashboard, address = shown
    page = await visitor.page(address)
    await dashboard.signed_in(page)
    await page.goto("/computepools/cpu-a")
    drawn = page.locator("#samples-charts canvas[role=img]").first
    await drawn.wait_for()

    dashboard.prometheus.answer = PrometheusError("it cannot be asked (TimeoutError)")
    await page.get_by_label("The last", exact=True).select_option("15m")
    await page.locator("#samples-charts .note").get_by_text("web.prometheusUrl").wait_for()
    assert await drawn.count() == 0
    dashboard.prometheus.answer = shown_series
    await page.get_by_label("The last", exact=True).select_option("6h")
    await drawn.wait_for()
    assert page.url.endswith("?window=6h")
    await page.reload()
    assert await page.get_by_label("The last", exact=True).input_value() == "6h"
    visitor.errors.clear()  # the console calls a 503 an error


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (320, "dark"),
        (1280, "light"),
        *(
            pytest.param(
                *combination,
                marks=pytest.mark.slow("each width and scheme but the widest has a case beside it"),
            )
            for combination in ((320, "light"), (1280, "dark"), (3840, "light"))
        ),
    ],
)
async def test_axe_finds_nothing_serious(
    shown: Shown, visitor: Visitor, width: int, scheme: ColorScheme
) -> None:
    dashboard, address = shown
    page = await visitor.page(address, scheme=scheme, width=width)
    await page.goto("/sign-in")
    assert list(map(str, await axe(page))) == []
    await dashboard.signed_in(page)
    found: dict[str, list[str]] = {}
    for name, path in PAGES.items():
        answer = await page.goto(path)
        assert answer is not None
        assert answer.ok, path
        faults = list(map(str, await axe(page)))
        if faults:
            found[name] = faults
        wider = await page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not wider, f"{path} is wider than {width} px"
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_simulation_is_asked_and_answered(
    shown: Shown, visitor: Visitor, scheme: ColorScheme
) -> None:
    dashboard, address = shown
    dashboard.put(*a_recorded_fleet())
    dashboard.prometheus.answer = recorded_series
    page = await visitor.page(address, scheme=scheme, width=320 if scheme == "dark" else 1280)
    await dashboard.signed_in(page)
    await page.goto("/computepools/gpu-a")
    await page.get_by_role("link", name="Simulate…").click()
    await page.get_by_role("spinbutton", name="Hours").fill("1")
    await page.get_by_role("spinbutton", name="Most replicas of ads/ctr").fill("2")
    await page.get_by_role("button", name="Simulate").click()
    await page.get_by_role("row", name="present with the changes").wait_for()

    missed = page.get_by_role("img", name="present, with the changes: minutes missed")
    assert await missed.is_visible()
    assert not await page.get_by_role("log").is_visible()
    assert list(map(str, await axe(page))) == []
    wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not await page.evaluate(wider)
    await page.goto("/computepools/gpu-a")
    await page.get_by_role("img", name="gpu-a: planned slices by tier").wait_for()
    assert list(map(str, await axe(page))) == []
