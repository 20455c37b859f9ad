"""The form for an override: its target first, and then what applies to that target."""

from __future__ import annotations

import html
import re

import pytest

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.web_page import CSRF, Page
from fixtures.dashboard import Dashboard
from tidegate.web.override_form import list_expiries


@pytest.fixture
def fleet(dashboard: Dashboard) -> Dashboard:
    """An Inference that the allocator decides about, one that it does not, and a pool."""
    dashboard.put(
        an_inference(
            "ctr",
            scaling={"minReplicas": 2, "maxReplicas": 6},
            placement={"pool": "gpu-a"},
            replicas=None,
            status={"observedGeneration": 1, "allocation": {"replicas": 3}},
        ),
        an_inference("fixed"),
        a_compute_pool("gpu-a"),
    )
    return dashboard


async def read(dashboard: Dashboard, path: str, status: int = 200, token: str = "token-of-ann") -> str:
    async with dashboard.browser(token) as browser:
        answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return " ".join(answer.text.split())


def make_part(page: str) -> str:
    return page.partition('<section aria-labelledby="make-title"')[2].partition("</section>")[0]


async def test_without_a_target_there_is_one_field_and_what_can_be_chosen(fleet: Dashboard) -> None:
    part = make_part(await read(fleet, "/overrides"))

    assert re.findall(r'<option value="([^"]*)"', part) == ["gpu-a", "ads/ctr"]
    assert 'name="target"' in part
    assert 'name="reason"' not in part
    assert 'action="/overrides/confirm"' not in part


async def test_an_inference_has_three_choices_and_its_bounds(fleet: Dashboard) -> None:
    page = await read(fleet, "/overrides?target=ads/ctr")

    part = make_part(page)
    assert re.findall(r'name="action" id="o-\w+" value="(\w+)"( checked)?', part) == [
        ("hold", " checked"),
        ("pin", ""),
        ("floor", ""),
    ]
    assert "Hold: keep the 3 decided now" in part
    assert "<small>2 to 6, now 3</small>" in part
    assert '<option value="30m" selected>30 minutes, until 12:30 UTC</option>' in part
    assert '<option value="24h">1 day, until Jun 02, 12:00 UTC</option>' in part
    assert 'name="target"' not in part
    assert Page(page).found == []


async def test_a_pool_can_only_be_held(fleet: Dashboard) -> None:
    part = make_part(await read(fleet, "/overrides?target=gpu-a"))

    assert '<input type="hidden" name="action" value="hold">' in part
    assert "radio" not in part
    assert "replicas" not in part
    assert "Holds the pool" in part


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ads/fixed", "has no spec.scaling"),
        ("ads/gone", "there is no ads/gone among the inferences"),
        ("gone", "there is no gone among the computepools"),
        ("<script>alert(1)</script>", "there is no"),
        ("/" * 400, "there is no"),
        ("ads/" + "x" * 253, "there is no"),
    ],
)
async def test_a_target_that_cannot_be_overridden_says_why(
    fleet: Dashboard, target: str, message: str
) -> None:
    async with fleet.browser() as browser:
        page = (await browser.get("/overrides", params={"target": target})).text

    assert "<script>alert" not in page
    part = make_part(page)
    assert message in part
    assert 'name="target"' in part
    assert 'action="/overrides/confirm"' not in part


async def test_a_target_is_for_users_with_the_right_to_read_it(fleet: Dashboard) -> None:
    fleet.allowed.verbs["bob"] = frozenset({"get", "list", "create"})
    fleet.allowed.resources["bob"] = frozenset({"computeoverrides", "computepools"})

    refused = make_part(await read(fleet, "/overrides?target=ads/ctr", token="token-of-bob"))
    part = make_part(await read(fleet, "/overrides", token="token-of-bob"))

    assert "user bob may not get inferences" in refused
    assert re.findall(r'<option value="([^"]*)"', part) == ["gpu-a"]


async def test_a_number_that_does_not_apply_is_not_sent_on(fleet: Dashboard) -> None:
    fields = {
        "namespace": "ads",
        "name": "ctr",
        "action": "hold",
        "replicas": "5",
        "reason": "a",
        "lasting": "30m",
    }
    async with fleet.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        held = (await ann.post("/overrides/confirm", data={**fields, "csrf": csrf})).text
        missing = await ann.post(
            "/overrides/confirm", data={**fields, "action": "pin", "replicas": "", "csrf": csrf}
        )

    assert "Nothing is written yet" in held
    assert 'name="replicas"' not in held
    assert (missing.status_code, "pin needs a number of replicas" in missing.text) == (400, True)
    assert 'id="o-pin" value="pin" checked' in missing.text


async def test_a_refused_target_keeps_what_was_typed(fleet: Dashboard) -> None:
    fields = {
        "namespace": "ads",
        "name": "gone",
        "action": "pin",
        "replicas": "5",
        "reason": "<b>",
        "lasting": "2h",
    }
    async with fleet.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        refused = await ann.post("/overrides/confirm", data={**fields, "csrf": csrf})

    part = make_part(refused.text)
    assert refused.status_code == 404
    assert 'name="target" value="ads/gone"' in part
    assert 'name="reason" value="&lt;b&gt;"' in part
    assert 'name="lasting" value="2h"' in part
    assert html.escape("<b>") in part


async def test_suggestions_are_bounded(dashboard: Dashboard) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 2}
    dashboard.put(
        *(
            an_inference(f"m-{number:04}", scaling=scaling, placement={"pool": "a"}, replicas=None)
            for number in range(300)
        )
    )

    part = make_part(await read(dashboard, "/overrides"))

    assert part.count("<option") == 200


def test_a_duration_that_is_no_preset_stays_a_choice(dashboard: Dashboard) -> None:
    choices = list_expiries(dashboard.clock.now, "90m")

    assert [choice.lasting for choice in choices][-1] == "90m"
    assert len(choices) == len(list_expiries(dashboard.clock.now)) + 1
    assert list_expiries(dashboard.clock.now, "9e99h")[-1].text == "9e99h"
