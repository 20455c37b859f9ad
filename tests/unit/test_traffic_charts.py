"""The charts of an Inference and of a release: lines, gaps, limits, and the same numbers in a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from builders.inference import an_inference
from builders.release import ERRORS, a_release, released
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.grafana.catalogue import DASHBOARDS
from tidegate.reports.release_figures import ReleaseFigures
from tidegate.reports.traffic_charts import ChartLine, ChartTime, LineChart, draw_line_chart, list_numbers
from tidegate.telemetry.traffic_series import inference_query, release_query
from tidegate.web.charts import STEPS, SeriesAnswer
from tidegate.web.links import ToolLinks
from tidegate.web.traffic_charts import build_inference_charts, build_release_charts

BEGIN = datetime(2026, 6, 1, 11, tzinfo=UTC)
STEP = timedelta(seconds=15)
TIME = ChartTime(BEGIN, STEP, STEPS)


def an_answer(*series: tuple[Mapping[str, str], Mapping[int, float]]) -> SeriesAnswer:
    return SeriesAnswer(BEGIN, STEP, series)


def test_a_line_has_a_gap_where_it_has_no_value() -> None:
    chart = LineChart("p99", "ms", (ChartLine("p99", "s-target", {0: 10.0, 1: 20.0, 5: 15.0}),), limit=30.0)

    figure = draw_line_chart(chart, TIME)

    lines = re.findall(r'class="line s-target" points="([^"]*)"', figure)
    assert [len(line.split()) for line in lines] == [4, 2]
    assert figure.count('class="line s-limit"') == 1
    assert "p99 10 to 20; limit 30 to 30" in figure
    assert "nan" not in figure


def test_a_chart_of_zeros_has_a_scale() -> None:
    figure = draw_line_chart(LineChart("errors", "percent", (ChartLine("failed", "s", {0: 0.0}),)), TIME)

    assert "nan" not in figure
    assert "inf" not in figure


def test_titles_are_text() -> None:
    chart = LineChart("<b>", "&", (ChartLine('"><script>', "s-target", {0: 1.0}),))

    figure = draw_line_chart(chart, TIME)

    assert "<b>" not in figure
    assert "<script>" not in figure


def test_the_table_begins_with_the_newest_time_and_has_twelve_rows() -> None:
    chart = LineChart(
        "requests", "per second", (ChartLine("sent", "s", {n: float(n) for n in range(STEPS)}),)
    )

    numbers = list_numbers([chart], TIME)

    assert numbers.head == ("sent requests, per second",)
    assert len(numbers.rows) == 12
    assert numbers.rows[0] == (BEGIN + 239 * STEP, (239.0,))
    assert list_numbers([], TIME).rows == ()


def test_an_inference_has_its_limit_and_its_errors_in_percent() -> None:
    inference = an_inference("ctr", slo={"latencyP99": "30ms"})
    series = {"offered": {0: 200.0, 1: 0.0}, "served": {0: 150.0}, "p99": {0: 0.021}, "ready": {0: 2.0}}

    charts = build_inference_charts(
        inference, an_answer(*(({"series": name}, values) for name, values in series.items()))
    )

    by_title = {chart.title: chart for chart in charts}
    assert by_title["errors"].lines[0].values == {0: 25.0}
    assert by_title["latency"].limit == 30.0
    assert by_title["latency"].lines[0].values == {0: 21.0}
    assert by_title["version"].is_empty
    assert not by_title["replicas"].is_empty


def test_a_release_has_both_sides_and_the_limit_of_its_check() -> None:
    def series(name: str, side: str, value: float) -> tuple[Mapping[str, str], Mapping[int, float]]:
        return {"series": name, "side": side}, {3: value}

    answer = an_answer(
        series("sent", "target", 10.0),
        series("sent", "stable", 90.0),
        series("failed", "target", 1.0),
        series("failed", "stable", 0.0),
        series("p99", "target", 0.05),
    )
    figures = ReleaseFigures.from_access(released(a_release(checks=[ERRORS])))

    by_title = {chart.title: chart for chart in build_release_charts(figures, answer)}

    assert [line.values for line in by_title["errors"].lines] == [{3: 10.0}, {3: 0.0}]
    assert by_title["errors"].limit == pytest.approx(0.1)
    assert by_title["p99"].lines[0].values == {3: 50.0}
    assert by_title["share"].lines[0].values == {3: 10.0}
    assert all(chart.is_empty for chart in build_release_charts(None, an_answer()))


def test_queries_are_about_one_object_and_quote_it() -> None:
    query = inference_query(ObjectKey("ads", "ctr"), "2m")
    odd = inference_query(ObjectKey("ads", 'x"} or up{b="c"} #'), "1m")

    releases = "release/ads/[^/]+|release/[^/]+/[^/]+/ads"
    assert f'envoy_cluster_name=~"(inference/ads|{releases})/ctr([+].*)?/[a-z]+"' in query
    assert "[2m]" in query
    assert 'up{b="' not in odd.replace('\\"', "")
    for target in ("v4", "shop/v4"):
        named = f"release/ads/scene/{target}([+].*)?/[a-z]+"
        assert named in release_query(ObjectKey("ads", "scene"), target, "1m")


def test_links_lead_to_the_boards_with_the_object_and_the_time() -> None:
    links = ToolLinks("https://grafana.example/", "https://logs.example/?q={namespace}%20{name}")

    grafana, logs = links.link_inference(ObjectKey("ads", "ctr"), "6h")

    assert (
        grafana.url
        == "https://grafana.example/d/tidegate-fleet?var-namespace=ads&var-inference=ctr&from=now-6h&to=now"
    )
    assert logs.url == "https://logs.example/?q=ads%20ctr"
    assert ToolLinks().link_inference(ObjectKey("ads", "ctr"), "1h") == ()


def test_links_lead_to_boards_that_have_these_variables() -> None:
    links, key = ToolLinks("https://grafana.example"), ObjectKey("ads", "ctr")
    boards = {board.uid: {variable.name for variable in board.variables} for board in DASHBOARDS}

    for link in (
        *links.link_inference(key, "1h"),
        *links.link_release(key, "1h"),
        *links.link_pool("a", "1h"),
    ):
        address = urlsplit(link.url)
        names = {name.removeprefix("var-") for name in parse_qs(address.query) if name.startswith("var-")}
        assert names <= boards[address.path.rpartition("/")[2]], link.url


@pytest.mark.parametrize("url", ["javascript:alert(1)", "grafana.example", "https://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(PermanentError, match=r"web\.links\.grafana"):
        ToolLinks(grafana=url)
