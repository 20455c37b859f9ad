"""A pool's page over time and by node: who is told of what, from whom it is known, and what is said where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from builders.allocator import NOW, a_decision, observed
from builders.compute_pool import a_compute_pool, node_body, pod_on
from builders.shown_fleet import NODES, POOL, SHOWN_AT, SLICES_OF_A_NODE
from fixtures.dashboard import Dashboard
from tidegate.allocation import codec
from tidegate.allocation.snapshot import Load
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.operations.what_if import LastQuestion
from tidegate.planning.allocation_view import allocation_view
from tidegate.telemetry.pool_series import Moment
from tidegate.web import acting
from tidegate.web.past import Past

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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LastQuestion]:
    """What the allocator was asked last; the list may be changed."""
    ctr = a_model("din", Tier.REALTIME, a_placement(POOL, ready=1), load=Load((250.0,)))
    young = a_model("young", Tier.NEARLINE, a_placement(POOL, ready=1), rate=None)
    snapshot = dict(codec.written(a_snapshot(a_pool(POOL, slices=8), ctr, young)))
    said = [LastQuestion(at=SHOWN_AT, mode=PolicyMode.AUTO, snapshot=snapshot)]

    async def last(*_: object) -> LastQuestion:
        return said[-1]

    monkeypatch.setattr(acting, "_last_question", last)
    return said


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


async def test_charts_go_back_to_before_the_process_and_say_so(shown: Dashboard) -> None:
    async with shown.browser() as browser:
        found = (await browser.get(f"/api/v1{PATH}/samples")).json()

    assert found[0]["at"] == (SHOWN_AT - timedelta(minutes=90)).isoformat().replace("+00:00", "Z")
    assert found[0]["price"] == 1.2
    assert found[-1]["at"] == SHOWN_AT.isoformat().replace("+00:00", "Z")
    assert (
        "10:30:00Z</time>: from Prometheus, a value a minute, until the dashboard began to look"
        in await page(shown)
    )


async def test_without_a_prometheus_it_is_said_since_when_it_is_known(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.history.look()

    text = await page(dashboard)

    assert ", when the dashboard began to look. No Prometheus is named" in text
    assert "it is known while somebody looks at this page" in text


async def test_no_page_waits_for_a_prometheus_that_does_not_answer(shown: Dashboard) -> None:
    begun, answers = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> Sequence[Moment]:
        begun.set()
        await answers.wait()
        return ()

    past = Past(shown.parts.history, slow, lambda: SHOWN_AT)
    shown.app.state.parts = replace(shown.parts, past=past)
    asking = asyncio.ensure_future(past.ask())
    await asyncio.wait_for(begun.wait(), 5)

    assert "Over time" in await asyncio.wait_for(page(shown), 20)
    assert not asking.done()
    answers.set()
    await asking


async def test_a_prometheus_that_is_silent_is_named(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.history.look()

    async def silent(pool: str, begin: datetime, end: datetime, step: timedelta) -> None:
        return None

    await Past(dashboard.parts.history, silent, lambda: SHOWN_AT).ask()

    text = await page(dashboard)
    assert "Prometheus does not answer, and is asked again." in text
    assert "meanwhile it is known while somebody looks at this page" in text


async def test_demand_is_kept_each_time_that_somebody_asks_for_it(
    dashboard: Dashboard, asked: list[LastQuestion]
) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.history.look()
    async with dashboard.browser() as browser:
        before = (await browser.get(f"/api/v1{PATH}/demand")).json()
        await browser.get(f"{PATH}/demand")
        # Something else than how it is: not what was asked.
        await browser.post("/api/v1/plan", json={"pool": POOL, "factor": 3})
        after = (await browser.get(f"/api/v1{PATH}/demand")).json()

    assert before == []
    [found] = after
    assert (found["realtime"], found["slices"]) == (3, 8)
    assert (found["demand"], found["serves"], found["unknown"]) == (250.0, 100.0, 1)
    text = await page(dashboard)
    assert '100.0 <span class="quiet">of 250' in text or '100 <span class="quiet">of 250' in text
    assert "(1 unknown)" in text
    assert asked


async def test_demand_over_time_is_for_those_who_may_ask_the_allocator(shown: Dashboard) -> None:
    async with shown.browser() as ann, shown.browser("token-of-bob") as bob:
        hers = await ann.get(f"/api/v1{PATH}/demand")
        theirs = await bob.get(f"/api/v1{PATH}/demand")

    assert len(hers.json()) == 91
    assert (theirs.status_code, "pods/portforward" in theirs.text) == (403, True)
    assert 'id="demand-charts"' in await page(shown)
    bobs = await page(shown, token="token-of-bob")
    assert "demand-charts" not in bobs
    assert "demand-samples" not in bobs


@pytest.mark.parametrize("what", ["samples", "demand"])
async def test_no_more_points_than_asked_for(shown: Dashboard, what: str) -> None:
    async with shown.browser() as browser:
        few = (await browser.get(f"/api/v1{PATH}/{what}", params={"most": 5})).json()
        none = await browser.get(f"/api/v1{PATH}/{what}", params={"most": 0})

    assert len(few) == 5
    assert none.status_code == 422


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

    assert budget["left"] == allocation_view(seen).snapshot.pools[0].budget
    assert (budget["most"], budget["per"]) == (5, "10m")


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
    pool = shown.parts.fleet.pools.get(shown.parts.history.pools()[0])
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
    shown.parts.nodes.occupancy._others.observe("ADDED", stranger)

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
    dashboard.parts.history.look()

    text = await page(dashboard)

    assert "1 node has pods of the pool" in text
    assert "nodes are being read" in text
    dashboard.put_nodes(node_body("node-0"), node_body("idle"))
    assert "2 nodes, 1 of them without a pod" in await page(dashboard)


async def test_a_dashboard_of_one_namespace_says_that_it_knows_no_nodes(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    dashboard.parts.history.look()
    dashboard.parts.fleet.pods.observe("ADDED", pod_on("node-0", pool=POOL))
    dashboard.parts.nodes.watched = False

    text = await page(dashboard)

    assert "this dashboard is of one namespace" in text
    assert "nodes are being read" not in text


async def test_nodes_are_watched_from_the_first_look_at_them_on(dashboard: Dashboard) -> None:
    dashboard.put(a_compute_pool(POOL))
    begun = dashboard.parts.nodes.occupancy._begun

    await page(dashboard, "/list/computepools")
    dashboard.allowed.resources["bob"] = frozenset({"computepools", "allocationdecisions"})
    await page(dashboard, token="token-of-bob")
    assert not begun.is_set()
    await page(dashboard)
    assert begun.is_set()


async def test_a_page_hears_of_a_node_that_is_cordoned(shown: Dashboard) -> None:
    await page(shown)
    heard = shown.parts.changes.heard([f"computepools/{POOL}"])
    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0)
    nodes = shown.parts.nodes.occupancy._nodes
    nodes.observe("MODIFIED", node_body("other", labels={"pool": "b"}, cordoned=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    nodes.observe("MODIFIED", node_body("node-0", cpu="8", memory="8Gi", cordoned=True))

    assert await asyncio.wait_for(waiting, 5) == {f"computepools/{POOL}"}
    await heard.aclose()
