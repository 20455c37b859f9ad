"""A pool's page over time and by node: who is told of what, from whom it is known, and what is said where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from builders.compute_pool import a_compute_pool
from builders.shown_fleet import POOL, SHOWN_AT
from fixtures.dashboard import Dashboard
from tidegate.allocation import codec
from tidegate.allocation.snapshot import Load
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.operations.what_if import LastQuestion
from tidegate.telemetry.pool_series import Moment
from tidegate.web import acting
from tidegate.web.past import Past

PATH = f"/computepools/{POOL}"


@pytest.fixture
def shown(dashboard: Dashboard) -> Dashboard:
    dashboard.show_fleet()
    return dashboard


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
