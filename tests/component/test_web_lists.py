"""Lists of the dashboard: search, namespaces and order, all of them kept in the address."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

import pytest

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference, inference_body
from builders.model_access import a_model_access
from builders.shown_fleet import ready
from builders.web_page import Page
from fixtures.dashboard import Dashboard
from tidegate.api.reasons import Reason
from tidegate.web.listing import SORT_ORDERS

PATH = "/list/inferences"


@pytest.fixture
def three(dashboard: Dashboard) -> Dashboard:
    """`fine` has 13 requests per second, `din` 1,250, and `quiet` of another namespace none; `quiet` has failed."""
    failed = ready(Reason.LOAD_FAILED, "no such file", status=False)
    well = {"observedGeneration": 1, "conditions": [ready(Reason.ALL_REPLICAS_READY, "well")]}
    dashboard.put(
        an_inference("fine", status=well, tier="offline", metadata={"labels": {"team": "ads"}}),
        an_inference("din", status=well, tier="realtime", placement={"pool": "b"}),
        an_inference(
            "quiet", "feed", status={"observedGeneration": 1, "conditions": [failed]}, placement={"pool": "a"}
        ),
        a_model_access("scene"),
        a_compute_pool("gpu-a"),
    )
    return dashboard


async def read(dashboard: Dashboard, path: str, status: int = 200, token: str = "token-of-ann") -> str:
    async with dashboard.browser(token) as browser:
        answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def names(page: str, plural: str = "inferences") -> Sequence[str]:
    return re.findall(rf'id="row-{plural}-(?:[^/"]*/)?([^"]*)"', page)


ORDERS = {
    "state": ["quiet", "din", "fine"],
    "-state": ["fine", "din", "quiet"],
    "name": ["din", "fine", "quiet"],
    "-name": ["quiet", "fine", "din"],
    "-requests": ["din", "fine", "quiet"],
    "requests": ["fine", "din", "quiet"],
    "-p99": ["din", "fine", "quiet"],
    "tier": ["quiet", "din", "fine"],
    "-tier": ["fine", "quiet", "din"],
    "pool": ["fine", "quiet", "din"],
    "-pool": ["din", "quiet", "fine"],
}


@pytest.mark.parametrize("order", ORDERS)
async def test_rows_are_sorted_by_what_the_address_names(three: Dashboard, order: str) -> None:
    assert names(await read(three, f"{PATH}?sort={order}")) == ORDERS[order]


async def test_the_api_sorts_as_the_page_does(three: Dashboard) -> None:
    async with three.browser() as browser:
        rows = (await browser.get("/api/v1/rows/inferences?sort=-requests&size=2")).json()["items"]
        refused = await browser.get("/api/v1/rows/inferences?sort=age")

    assert [(row["name"], row["requestsPerSecond"]) for row in rows] == [("din", 1250.5), ("fine", 13.0)]
    assert refused.status_code == 422


async def test_what_is_not_measured_comes_last(three: Dashboard) -> None:
    for order in ("requests", "-requests", "p99", "-p99"):
        assert names(await read(three, f"{PATH}?sort={order}"))[-1] == "quiet", order
    for plural in ("modelaccesses", "featurecomputes", "computepools"):
        for order in SORT_ORDERS:
            await read(three, f"/list/{plural}?sort={order}")


@pytest.mark.parametrize("order", ["age", "--name", "", "name'", "<script>"])
async def test_an_unknown_order_is_refused_with_those_there_are(three: Dashboard, order: str) -> None:
    page = await read(three, f"{PATH}?sort={order}", 422)

    assert "sort" in page
    assert "'state', '-state', 'name'" in html.unescape(page)
    assert "<script>alert" not in page


async def test_the_address_keeps_search_namespace_and_order(three: Dashboard) -> None:
    page = html.unescape(await read(three, f"{PATH}?q=fi%26n&namespace=ads&sort=-requests"))

    assert '?q=fi%26n&namespace=ads&sort=requests" title="Sort by requests/s"' in page
    assert '?q=fi%26n&namespace=ads&sort=name"' in page
    assert 'aria-sort="descending"' in page
    assert '<option value="-requests" selected>' in page
    assert 'href="/list/modelaccesses?namespace=ads"' in page
    assert '<input type="hidden" name="namespace" value="ads">' in page
    assert "aria-sort" not in await read(three, "/")


async def test_pages_of_a_list_keep_the_order(dashboard: Dashboard) -> None:
    dashboard.put(*(an_inference(f"model-{number:03}") for number in range(120)))

    second = await read(dashboard, f"{PATH}?sort=-name&page=2")

    assert names(second)[0] == "model-069"
    assert "sort=-name&page=3" in second


async def test_a_label_is_found(three: Dashboard) -> None:
    assert names(await read(three, f"{PATH}?q=TEAM%3Dads")) == ["fine"]
    assert names(await read(three, f"{PATH}?q=team%3Dnone")) == []


async def test_labels_of_an_object_lead_to_all_objects_with_them(three: Dashboard) -> None:
    many = {f"l-{number:02}": "<b>" for number in range(20)}
    three.put(an_inference("labelled", metadata={"labels": many}))

    page = await read(three, "/inferences/ads/fine")
    crowded = await read(three, "/inferences/ads/labelled")

    assert '<a href="/?q=team%3Dads" title="Search for this label">team=ads</a>' in page
    assert "Labels" not in await read(three, "/inferences/ads/din")
    assert "and 8 more" in crowded
    assert "<b>" not in crowded


async def test_one_search_for_all_kinds(three: Dashboard) -> None:
    found = await read(three, "/?q=gpu")
    nothing = await read(three, "/?q=%3Cimg%20src%3Dx%3E")

    assert names(found, "computepools") == ["gpu-a"]
    assert names(found) == []
    assert 'href="/list/inferences?q=gpu&amp;namespace="' in found.replace("&namespace", "&amp;namespace")
    assert "none match" in nothing
    assert "<img" not in nothing
    assert Page(nothing).found == []


async def test_the_overview_of_one_namespace_has_its_objects_and_all_pools(three: Dashboard) -> None:
    page = await read(three, "/?namespace=feed")

    assert names(page) == ["quiet"]
    assert names(page, "modelaccesses") == []
    assert names(page, "computepools") == ["gpu-a"]
    assert "<option selected>feed</option>" in page
    assert names(await read(three, "/list/computepools?namespace=feed"), "computepools") == ["gpu-a"]


async def test_a_search_finds_what_its_user_may_list(three: Dashboard) -> None:
    three.allowed.namespaces["bob"] = frozenset({"feed"})

    page = await read(three, "/?q=i", token="token-of-bob")

    assert names(page) == ["quiet"]
    assert "ads" not in "".join(re.findall(r"<option[^>]*>([^<]*)", page))


async def test_names_and_labels_of_any_length_are_rows(dashboard: Dashboard) -> None:
    long, odd = "a" * 253, "<b>odd</b>"
    for name in (long, odd):
        body = inference_body(name)
        dashboard.parts.fleet.inferences.store.observe("ADDED", body)

    page = await read(dashboard, f"{PATH}?sort=name")

    assert len(names(page)) in {0, 1, 2}  # what cannot be read has no row
    assert "<b>odd" not in page
    await read(dashboard, f"{PATH}?q={'x' * 201}", 422)
