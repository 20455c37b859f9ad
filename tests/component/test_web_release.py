"""The page of a release and the charts of pages: what they show, for whom, and without a Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from builders.inference import an_inference
from builders.model_access import a_model_access
from builders.release import ERRORS, LATENCY, a_release, released
from builders.web_page import Page
from fixtures.dashboard import Dashboard
from tidegate.telemetry.prometheus_api import PrometheusError, RangeSeries
from tidegate.web.charts import NOT_CONFIGURED, ChartReader
from tidegate.web.links import ToolLinks

PATH = "/modelaccesses/ads/ctr/release"
CHECKS = [
    {"check": "ErrorRate", "verdict": "Undecided", "message": "3 of 1000 requests failed"},
    {"check": "LatencyP99", "verdict": "Passing", "message": "p99 is 5 ms", "boundMs": 22},
]


def put_release(dashboard: Dashboard) -> None:
    """A release at its second step whose errors are above the limit."""
    access = released(
        a_release(checks=[ERRORS, LATENCY], steps=[1, 5, 100]),
        step=2,
        weight=5,
        message="step 2 of 3",
        windowBegan="2026-06-01T11:58:20Z",
        checked="2026-06-01T12:00:00Z",
        target="1000 3 5:990,40:10",
        stable="9000 9 5:8990,30:10",
        checks=CHECKS,
    )
    dashboard.put(access, an_inference("fine"))


def both_sides(begin: datetime, end: datetime, step: timedelta) -> Sequence[RangeSeries]:
    """Both sides in the newest ten steps, with values that are no numbers between them."""
    times = [end - number * step for number in range(10)]

    def series(name: str, side: str, text: str) -> RangeSeries:
        values = [(time.timestamp(), "NaN" if number == 3 else text) for number, time in enumerate(times)]
        return {"metric": {"series": name, "side": side}, "values": values}

    return [
        series("sent", "target", "10"),
        series("sent", "stable", "90"),
        series("failed", "target", "1"),
        series("p99", "target", "0.021"),
    ]


async def read(dashboard: Dashboard, path: str, status: int = 200, token: str = "token-of-ann") -> str:
    async with dashboard.browser(token) as browser:
        answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return " ".join(answer.text.split())


def texts(page: str) -> str:
    return " ".join(" ".join(Page(page).texts).split())


async def test_both_sides_are_shown_against_their_limits(dashboard: Dashboard) -> None:
    put_release(dashboard)

    page = await read(dashboard, PATH)

    shown = texts(page)
    assert "Requests 1,000 9,000" in shown
    assert "Requests per second 10 90" in shown
    assert "Errors 0.3 % 0.1 % 0.1 %" in shown
    assert "p99 5 ms 5 ms 22 ms" in shown
    assert '<td class="number bad">0.3 %</td>' in page
    assert '<td class="number bad">5 ms</td>' not in page
    assert "1 % , passed 5 % , now 100 % , not yet" in shown
    assert 'aria-current="step"' in page
    assert "Undecided ErrorRate 3 of 1000 requests failed" in shown
    assert "A failed check rolls the release back" in shown


async def test_its_command_comes_back_to_its_page(dashboard: Dashboard) -> None:
    put_release(dashboard)
    page = await read(dashboard, PATH)

    assert page.index('id="release-actions"') < page.index('id="steps"') < page.index('id="sides"')
    assert f'action="{PATH}"' in page
    assert f'href="{PATH}"' in await read(dashboard, "/modelaccesses/ads/ctr")
    assert "release-pause" not in await read(dashboard, "/modelaccesses/ads/ctr")


async def test_an_access_without_a_release_has_no_such_page(dashboard: Dashboard) -> None:
    dashboard.put(a_model_access("ctr"))

    assert "has no spec.release" in await read(dashboard, PATH, 404)
    assert "has no spec.release" in await read(dashboard, f"{PATH}/charts", 404)
    assert "there is no ads/gone" in await read(dashboard, "/modelaccesses/ads/gone/release", 404)


async def test_the_page_does_not_wait_for_its_charts(dashboard: Dashboard) -> None:
    put_release(dashboard)
    dashboard.prometheus.answer = both_sides

    page = await read(dashboard, f"{PATH}?window=6h")

    assert dashboard.prometheus.asked == []
    assert f'hx-get="{PATH}/charts?window=6h"' in page
    assert f'<a href="{PATH}/charts?window=6h">Show the charts</a>' in page
    assert f'<a href="{PATH}?window=6h#time" aria-current="true">6 hours</a>' in page
    assert "window" in await read(dashboard, f"{PATH}?window=9h", 422)


async def test_charts_need_no_script_and_have_their_numbers(dashboard: Dashboard) -> None:
    put_release(dashboard)
    dashboard.prometheus.answer = both_sides

    page = await read(dashboard, f"{PATH}/charts")

    assert page.count("<figure") == 4
    assert "errors, percent, from 11:00 to 12:00: released 10 to 10; limit 0.1 to 0.1" in page
    assert "p99, ms, from 11:00 to 12:00: released 21 to 21; limit 22 to 22" in page
    assert "2026-06-01T12:00:00Z" in page
    assert "nan" not in page.lower()
    assert Page(page).found == []


@pytest.mark.parametrize("path", [f"{PATH}/charts", "/inferences/ads/fine/charts"])
async def test_why_there_are_no_charts_is_in_their_place(dashboard: Dashboard, path: str) -> None:
    put_release(dashboard)
    nothing = await read(dashboard, path)
    dashboard.prometheus.answer = PrometheusError("it cannot be asked (TimeoutError)")
    away = await read(dashboard, f"{path}?window=15m")
    without = ChartReader(None, lambda: dashboard.clock.now, lambda: 0.0)
    dashboard.app.state.app_state = replace(dashboard.parts, charts=without)

    assert "Prometheus has nothing about this" in nothing
    assert "it cannot be asked (TimeoutError)" in away
    assert "web.prometheusUrl" in away
    assert NOT_CONFIGURED.partition("'")[0] in await read(dashboard, path)
    page = await read(dashboard, path.removesuffix("/charts"))
    assert "hx-get=" not in page.partition('id="time"')[2].partition("</section>")[0]
    assert "No Prometheus is configured" in page


async def test_charts_are_for_users_with_the_right_to_the_object(dashboard: Dashboard) -> None:
    put_release(dashboard)
    dashboard.prometheus.answer = both_sides
    dashboard.allowed.namespaces["bob"] = frozenset({"feed"})

    for path in (PATH, f"{PATH}/charts", "/inferences/ads/fine/charts"):
        assert "user bob may not get" in await read(dashboard, path, 403, "token-of-bob")
    assert dashboard.prometheus.asked == []


async def test_links_lead_out_where_an_address_is_set(dashboard: Dashboard) -> None:
    put_release(dashboard)
    assert 'class="out"' not in await read(dashboard, PATH)
    links = ToolLinks("https://grafana.example", 'https://logs.example/?q={name}&"><script>')
    dashboard.app.state.app_state = replace(dashboard.parts, links=links)

    release = await read(dashboard, f"{PATH}?window=24h")
    inference = await read(dashboard, "/inferences/ads/fine")

    board = "https://grafana.example/d/tidegate-release?var-namespace=ads&amp;var-access=ctr&amp;from=now-24h&amp;to=now"
    assert f'<a class="out" href="{board}" rel="noreferrer">Open in Grafana</a>' in release
    assert "https://logs.example/?q=fine" in inference
    assert "<script>" not in inference.replace('<script src="/static', "")
