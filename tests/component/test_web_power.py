"""A pool's page: its charts over time, its move budget and its nodes, for whom, and what it shows without them."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_decision, observed
from builders.compute_pool import a_compute_pool, node_body, pod_on
from builders.shown_fleet import NODES, POOL, SHOWN_AT, SLICES_OF_A_NODE
from builders.waiting import LIMIT_S
from fixtures.dashboard import Dashboard
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.telemetry.prometheus_api import PrometheusError
from tidegate.web.charts import NOT_CONFIGURED, ChartReader

PATH = f"/computepools/{POOL}"


@pytest.fixture
def shown(dashboard: Dashboard) -> Dashboard:
    dashboard.show_fleet()
    return dashboard


@pytest.fixture
def looker(shown: Dashboard) -> Dashboard:
    """Bob may see pools and decisions, and no nodes."""
    shown.allowed.resources["bob"] = frozenset({"computepools", "allocationdecisions", "pods"})
    return shown


async def page(dashboard: Dashboard, path: str = PATH, token: str = "token-of-ann") -> str:
    async with dashboard.browser(token) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(answer.text.split())


async def power(dashboard: Dashboard, token: str = "token-of-ann") -> dict[str, Any]:
    async with dashboard.browser(token) as browser:
        found: dict[str, Any] = (await browser.get(f"/api/v1{PATH}/power")).json()
    return found


# -- over time ---------------------------------------------------------------------------------------------


async def test_charts_are_those_of_prometheus(shown: Dashboard) -> None:
    async with shown.browser() as browser:
        hour = (await browser.get(f"/api/v1{PATH}/samples")).json()
        all_there_is = (await browser.get(f"/api/v1{PATH}/samples?window=6h")).json()
        too_much = await browser.get(f"/api/v1{PATH}/samples?window=9h")
        demand = (await browser.get(f"/api/v1{PATH}/demand")).json()

    assert hour[-1] == {
        "time": "2026-06-01T12:00:00Z",
        "healthy": 48,
        "free": 8,
        "tiers": {"realtime": 20, "nearline": 6, "offline": 14},
        "price": 1.2,
    }
    assert (hour[0]["time"], all_there_is[0]["time"]) == ("2026-06-01T11:00:00Z", "2026-06-01T10:30:00Z")
    assert too_much.status_code == 422
    assert demand[-1]["tiers"] == {"realtime": 14, "nearline": 8, "offline": 28}
    assert demand[-1]["value"] == {"served": 1400, "refused": 0, "lost": 0}
    assert max(sample["value"]["refused"] for sample in demand) == 400
    assert (demand[-1]["allocatable"], demand[-1]["demand"], demand[-1]["served"]) == (48, 1400, 1400)
    assert 'id="samples-charts"' in await page(shown)


async def test_without_a_prometheus_the_page_names_the_setting_in_place_of_the_charts(
    dashboard: Dashboard,
) -> None:
    dashboard.put(a_compute_pool(POOL))
    none = ChartReader(None, lambda: NOW, lambda: 0.0)
    dashboard.app.state.app_state = replace(dashboard.parts, charts=none)
    async with dashboard.browser() as browser:
        refused = await browser.get(f"/api/v1{PATH}/samples")

    text = await page(dashboard)

    assert html.unescape(text).count(NOT_CONFIGURED) == 1
    assert "web.prometheusUrl" in NOT_CONFIGURED
    assert "data-chart" not in text
    assert (refused.status_code, refused.json()) == (400, {"detail": NOT_CONFIGURED})


async def test_a_prometheus_that_does_not_answer_fails_its_charts_alone(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.prometheus.answer = PrometheusError("it cannot be asked (TimeoutError)")
    async with dashboard.browser() as browser:
        answers = [await browser.get(f"/api/v1{PATH}/{what}") for what in ("samples", "demand")]

    assert "Over time" in await page(dashboard)
    assert {answer.status_code for answer in answers} == {503}
    for words in ("it cannot be asked (TimeoutError)", "web.prometheusUrl"):
        assert all(words in answer.json()["detail"] for answer in answers)
    assert len(dashboard.prometheus.asked) == 1


async def test_demand_over_time_is_for_those_who_may_ask_the_allocator(shown: Dashboard) -> None:
    async with shown.browser() as ann, shown.browser("token-of-bob") as bob:
        hers = await ann.get(f"/api/v1{PATH}/demand")
        theirs = await bob.get(f"/api/v1{PATH}/demand")

    assert len(hers.json()) == 241
    assert (theirs.status_code, "pods/portforward" in theirs.text) == (403, True)
    assert 'id="demand-charts"' in await page(shown)
    assert "demand-charts" not in await page(shown, token="token-of-bob")


# -- how much may still move -------------------------------------------------------------------------------


_DONE = {"appliedAt": NOW.isoformat()}
DECISIONS = {
    "none": (),
    "lately": (a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=9), outcome=_DONE),),
    "long ago": (a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=11), outcome=_DONE),),
    "standing": (a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=1)),),
    "standing after another": (
        a_decision(("ctr", 1, 2), name="cpu-a-2", at=NOW - timedelta(minutes=1)),
        a_decision(("ctr", 4, 1), at=NOW - timedelta(minutes=5), outcome=_DONE),
    ),
    "given up halfway": (a_decision(("ctr", 1, 4), at=NOW, outcome={"error": "x", "movedSlices": 1}),),
    "recommended": (a_decision(("ctr", 1, 4), at=NOW, mode="RecommendOnly"),),
    "more than the budget": (a_decision(("ctr", 1, 7), at=NOW, outcome=_DONE),),
}


@pytest.mark.parametrize("decisions", DECISIONS.values(), ids=DECISIONS)
async def test_the_page_shows_the_budget_that_the_planner_uses(
    dashboard: Dashboard, decisions: Sequence[AllocationDecision]
) -> None:
    policy = {"mode": "Auto", "moves": {"maxPercent": 50, "per": "10m"}}
    seen = observed(policy=policy, decisions=decisions, slices=(5, 4))
    status = {"observedGeneration": 1, "slices": {"total": 9, "healthy": 9, "free": 9}}
    dashboard.clock.now = NOW
    dashboard.put(a_compute_pool(POOL, policy=policy, status=status), *decisions)

    budget = (await power(dashboard))["budget"]

    assert budget["remaining"] == build_allocation_view(seen).snapshot.pools[0].budget
    assert (budget["total"], budget["per"]) == (5, "10m")


# -- nodes -------------------------------------------------------------------------------------------------


async def test_every_node_has_its_slots_and_what_is_free(shown: Dashboard) -> None:
    found = {each["node"]: each for each in (await power(shown))["nodes"]}

    assert sorted(found) == [f"node-{number}" for number in range(NODES)]
    assert {each["total"] for each in found.values()} == {SLICES_OF_A_NODE}
    assert all(each["free"] == each["total"] - each["used"] for each in found.values())
    assert sum(each["free"] for each in found.values()) == 8


async def test_empty_cordoned_tainted_and_quarantined_nodes_are_shown_as_what_they_are(
    shown: Dashboard,
) -> None:
    nodes = [node_body(f"node-{number}", cpu="8", memory="8Gi") for number in range(NODES)]
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    shown.put_nodes(
        *nodes,
        node_body("idle", cpu="8", memory="8Gi"),
        node_body("cordoned", cpu="8", memory="8Gi", cordoned=True),
        node_body("tainted", cpu="8", memory="8Gi", taints=[taint]),
        node_body("broken", cpu="8", memory="8Gi"),
        node_body("elsewhere", labels={"pool": "b"}),
    )
    pool = shown.parts.fleet.pools.get(ObjectKey("", POOL))
    assert pool is not None
    entry = {
        "node": "broken",
        "fault": "DaemonLost",
        "state": "Quarantined",
        "since": SHOWN_AT.isoformat(),
    }
    status = {**pool.status.dump(), "faultyNodes": [entry]}
    shown.put(pool.model_copy(update={"status": type(pool.status).model_validate(status)}))

    found = {each["node"]: each for each in (await power(shown))["nodes"]}
    text = await page(shown)

    assert "elsewhere" not in found
    assert (found["idle"]["used"], found["idle"]["free"], found["idle"]["fault"]) == (0, 8, "")
    assert (found["cordoned"]["free"], found["cordoned"]["fault"]) == (0, "is cordoned")
    assert found["tainted"]["fault"] == "has taint maintenance:NoSchedule, which the pool does not tolerate"
    assert found["broken"]["fault"] == "is quarantined: its GPU sharing has a fault"
    assert "10 nodes, 4 of them without a pod of the pool, <strong" in text
    assert "3 take no pods" in text
    assert 'title="8 free"' in text


async def test_what_others_take_of_a_node_is_no_slice(shown: Dashboard) -> None:
    stranger = pod_on("node-0", "stranger", cpu="1500m", managed=False)
    assert (await power(shown))["nodes"][0]["total"] == SLICES_OF_A_NODE
    shown.parts.nodes.occupancy._foreign_pods.observe("ADDED", stranger)

    found = (await power(shown))["nodes"][0]
    assert (found["total"], found["free"]) == (6, 0)
    assert "stranger" not in await page(shown)


async def test_who_may_not_list_nodes_sees_those_with_pods_alone(looker: Dashboard) -> None:
    looker.put_nodes(node_body("idle", cordoned=True), node_body("node-0", cpu="8", memory="8Gi"))

    theirs, hers = await power(looker, "token-of-bob"), await power(looker)
    text = await page(looker, token="token-of-bob")

    assert "idle" in {each["node"] for each in hers["nodes"]}
    assert "idle" not in {each["node"] for each in theirs["nodes"]}
    assert {each["total"] for each in theirs["nodes"]} == {None}
    assert {each["fault"] for each in theirs["nodes"]} == {""}
    assert "you need the right <code>list nodes</code>" in text
    assert "idle" not in text
    assert "cordoned" not in text


async def test_until_nodes_are_known_the_page_goes_on_with_what_pods_say(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.fleet.pods.observe("ADDED", pod_on("node-0", pool=POOL))

    text = await page(dashboard)

    assert "1 node has pods of the pool" in text
    assert "nodes are being read" in text
    dashboard.put_nodes(node_body("node-0"), node_body("idle"))
    assert "2 nodes, 1 of them without a pod" in await page(dashboard)


async def test_a_dashboard_of_one_namespace_says_that_it_knows_no_nodes(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.fleet.pods.observe("ADDED", pod_on("node-0", pool=POOL))
    dashboard.parts.nodes.watched = False

    text = await page(dashboard)

    assert "this dashboard is of one namespace" in text
    assert "nodes are being read" not in text


async def test_nodes_are_watched_from_the_first_look_at_them_on(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    begun = dashboard.parts.nodes.occupancy._started

    await page(dashboard, "/list/computepools")
    dashboard.allowed.resources["bob"] = frozenset({"computepools", "allocationdecisions"})
    await page(dashboard, token="token-of-bob")
    assert not begun.is_set()
    await page(dashboard)
    assert begun.is_set()


async def test_a_page_hears_of_a_node_that_is_cordoned(shown: Dashboard) -> None:
    await page(shown)
    heard = shown.parts.changes.subscribe([f"computepools/{POOL}"])
    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0)
    nodes = shown.parts.nodes.occupancy._nodes
    nodes.observe("MODIFIED", node_body("other", labels={"pool": "b"}, cordoned=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    nodes.observe("MODIFIED", node_body("node-0", cpu="8", memory="8Gi", cordoned=True))

    assert await asyncio.wait_for(waiting, LIMIT_S) == {f"computepools/{POOL}"}
    await heard.aclose()
