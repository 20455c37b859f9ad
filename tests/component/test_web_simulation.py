"""Simulations of the dashboard and its API: what they answer, for whom, within which bounds, and what stops them."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from builders.inference import an_inference
from builders.recorded_fleet import RECORDED_POOL, a_recorded_fleet, recorded_series
from builders.shown_fleet import SHOWN_AT
from builders.waiting import ends_in_time, eventually
from builders.web_page import CSRF, Page
from fixtures.app_server import served
from fixtures.dashboard import Dashboard
from tidegate.api.meta import ObjectKey
from tidegate.errors import RetryableError, TidegateError
from tidegate.reports.next_hours import NextHoursReport
from tidegate.reports.simulation import SimulationReport
from tidegate.simulation import engine
from tidegate.telemetry.prometheus_api import PrometheusError
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.web import simulations
from tidegate.web.simulations import (
    NO_HISTORY,
    DayComparison,
    DayRequest,
    SimulationRunner,
    SimulationStoppedError,
)

POOL = RECORDED_POOL
PATH = f"/computepools/{POOL}/simulate"
BODY: dict[str, Any] = {"pool": POOL, "hours": 1, "historyDays": 1, "policies": ["present", "static"]}
FORM = {"hours": "1", "historyDays": "1", "policy.present": "true", "policy.static": "true"}


@pytest.fixture
def recorded(dashboard: Dashboard) -> Dashboard:
    """A pool of eight slices, with a real-time Inference that Prometheus knows, and offline work."""
    dashboard.put(*a_recorded_fleet())
    dashboard.prometheus.answer = recorded_series
    return dashboard


async def ask(
    dashboard: Dashboard, token: str = "token-of-ann", **changes: Any
) -> tuple[int, dict[str, Any]]:
    async with dashboard.browser(token) as browser:
        answer = await browser.post("/api/v1/simulate", json={**BODY, **changes})
    return answer.status_code, answer.json()


async def submit(
    dashboard: Dashboard, fields: dict[str, str], token: str = "token-of-ann"
) -> tuple[int, str]:
    async with dashboard.browser(token) as browser:
        form = await browser.get(PATH)
        csrf = re.search(f'{CSRF}([^"]+)"', form.text)
        assert csrf is not None
        answer = await browser.post(PATH, data={**fields, "csrf": csrf[1]})
    return answer.status_code, answer.text


async def test_the_api_answers_with_the_report_of_the_command_line(recorded: Dashboard) -> None:
    status, body = await ask(recorded)
    report = SimulationReport.model_validate(body)
    fewer = (await ask(recorded, inferences=[{"inference": "ads/ctr", "maxReplicas": 2}], slices=6))[1]

    assert status == 200
    assert (report.slices, report.hours, report.history_hours) == (8, 1, 24)
    assert [policy.policy for policy in report.policies] == ["present", "static", "oracle"]
    assert report.policies[0].missed_minutes > 0 == report.policies[2].missed_minutes
    assert fewer["slices"] == 6
    assert fewer["policies"][0]["missedMinutes"] > 29 > report.policies[0].missed_minutes
    assert fewer["whatIf"]["inferences"][0]["maxReplicas"] == 2


async def test_the_page_shows_policies_as_recorded_and_with_changes_side_by_side(recorded: Dashboard) -> None:
    status, text = await submit(
        recorded, {**FORM, "maxReplicas:ads/ctr": "2", "lost.nodes": "1", "lost.after": "10m"}
    )
    page = Page(text)

    assert status == 200
    assert page.found == []
    assert sorted(page.ids) == sorted(set(page.ids))
    assert text.count("<svg role=") == 4 * 3 * 2
    assert text.count("1 node lost") == 4 * 3
    assert "present, with the changes: minutes missed" in text
    assert 'name="maxReplicas:ads/ctr" type="number" min="0" step="1" inputmode="decimal" value="2"' in text
    assert text.rstrip().endswith("</html>")

    _, unchanged = await submit(recorded, FORM)
    assert unchanged.count("<svg role=") == 4 * 3
    assert "present, as recorded" not in unchanged


async def test_who_may_not_ask_the_allocator_sees_no_demand(recorded: Dashboard) -> None:
    async with recorded.browser("token-of-bob") as browser:
        power = await browser.get(f"/computepools/{POOL}")
        answers = [
            await browser.get(PATH),
            await browser.get(f"/computepools/{POOL}/next-hours"),
            await browser.get(f"/api/v1/computepools/{POOL}/next-hours"),
            await browser.post("/api/v1/simulate", json=BODY),
        ]

    assert power.status_code == 200
    assert "next-hours" not in power.text
    assert PATH not in power.text
    assert [answer.status_code for answer in answers] == [403] * 4
    assert "create pods/portforward" in answers[2].json()["detail"]
    assert recorded.prometheus.asked == []


async def test_who_does_not_see_the_pool_may_not_simulate_it(recorded: Dashboard) -> None:
    recorded.allowed.users["token-of-eve"] = "eve"
    recorded.allowed.verbs["eve"] = frozenset({"get", "list"})
    recorded.allowed.resources["eve"] = frozenset({"computepools"})
    status, body = await ask(recorded, "token-of-eve")
    async with recorded.browser("token-of-eve") as browser:
        page = await browser.get(PATH)

    assert (status, page.status_code) == (403, 403)
    assert "list allocationdecisions" in body["detail"]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"pool": "gpu-b"}, 404, "gpu-b"),
        ({"policies": ["best"]}, 400, "policy: there is no 'best'; there are forecast, present,"),
        ({"hours": 100}, 422, "hours"),
        ({"interval": "1s"}, 422, "interval"),
        ({"end": "2026-06-01T12:00:00"}, 422, "end"),
        ({"end": "0001-01-01T00:00:00Z"}, 422, "end"),
        ({"hours": "NaN"}, 422, "hours"),
        ({"slices": 0}, 422, "slices"),
        (
            {"inferences": [{"inference": "ads/embed", "factor": 2}]},
            400,
            "inferences: factor of ads/embed: has no recorded demand to multiply: give demand instead",
        ),
        ({"factor": "NaN"}, 422, "factor"),
        ({"lostNodes": [{"nodes": 5, "after": "10m"}]}, 400, "lostNodes: takes 5 nodes, the pool has 4"),
        (
            {"nodes": 1_000_000, "lostNodes": [{"nodes": 1_000_000, "after": "0s"}]},
            400,
            "lostNodes: takes 1000000 nodes, more than 5000: lose fewer",
        ),
        (
            {"inferences": [{"inference": "ads/x", "value": 2}]},
            400,
            "inferences: there is no ads/x in the pool",
        ),
    ],
)
async def test_a_question_that_does_not_fit_names_what_does_not(
    recorded: Dashboard, changes: dict[str, Any], status: int, message: str
) -> None:
    answered, body = await ask(recorded, **changes)

    assert answered == status
    assert message in body["detail"]


async def test_an_invalid_field_of_the_form_is_named_and_the_form_kept(recorded: Dashboard) -> None:
    status, text = await submit(recorded, {**FORM, "dwell": "soon", "slices": "6"})

    assert status == 400
    assert "dwell: " in html.unescape(text)
    assert 'value="soon"' in text


async def test_nodes_are_lost_at_the_begin_unless_a_time_is_given_and_none_is_no_loss(
    recorded: Dashboard,
) -> None:
    _, none = await submit(recorded, {**FORM, "lost.nodes": "0", "lost.after": "10m"})
    _, at_once = await submit(recorded, {**FORM, "lost.nodes": "1"})

    assert 'role="alert"' not in none + at_once
    assert "node lost" not in none
    assert at_once.count("1 node lost") == 4 * 3


async def test_the_slices_of_the_form_are_those_that_are_simulated(recorded: Dashboard) -> None:
    recorded.put(
        an_inference(
            "unmeasured", tier="realtime", placement={"pool": POOL}, scaling={"minReplicas": 2, "maxReplicas": 6},
            replicas=None, status={"replicas": 3},
        )
    )  # fmt: skip
    _, text = await submit(recorded, FORM)
    _, body = await ask(recorded)
    _, changed = await ask(recorded, slices=4)

    assert (body["slices"], changed["slices"]) == (5, 4)
    assert re.search(r'name="slices"[^>]* placeholder="5"', text)


async def test_charts_are_drawn_beside_the_event_loop(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def note_thread(*_: Any) -> str:
        threads.append(threading.current_thread())
        return ""

    monkeypatch.setattr("tidegate.web.simulation_pages.render_day_charts", note_thread)
    monkeypatch.setattr(NextHoursReport, "render_charts", note_thread)
    await submit(recorded, FORM)
    async with recorded.browser() as browser:
        await browser.get(f"/computepools/{POOL}/next-hours")

    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_without_history_or_capacity_it_says_what_to_do(recorded: Dashboard) -> None:
    recorded.prometheus.answer = lambda begin, end, step: ()
    nothing = await ask(recorded)
    _, text = await submit(recorded, FORM)
    recorded.prometheus.answer = PrometheusError("it cannot be asked (TimeoutError)")
    silent = await ask(recorded)
    recorded.put(
        an_inference("ctr", tier="realtime", placement={"pool": POOL}, scaling={"minReplicas": 1, "maxReplicas": 6}, replicas=None)
    )  # fmt: skip
    unmeasured = await ask(recorded)
    none = SimulationRunner(None, recorded.parts.fleet, recorded.parts.now)
    recorded.app.state.app_state = replace(recorded.parts, simulations=none)
    unset = await ask(recorded)
    async with recorded.browser() as browser:
        page = (await browser.get(PATH)).text

    assert nothing[0] == 400
    assert "check that it scrapes the gateways" in nothing[1]["detail"]
    assert "check that it scrapes the gateways" in text
    assert 'role="alert"' in text
    assert (silent[0], "it cannot be asked (TimeoutError)" in silent[1]["detail"]) == (503, True)
    assert (unmeasured[0], "tidegate calibrate" in unmeasured[1]["detail"]) == (400, True)
    assert unset == (400, {"detail": NO_HISTORY})
    assert NO_HISTORY in html.unescape(page)
    assert '<form class="question"' not in page


async def test_more_rates_than_memory_holds_are_refused(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulations, "_MAX_RATES", 599)
    status, body = await ask(recorded)

    assert status == 400
    assert "300 steps of 2 Inferences are 600 rates, more than 599: choose fewer days" in body["detail"]


class HeldSolver:
    """Holds every simulation at its first step until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.released, self.ended = threading.Event(), threading.Event(), threading.Event()
        run_policy = engine.run_policy

        def hold_policy(*arguments: Any) -> Any:
            self.entered.set()
            assert self.released.wait(30)
            try:
                return run_policy(*arguments)
            finally:
                self.ended.set()

        monkeypatch.setattr("tidegate.services.simulation.run_policy", hold_policy)


async def test_one_runs_at_a_time_and_the_loop_goes_on(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSolver(monkeypatch)
    first = asyncio.create_task(ask(recorded))
    await asyncio.to_thread(held.entered.wait, 30)
    second = await ask(recorded)
    held.released.set()

    assert second[0] == 503
    assert "another simulation runs" in second[1]["detail"]
    assert (await first)[0] == 200
    assert (await ask(recorded))[0] == 200


async def test_a_simulation_that_nobody_waits_for_ends(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSolver(monkeypatch)
    runner = recorded.parts.simulations
    async with aclosing(runner.run_simulation(DayRequest.model_validate(BODY), compare=False)) as steps:
        async for _ in steps:
            if held.entered.is_set():
                break
    with pytest.raises(RetryableError, match="another simulation runs"):
        await anext(runner.run_simulation(DayRequest.model_validate(BODY), compare=False))
    held.released.set()
    assert await asyncio.to_thread(held.ended.wait, 30)
    assert runner._task is not None
    await asyncio.wait({runner._task})

    assert runner._task.cancelled()
    assert (await ask(recorded))[0] == 200


@pytest.mark.parametrize("path", [PATH, "/api/v1/simulate"])
async def test_a_client_that_goes_away_ends_its_simulation(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    held = HeldSolver(monkeypatch)
    runner = recorded.parts.simulations
    async with served(recorded.app) as address:
        token = {"authorization": "Bearer token-of-ann"}
        async with httpx.AsyncClient(base_url=address, headers=token, trust_env=False) as client:
            form = await client.get(PATH)
            csrf = re.search(f'{CSRF}([^"]+)"', form.text)
            assert csrf is not None
            content = {"json": BODY} if path.startswith("/api/") else {"data": {**FORM, "csrf": csrf[1]}}
            posting = asyncio.create_task(client.post(path, **content))
            await asyncio.to_thread(held.entered.wait, 30)
            posting.cancel()
            await asyncio.wait({posting})
        task = runner._task
        assert task is not None
        await eventually(lambda: task.cancelling() or None, "the simulation is cancelled")
        held.released.set()
        await asyncio.wait({task})

    assert task.cancelled()


async def test_a_simulation_that_takes_too_long_ends(recorded: Dashboard) -> None:
    parts = recorded.parts
    runner = SimulationRunner(parts.simulations._source, parts.fleet, parts.now, max_s=0.0)

    async def run_to_end() -> None:
        async for step in runner.run_simulation(DayRequest.model_validate(BODY), compare=False):
            assert not isinstance(step, DayComparison)

    with pytest.raises(
        SimulationStoppedError, match="choose fewer hours, fewer policies or a longer interval"
    ):
        await run_to_end()


async def test_the_same_question_over_the_same_time_has_the_same_answer(recorded: Dashboard) -> None:
    first = await ask(recorded)
    recorded.clock.now = SHOWN_AT + timedelta(minutes=4)
    assert json.dumps(await ask(recorded)) == json.dumps(first)


# -- the next hours ----------------------------------------------------------------------------------------


async def test_the_next_hours_are_planned_once_in_five_minutes_and_shown(recorded: Dashboard) -> None:
    async with recorded.browser() as browser:
        report = (await browser.get(f"/api/v1/computepools/{POOL}/next-hours")).json()
        count = len(recorded.prometheus.asked)
        part = (await browser.get(f"/computepools/{POOL}/next-hours")).text
        power = (await browser.get(f"/computepools/{POOL}")).text
    ctr = next(course for course in report["inferences"] if course["inference"] == "ads/ctr")

    assert (report["begin"], len(ctr["median"]), ctr["forecast"]) == ("2026-06-01T12:00:00Z", 16, True)
    assert len(recorded.prometheus.asked) == count > 0
    assert part.count("<svg role=") == 3
    assert Page(part).found == []
    assert f'hx-get="/computepools/{POOL}/next-hours"' in power


async def test_the_next_hours_of_a_large_pool_read_two_weeks_of_the_largest_alone(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulations, "_MAX_RATES", 10)
    read: list[tuple[frozenset[ObjectKey], int]] = []
    read_rates = PrometheusRecording.read_rates

    async def note_keys(self: PrometheusRecording, keys: Any, begin: Any, count: int, step: Any) -> Any:
        read.append((keys, count))
        return await read_rates(self, keys, begin, count, step)

    monkeypatch.setattr(PrometheusRecording, "read_rates", note_keys)
    recorded.put(
        an_inference(
            "silent", tier="realtime", placement={"pool": POOL}, scaling={"minReplicas": 1, "maxReplicas": 6},
            replicas=None, capacity={"requestsPerSecond": "100"}, slo={"latencyP99": "30ms"},
        )
    )  # fmt: skip
    report = await recorded.parts.simulations.plan_next_hours(POOL)
    ctr, silent = ObjectKey("ads", "ctr"), ObjectKey("ads", "silent")

    assert read == [(frozenset({ctr, silent}), 4), (frozenset({ctr}), 14 * 24 * 4)]
    assert report.unforecast_count == 1


async def test_the_next_hours_that_are_remembered_do_not_wait_for_those_of_another_pool(
    recorded: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = recorded.parts.simulations
    first = await runner.plan_next_hours(POOL)
    released = asyncio.Event()

    async def wait_for_release(source: Any, pool: str) -> TidegateError:
        await released.wait()
        return RetryableError("later")

    monkeypatch.setattr(runner, "_compute_next_hours", wait_for_release)
    other = asyncio.create_task(runner.plan_next_hours("gpu-b"))
    await asyncio.sleep(0)
    async with ends_in_time("the other pool is answered"):
        assert await runner.plan_next_hours(POOL) is first
    released.set()
    with pytest.raises(RetryableError, match="later"):
        await other


async def test_the_next_hours_without_history_say_what_to_do(recorded: Dashboard) -> None:
    recorded.prometheus.answer = lambda begin, end, step: ()
    async with recorded.browser() as browser:
        refused = await browser.get(f"/api/v1/computepools/{POOL}/next-hours")
        part = await browser.get(f"/computepools/{POOL}/next-hours")
        missing = await browser.get("/api/v1/computepools/gpu-b/next-hours")

    assert (refused.status_code, part.status_code, missing.status_code) == (400, 200, 404)
    for text in (refused.json()["detail"], html.unescape(part.text)):
        assert "check that it scrapes the gateways" in text
