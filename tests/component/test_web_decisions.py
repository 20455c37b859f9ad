"""The log of decisions by trigger, mode and tier; the order of tiers; and labels that never stand alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import a_decision
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.shown_fleet import SHOWN_AT
from builders.web_page import Page
from fixtures.dashboard import Dashboard


@pytest.fixture
def decided(dashboard: Dashboard) -> Dashboard:
    """Three decisions: by the interval, by a change of mode without effect, and one that moves offline work."""
    kinds: Sequence[tuple[str, dict[str, Any]]] = (
        ("p-1", {"trigger": "Interval", "tier": "realtime"}),
        ("p-2", {"trigger": "Interval", "mode": "RecommendOnly", "tier": "nearline"}),
        ("p-3", {"trigger": "NodeLost", "tier": "offline"}),
    )
    dashboard.put(
        *(
            a_decision(("ctr", 1, 2), name=name, at=SHOWN_AT - timedelta(minutes=number), **fields)
            for number, (name, fields) in enumerate(kinds)
        )
    )
    return dashboard


async def read(dashboard: Dashboard, path: str, status: int = 200) -> str:
    async with dashboard.browser() as browser:
        answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return " ".join(answer.text.split())


def names(page: str) -> Sequence[str]:
    return re.findall(r'id="decision-([^"]*)"', page)


FILTERS = {
    "": ["p-1", "p-2", "p-3"],
    "?trigger=Interval": ["p-1", "p-2"],
    "?trigger=Interval&mode=RecommendOnly": ["p-2"],
    "?tier=offline": ["p-3"],
    "?trigger=&mode=&tier=": ["p-1", "p-2", "p-3"],
    "?tier=offline&mode=RecommendOnly": [],
    "?age=15m": ["p-1", "p-2", "p-3"],
    "?age=1h&tier=offline": ["p-3"],
}


@pytest.mark.parametrize("query", FILTERS)
async def test_decisions_are_those_of_the_filter(decided: Dashboard, query: str) -> None:
    assert names(await read(decided, f"/decisions{query}")) == FILTERS[query]


async def test_decisions_before_the_chosen_time_are_left_out(decided: Dashboard) -> None:
    decided.clock.now = SHOWN_AT + timedelta(minutes=14)

    assert names(await read(decided, "/decisions?age=15m")) == ["p-1", "p-2"]
    assert "age" in await read(decided, "/decisions?age=9h", 422)


async def test_a_filter_stays_chosen_and_an_unknown_one_is_refused(decided: Dashboard) -> None:
    page = await read(decided, "/decisions?trigger=Interval&tier=realtime")

    assert "<option selected>Interval</option>" in page
    assert "<option selected>realtime</option>" in page
    assert "Show all" in page
    assert "trigger" in await read(decided, "/decisions?trigger=Whim", 422)


async def test_tiers_have_one_order(dashboard: Dashboard) -> None:
    tiers = [{"name": name, "slices": 2} for name in ("nearline", "offline", "realtime")]
    slices = {"total": 8, "healthy": 8, "free": 2}
    dashboard.put(a_compute_pool("gpu-a", status={"observedGeneration": 1, "slices": slices, "tiers": tiers}))

    overview, pool = await read(dashboard, "/"), await read(dashboard, "/computepools/gpu-a")

    for page in (overview, pool):
        assert re.findall(r'class="share t-(\w+)"', page) == ["realtime", "nearline", "offline", "free"]
        assert 'aria-label="realtime 2, nearline 2, offline 2, free 2 of 8 healthy slices"' in page
    assert "realtime 2, nearline 2, offline 2" in await read(dashboard, "/list/computepools")
    assert "Power is the compute of a pool in slices, not electricity" in pool


async def test_a_move_without_a_reason_has_no_colon(dashboard: Dashboard) -> None:
    move = {"inference": "ads/ctr", "tier": "realtime", "from": 12, "to": 16, "slices": 1, "why": ""}
    decision = a_decision(("ctr", 12, 16), name="gpu-a-1", at=SHOWN_AT, moves=[move])
    dashboard.put(
        a_compute_pool("gpu-a"),
        an_inference(
            "ctr",
            scaling={"minReplicas": 1, "maxReplicas": 24},
            placement={"pool": "gpu-a"},
            replicas=None,
            status={"observedGeneration": 1, "allocation": {"replicas": 16, "decision": "gpu-a-1"}},
        ),
        decision.model_copy(update={"spec": decision.spec.model_copy(update={"pool": "gpu-a"})}),
    )

    page = await read(dashboard, "/inferences/ads/ctr")

    assert '<span class="change">12 → 16</span></dd>' in page
    assert "12 → 16</span>:" not in page


@pytest.mark.parametrize(
    ("path", "heading"),
    [("/inferences/ads/gone", "Not found"), ("/list/inferences?page=0", "Invalid request")],
)
async def test_a_refusal_has_the_usual_heading(dashboard: Dashboard, path: str, heading: str) -> None:
    async with dashboard.browser() as browser:
        page = Page((await browser.get(path)).text)

    assert heading in page.texts
