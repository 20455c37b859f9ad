"""Every page of the dashboard: full, empty, broken and hostile; what it offers to whom; and that the browser runs all of it."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from builders.backfill import backfill_spec
from builders.batch import batch_spec
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.feature_compute import a_feature_compute
from builders.graph_status import a_graph_status
from builders.inference import an_inference
from builders.live_features import live_features_spec
from builders.model_access import a_model_access, a_route
from builders.pipeline import a_loaded_inference, a_tensor
from builders.release import a_release, released
from builders.shown_fleet import SHOWN_AT as NOW
from builders.web_page import CSRF, Page
from fixtures.dashboard import Dashboard
from tidegate.allocation import codec
from tidegate.allocation.snapshot import DemandInput, ReplicaBounds, ValueClass
from tidegate.api.allocation_decision import AllocationDecision, MeasuredValue
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.services.what_if import LastSolverInput, MeasuredLatency
from tidegate.telemetry.prometheus import ClusterTraffic
from tidegate.web import actions
from tidegate.web.pool_power import NODES_SHOWN

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\'" {{ 7 * 7 }} ' + "long " * 400


def a_condition(
    kind: str = "Ready", status: str = "False", reason: str = "LoadFailed", message: str = ""
) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def a_decision(name: str = "gpu-a-1", **spec: Any) -> AllocationDecision:
    base = {"pool": "gpu-a", "at": "2026-06-01T11:50:00Z", "mode": "Auto", "solver": "MILP"}
    return AllocationDecision.parse(
        {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "AllocationDecision",
            "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-06-01T11:50:00Z"},
            "spec": {**base, **spec},
        }
    )


def a_move(
    inference: str = "ads/fine",
    tier: str = "realtime",
    before: int = 1,
    after: int = 3,
    why: str = "more is asked",
) -> dict[str, Any]:
    return {"inference": inference, "tier": tier, "from": before, "to": after, "slices": 2, "why": why}


def a_pod(number: int, node: str = "n", inference: str = "fine", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"p-{number}",
            "namespace": "ads",
            "uid": f"uid-{number}",
            "resourceVersion": "1",
            "labels": {
                "tidegate.io/pool": "gpu-a",
                "tidegate.io/inference": inference,
                "tidegate.io/tier": "realtime",
                **labels,
            },
        },
        "spec": {"nodeName": node},
        "status": {},
    }


def fill(dashboard: Dashboard, said: str) -> None:
    """One of everything, with `said` wherever somebody can write what they like."""
    conditions = [a_condition(message=said), a_condition("Reconciling", "True", said[:200], said)]
    scaled: dict[str, Any] = {
        "scaling": {"minReplicas": 1, "maxReplicas": 4},
        "placement": {"pool": "gpu-a", "slices": 2},
        "replicas": None,
    }
    status = {
        "observedGeneration": 1,
        "conditions": conditions,
        "allocation": {"replicas": 3, "decision": "gpu-a-1", "epoch": 1},
        "failure": {
            "version": "4",
            "reason": said[:60],
            "message": said,
            "attempts": 2,
            "time": "2026-06-01T11:00:00Z",
        },
        "swap": {"version": "4", "replicas": 1, "since": "2026-06-01T11:59:00Z"},
        "versions": {"serving": "3", "target": "4", "memory": [{"version": "3", "bytes": 5_000_000}]},
        "graph": a_graph_status(said[:500]),
    }
    access = released(
        a_release(),
        phase="Paused",
        step=2,
        weight=5,
        message=said,
        reason=said[:60],
        checks=[{"check": said[:2000], "verdict": "Failed", "message": said[:1000]}],
    )
    routes = [
        {
            "name": "default",
            "targets": [{"inference": "v3", "weight": 95, "endpoints": 1}, {"inference": "v4", "weight": 5}],
            "mirror": [{"inference": "fine", "percent": 5}],
            "fallback": {"inference": "fine", "serving": True},
        },
        {
            "name": "both",
            "pipeline": {
                "replicas": 1,
                "models": [{"as": "a", "inference": "fine", "endpoints": 1}, {"as": "b", "access": "ctr"}],
            },
        },
        {"name": "none", "targets": [{"inference": "fine", "weight": 0}]},
    ]
    shown = {**access.status.dump(), "routes": routes, "url": said[:900], "conditions": conditions}
    dashboard.put(
        an_inference("fine", status=status, **scaled),
        an_inference("plain"),
        access.model_copy(update={"status": type(access.status).model_validate(shown)}),
        a_feature_compute(
            "plan",
            **live_features_spec(),
            status={
                "observedGeneration": 1,
                "watermarks": [{"source": "clicks", "lagSeconds": 604_800, "refusedEvents": 7}],
                "tables": [{"source": "profiles", "keys": 20_000, "loadedAt": "2026-01-01T00:00:00Z"}],
                "conditions": conditions,
            },
        ),
        a_compute_pool(
            "gpu-a",
            policy={
                "mode": "Hold",
                "moves": {"maxPercent": 10},
                "freeze": [{"schedule": "0 0 * * *", "duration": "1h"}],
                "events": [
                    {"name": "sale", "at": "2026-06-05T20:00:00Z", "duration": "2h", "factor": "3"},
                    {"name": "lunch", "schedule": "0 12 * * *", "duration": "1h", "factor": "1.5"},
                ],
            },
            status={
                "observedGeneration": 1,
                "nodes": 2,
                "slices": {"total": 16, "healthy": 16, "free": 4},
                "tiers": [{"name": "realtime", "slices": 12}],
                "conditions": conditions,
            },
        ),
        a_decision(
            moves=[a_move(why=said[:2000]), a_move("ads/other", "offline", 4, 1)],
            moveCount=7,
            binding=[{"constraint": said[:500], "price": 2.5}],
            notKept=[{"rule": "floor", "subject": "gpu-a", "message": said[:1000]}],
            spares=[{"inference": "ads/fine", "replicas": 1, "slices": 2}],
            predicted={"value": 3.0, "sloMisses": 1.0, "lost": 2.5},
            value={"offered": 8.0, "served": 5.25, "refused": 1.5, "lost": 1.25},
            values=[{"inference": "ads/fine", "offered": 8.0, "served": 5.25, "refused": 1.5, "lost": 1.25}],
            gap=0.01,
            note=said[:1000],
        ),
        a_compute_override(
            reason=said[:500],
            hold=True,
            target={"kind": "Inference", "namespace": "ads", "name": "fine"},
            metadata={
                "annotations": {"tidegate.io/author": said[:100]},
                "creationTimestamp": "2026-06-01T11:00:00Z",
            },
            expiresAt="2026-06-01T13:00:00Z",
        ),
        a_compute_override(
            "over", hold=True, target={"kind": "ComputePool", "name": "gpu-a", "namespace": None}
        ),
    )
    for number in range(3):
        dashboard.parts.fleet.pods.observe(
            "ADDED", a_pod(number, node="" if number else "n", **{"tidegate.io/slices": "12"})
        )


@pytest.fixture
def full(dashboard: Dashboard) -> Dashboard:
    fill(dashboard, "no such file")
    return dashboard


@pytest.fixture
def hostile(dashboard: Dashboard) -> Dashboard:
    fill(dashboard, HOSTILE)
    return dashboard


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator was last asked about two Inferences, one of them short of slices."""
    models = [
        a_model(
            "fine",
            Tier.REALTIME,
            a_placement(ready=1),
            load=DemandInput((250.0,), classes=(ValueClass(5.0, 0.25), ValueClass(1.0, 0.75))),
            value=2.0,
            bounds=ReplicaBounds(1, 4),
        ),
        a_model("other", Tier.OFFLINE, a_placement(ready=2), rate=None, bounds=ReplicaBounds(0, 4)),
    ]
    said = LastSolverInput(
        at=NOW,
        mode=PolicyMode.AUTO,
        snapshot=dict(codec.encode_snapshot(a_snapshot(a_pool(slices=8), *models))),
        values={
            "ads/fine": MeasuredValue(offered=500, served=310, refused=111, lost=79),
            "ads/apart": MeasuredValue(offered=70, served=70),
        },
        latencies={
            "ads/fine": MeasuredLatency(slo_seconds=0.03, p99_seconds=0.012, utilization=0.5),
        },
    )

    async def last(*_: object) -> LastSolverInput:
        return said

    monkeypatch.setattr(actions, "_last_question", last)


PAGES = (
    "/",
    "/list/inferences",
    "/list/modelaccesses",
    "/list/featurecomputes",
    "/list/computepools",
    "/inferences/ads/fine",
    "/inferences/ads/plain",
    "/inferences/ads/fine/charts",
    "/modelaccesses/ads/ctr",
    "/modelaccesses/ads/ctr/release",
    "/modelaccesses/ads/ctr/release/charts",
    "/featurecomputes/ads/plan",
    "/computepools/gpu-a",
    "/computepools/gpu-a/demand",
    "/computepools/gpu-a/simulate",
    "/computepools/gpu-a/next-hours",
    "/plan/gpu-a",
    "/decisions",
    "/decisions?inference=ads/fine",
    "/decisions/gpu-a-1",
    "/overrides",
    "/messages/TG1001",
    "/sign-in",
    "/inferences/ads/gone",
)


SAYING = (
    "/list/inferences",
    "/inferences/ads/fine",
    "/modelaccesses/ads/ctr",
    "/modelaccesses/ads/ctr/release",
    "/featurecomputes/ads/plan",
    "/computepools/gpu-a",
    "/decisions",
    "/decisions/gpu-a-1",
    "/overrides",
)
"""Those that show what the objects of `fill` say."""


async def read(dashboard: Dashboard, path: str, token: str = "token-of-ann") -> str:
    async with dashboard.browser(token) as browser:
        page = await browser.get(path)
    assert page.status_code in {200, 404}, page.text
    return page.text


def told(page: Page) -> str:
    """Its text, in one line."""
    return " ".join(" ".join(page.texts).split())


@pytest.mark.usefixtures("asked")
async def test_what_people_write_is_text_and_nothing_else(hostile: Dashboard) -> None:
    for path in PAGES:
        text = await read(hostile, path)
        page = Page(text)

        assert page.found == [], path
        assert "<script>alert" not in text
        assert "<img" not in text
        if path in SAYING:
            assert "<script>alert(1)</script><img src=x" in told(page), path


@pytest.mark.usefixtures("asked")
async def test_a_page_has_one_title_headings_in_order_and_ids_of_its_own(full: Dashboard) -> None:
    for path in PAGES:
        page = Page(await read(full, path))

        assert page.headings.count(1) == 1, path
        ordered = [after - before for before, after in zip(page.headings, page.headings[1:], strict=False)]
        assert max(ordered, default=0) <= 1, (path, page.headings)
        assert sorted(page.ids) == sorted(set(page.ids)), path


@pytest.mark.usefixtures("asked")
async def test_an_empty_fleet_has_pages_too(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        for path in ("/", "/list/inferences", "/decisions", "/overrides", "/power"):
            page = await browser.get(path, follow_redirects=True)
            assert (page.status_code, Page(page.text).found) == (200, []), path


async def test_the_compiled_graph_is_shown_with_what_runs_each_shape(dashboard: Dashboard) -> None:
    dashboard.put(
        an_inference("fine", status={"graph": a_graph_status("no faster: 0.98x")}), an_inference("plain")
    )

    text = told(Page(await read(dashboard, "/inferences/ads/fine")))

    assert "Operations 602 → 12 Speed-up 19.82× at 1 row, 2.27× at 128 rows" in text
    assert "Compared 24 requests of clients answered alike" in text
    assert "fuseEmbeddings 300 places changed" in text
    assert "simplify left out: no faster: 0.98x" in text
    assert "ids 16x60 OpenVINO 1.31× 2.0e-07" in text
    assert "ids 1x60 ONNX Runtime no faster: 0.98x – –" in text
    assert "Compiled graph" not in told(Page(await read(dashboard, "/inferences/ads/plain")))


async def test_objects_without_a_status_have_pages(dashboard: Dashboard) -> None:
    dashboard.put(
        an_inference("fine"), a_model_access("ctr"), a_feature_compute("plan"), a_compute_pool("gpu-a")
    )

    texts = [
        told(Page(await read(dashboard, path)))
        for path in (
            "/inferences/ads/fine",
            "/modelaccesses/ads/ctr",
            "/featurecomputes/ads/plan",
            "/computepools/gpu-a",
        )
    ]

    assert all("the controllers have not looked at it yet" in text for text in texts)
    assert "None in effect yet. The spec names default." in texts[1]
    assert "No pod of the pool is there." in texts[3]


async def test_features_are_shown_with_the_models_that_take_them(dashboard: Dashboard) -> None:
    pipeline = {"models": [{"inference": "ctr", "as": "p"}], "features": "plan"}
    dashboard.put(
        a_feature_compute("plan", **live_features_spec()),
        a_loaded_inference("ctr", [a_tensor("idle_log")]),
        a_model_access("scene", routes=[{"name": "home", "pipeline": pipeline}]),
        a_model_access("feed", "feed", routes=[{"name": "home", "pipeline": pipeline}]),
    )
    path, users = "/featurecomputes/ads/plan", "Inference ctr in ads/ scene"

    page = told(Page(await read(dashboard, path)))

    assert f"idle_log log feature idle FP32 [-1, 1] {users} idle_clip" in page
    assert page.count(users) == 1
    assert "feed" not in page
    assert "idle timeSince stream clicks FP32 [-1, 1] feature idle_log feature idle_clip" in page

    dashboard.allowed.resources["bob"] = frozenset({"featurecomputes", "modelaccesses"})
    page = told(Page(await read(dashboard, path, "token-of-bob")))

    assert users not in page
    assert "The models that take the features are not shown" in page


async def test_pages_lead_to_targets_and_accesses_of_other_namespaces(dashboard: Dashboard) -> None:
    routed = {"name": "default", "targets": [{"inference": "shop/ranker", "weight": 100, "endpoints": 1}]}
    shared = {"annotations": {"tidegate.io/shared-with": "ads,feed"}}
    dashboard.put(
        an_inference("ranker", "shop", metadata=shared),
        a_model_access("home", routes=[a_route("default", "shop/ranker")], status={"routes": [routed]}),
        a_model_access("home", "feed", routes=[a_route("default", "shop/ranker")]),
        a_model_access("stranger", "blog", routes=[a_route("default", "shop/ranker")]),
    )
    dashboard.traffic["inference/shop/ranker/grpc"] = ClusterTraffic(123.0, 4.0)
    await dashboard.parts.traffic.refresh_traffic()

    access = await read(dashboard, "/modelaccesses/ads/home")
    assert 'href="/inferences/shop/ranker"' in access
    assert "123" in told(Page(access))
    inference = await read(dashboard, "/inferences/shop/ranker")
    links = re.findall(r'href="/modelaccesses/([a-z]+/[a-z]+)"', inference)
    assert sorted(links) == ["ads/home", "feed/home"]

    dashboard.allowed.namespaces["bob"] = frozenset({"ads"})
    assert "123" not in told(Page(await read(dashboard, "/modelaccesses/ads/home", "token-of-bob")))
    # Answers about rights are kept for a while, so this is another user.
    dashboard.allowed.users["token-of-cid"] = "cid"
    dashboard.allowed.verbs["cid"] = dashboard.allowed.verbs["bob"]
    dashboard.allowed.namespaces["cid"] = frozenset({"shop", "ads"})
    page = await read(dashboard, "/inferences/shop/ranker", "token-of-cid")
    assert re.findall(r'href="/modelaccesses/([a-z]+/[a-z]+)"', page) == ["ads/home"]


async def test_a_backfill_and_batches_are_shown_with_the_features(dashboard: Dashboard) -> None:
    progress = {"run": "a-1", "output": "s3://lake/training/a-1", "shards": 8, "done": 5, "failed": 1}
    batch = batch_spec(features={"name": "plan"})
    dashboard.put(
        a_feature_compute(
            "plan", status={"backfill": progress}, **live_features_spec(backfill=backfill_spec())
        ),
        an_inference("scores", tier="offline", batch=batch),
        an_inference("elsewhere", "feed", tier="offline", batch=batch),
    )

    page = told(Page(await read(dashboard, "/featurecomputes/ads/plan")))

    assert "Backfill 5 of 8 shards · 1 failed" in page
    assert "place clip 0 to 100 request position INT64 [-1, 1] backfill batch of ads/ scores" in page
    assert "elsewhere" not in page


async def test_an_object_that_cannot_be_read_says_who_says_why(dashboard: Dashboard) -> None:
    body = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "metadata": {"name": "odd", "namespace": "ads"},
        "spec": 7,
    }
    dashboard.parts.fleet.inferences.store.observe("ADDED", body)

    assert "tidegate analyze says what is wrong with it" in await read(dashboard, "/inferences/ads/odd")


async def test_why_is_told_with_its_code_and_the_way_to_its_meaning(full: Dashboard) -> None:
    text = await read(full, "/inferences/ads/fine")

    assert 'href="/messages/TG1312"' in text
    assert "more is asked" not in text  # another said so
    assert "1 → 3</span>: no such file" in text
    meaning = told(Page(await read(full, "/messages/TG1312")))
    assert "LoadFailed" in meaning
    assert "What to do" in meaning


WRITING: Mapping[str, tuple[str, ...]] = {
    "/inferences/ads/fine": ('action="/overrides/confirm"', 'action="/overrides/sale/end"'),
    "/modelaccesses/ads/ctr/release": ('action="/modelaccesses/ads/ctr/release"',),
    "/computepools/gpu-a": (
        'action="/overrides/confirm"',
        'href="/plan/gpu-a"',
        "/computepools/gpu-a/demand",
    ),
    "/overrides?target=ads/fine": ('action="/overrides/confirm"', 'action="/overrides/sale/end"'),
}


async def test_who_may_not_is_offered_nothing_and_told_which_right_is_missing(full: Dashboard) -> None:
    for path, offers in WRITING.items():
        anns, bobs = await read(full, path), await read(full, path, "token-of-bob")

        assert all(offer in anns for offer in offers), path
        assert not any(offer in bobs for offer in offers), path
        assert "you need the right" in bobs


@pytest.mark.usefixtures("asked")
async def test_who_may_not_and_posts_all_the_same_is_refused(full: Dashboard) -> None:
    fields = {"namespace": "ads", "name": "fine", "action": "hold", "reason": "a", "lasting": "30m"}
    paths = "/overrides", "/overrides/confirm", "/overrides/sale/end", "/modelaccesses/ads/ctr/release"
    async with full.browser("token-of-bob") as bob:
        csrf = (await bob.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        for path in (*paths, "/plan/gpu-a"):
            refused = await bob.post(path, data={**fields, "command": "pause", "csrf": csrf})
            assert (refused.status_code, "user bob may not" in refused.text) == (403, True), path


async def test_an_override_is_shown_in_words_before_it_is_made(full: Dashboard) -> None:
    wanted = {
        "namespace": "ads",
        "name": "fine",
        "action": "pin",
        "replicas": "9",
        "reason": "<b>a sale</b>",
        "lasting": "2h",
    }
    async with full.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        shown = await ann.post("/overrides/confirm", data={**wanted, "csrf": csrf})
        forever = await ann.post("/overrides/confirm", data={**wanted, "lasting": "9999h", "csrf": csrf})
        nobody = await ann.post("/overrides/confirm", data={**wanted, "name": "gone", "csrf": csrf})

    text = told(Page(shown.text))
    assert "You, ann , pin Inference ads/ fine to 9 replicas until" in text
    assert "2026-06-01T14:00:00Z" in text
    assert "In the way: " in text  # nine is more than spec.scaling has
    assert "it is newer" not in text  # than what is being made
    assert "<b>" not in shown.text
    assert 'name="replicas" value="9"' in shown.text
    assert full.allowed.written == []
    assert (forever.status_code, nobody.status_code) == (400, 404)
    assert "lasts from 1m to 168h" in forever.text
    assert "gone" in nobody.text


async def test_a_refused_override_leaves_the_form_as_it_was_typed(full: Dashboard) -> None:
    typed = {
        "kind": "Inference",
        "namespace": "ads",
        "name": "fine",
        "action": "floor",
        "replicas": "2",
        "reason": 'a "sale"',
        "lasting": "9999h",
    }
    async with full.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        refused = (await ann.post("/overrides/confirm", data={**typed, "csrf": csrf})).text
        shown = (await ann.post("/overrides/confirm", data={**typed, "lasting": "2h", "csrf": csrf})).text
        back = (await ann.get(html.unescape(re.findall(r'href="(/overrides\?[^"]*)"', shown)[0]))).text
        unasked = (await ann.get("/overrides")).text

    for page, lasting in ((refused, "9999h"), (back, "2h")):
        assert 'name="name" value="fine"' in page
        assert 'id="o-floor" value="floor" checked>' in page
        assert 'inputmode="numeric" value="2"' in page
        assert 'name="reason" value="a &#34;sale&#34;"' in page
        assert f'<option value="{lasting}" selected>' in page
    assert 'id="refused"' in refused
    assert 'id="refused"' not in back
    assert 'name="target" value=""' in unasked
    assert "reason" not in unasked.partition('id="make"')[2]


OFFERED = {
    "Progressing": {"pause", "promote", "abort", "restart"},
    "Paused": {"resume", "promote", "abort", "restart"},
    "Promoted": {"abort", "restart"},
    "RolledBack": {"restart"},
}


async def test_a_release_is_offered_what_would_change_it(dashboard: Dashboard) -> None:
    for phase, offered in OFFERED.items():
        dashboard.put(released(a_release(), phase=phase, step=1))
        text = await read(dashboard, "/modelaccesses/ads/ctr/release")
        every = ("pause", "resume", "promote", "abort", "restart")
        assert {each for each in every if f'name="command" value="{each}"' in text} == offered, phase


@pytest.mark.usefixtures("asked")
async def test_an_answer_predicts_the_p99(full: Dashboard) -> None:
    kept = told(Page(await read(full, "/plan/gpu-a")))
    async with full.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        missed = await ann.post("/plan/gpu-a", data={"csrf": csrf, "demand:ads/fine": "99999"})

    assert "p99 predicted" in kept
    assert "about 20 ms (12 to 30)" in kept
    assert "over 30 ms" in told(Page(missed.text))


@pytest.mark.usefixtures("asked")
async def test_a_question_is_answered_with_moves_and_keeps_what_was_asked(full: Dashboard) -> None:
    async with full.browser() as ann:
        csrf = (await ann.get("/overrides")).text.partition(CSRF)[2].partition('"')[0]
        asked = {"csrf": csrf, "demand:ads/fine": "390", "factor": "", "filter": "other"}
        answer = await ann.post("/plan/gpu-a", data=asked)
        wrong = await ann.post("/plan/gpu-a", data={**asked, "demand:ads/gone": "1"})

    text = told(Page(answer.text))
    assert "1 → 4" in text
    assert "1 of 2 shown, 1 fit; 1 changed in the question, those not shown included" in text
    assert '<input type="hidden" name="demand:ads/fine" value="390">' in answer.text
    assert wrong.status_code == 400
    assert "the allocator decides about no ads/gone" in wrong.text


@pytest.mark.usefixtures("asked")
async def test_demand_is_told_by_tier_and_what_is_not_known(full: Dashboard) -> None:
    text = told(Page(await read(full, "/computepools/gpu-a/demand")))

    assert "3 slices would serve all that is asked; 8 are there" in text
    assert "The demand of 1 Inference is not known" in text


@pytest.mark.usefixtures("asked")
async def test_the_value_of_what_clients_sent_is_told_by_inference_with_its_mix(full: Dashboard) -> None:
    text = told(Page(await read(full, "/computepools/gpu-a/demand")))
    assert "All 570 380 111 79" in text
    assert "ads/ fine 2: 5 for 25 % , 1 for 75 % 500 310 111 79" in text
    # It gets requests, and the allocator decides nothing about it.
    assert "ads/ apart not decided about 70 70 0 0" in text
    decision = told(Page(await read(full, "/decisions/gpu-a-1")))
    assert "Value lost with them per second 2.5" in decision
    assert "ads/ fine 8 5.25 1.5 1.25" in decision


async def test_without_measured_value_the_pages_show_none(dashboard: Dashboard) -> None:
    dashboard.put(a_decision(moves=[a_move()]))
    text = await read(dashboard, "/decisions/gpu-a-1")
    assert "Value before it" not in text


async def test_decisions_come_in_pages_on_the_page_and_through_the_api(dashboard: Dashboard) -> None:
    moves = [a_move()]
    dashboard.put(
        *(
            a_decision(f"gpu-a-{number}", at=f"2026-06-01T10:{number:02}:00Z", moves=moves[: number % 2])
            for number in range(60)
        )
    )

    async def listed(**asked: Any) -> tuple[list[str], tuple[int, int, int]]:
        async with dashboard.browser() as browser:
            found = (await browser.get("/api/v1/history", params=asked)).json()
        return [each["name"] for each in found["decisions"]], (found["total"], found["page"], found["pages"])

    newest_first = [f"gpu-a-{number}" for number in reversed(range(60))]
    assert await listed() == (newest_first[:50], (60, 1, 2))
    assert await listed(page=2) == (newest_first[50:], (60, 2, 2))
    assert await listed(page=9, size=7) == (newest_first[56:], (60, 9, 9))
    assert await listed(page=99, size=7) == (newest_first[56:], (60, 9, 9))  # the last one for one beyond it
    assert await listed(inference="ads/fine", size=2) == (["gpu-a-59", "gpu-a-57"], (30, 1, 15))
    assert await listed(inference="ads/other") == ([], (0, 1, 1))
    assert await listed(pool="other") == ([], (0, 1, 1))
    async with dashboard.browser() as browser:
        assert (await browser.get("/api/v1/history?size=0")).status_code == 422
    page = await read(dashboard, "/decisions?page=2")
    assert '/decisions/gpu-a-9"' in page
    assert '/decisions/gpu-a-10"' not in page


async def test_spares_that_inferences_share_are_shown_with_what_they_serve(dashboard: Dashboard) -> None:
    spare = {"name": "spare-gpu-a-0", "namespace": "ads", "node": "node-1", "slices": 1}
    reason = "the loss of node node-0 takes 0.8 busy replicas of fine (0.8)"
    models = [{"inference": "fine", "version": "3"}]
    placed = {"placement": {"pool": "gpu-a"}, "scaling": {"minReplicas": 1, "maxReplicas": 1}}
    dashboard.put(
        a_compute_pool(
            "gpu-a",
            status={"sharedSpares": {"slices": 1, "spares": [{**spare, "models": models, "reason": reason}]}},
        ),
        an_inference("fine", **placed),
        a_decision(
            shared_spares=[
                {
                    "namespace": "ads",
                    "node": "node-1",
                    "slices": 1,
                    "models": ["fine"],
                    "reason": reason,
                }
            ]
        ),
    )
    pod = a_pod(0, "node-1", "")
    pod["metadata"]["labels"] = {"tidegate.io/pool": "gpu-a", "tidegate.io/slices": "1"}
    pod["metadata"]["labels"] |= {"tidegate.io/tier": "realtime", "tidegate.io/shared-spare": "0"}
    pod["metadata"]["annotations"] = {"tidegate.io/shared-models": "fine=3@s"}
    dashboard.parts.fleet.pods.observe("ADDED", pod)

    line = f"ads/spare-gpu-a-0, 1 slice on node node-1, has fine version 3: {reason}"
    pool = await read(dashboard, "/computepools/gpu-a")
    assert line in pool
    assert 'title="ads/fine, realtime, pod ' in pool
    assert line in await read(dashboard, "/inferences/ads/fine")
    decision = await read(dashboard, "/decisions/gpu-a-1")
    assert f"on node node-1, 1 slice: {reason}" in decision


async def test_a_pool_of_a_thousand_nodes_stays_a_page(dashboard: Dashboard) -> None:
    dashboard.put(
        a_compute_pool(
            "gpu-a",
            status={"observedGeneration": 1, "nodes": 1_000, "slices": {"total": 32_000, "healthy": 32_000}},
        )
    )
    for number in range(32_000):
        inference = "rare" if number == 31_999 else f"m-{number % 50}"
        dashboard.parts.fleet.pods.observe("ADDED", a_pod(number, f"node-{number // 32:04}", inference))

    whole = await read(dashboard, "/computepools/gpu-a")
    last = await read(dashboard, "/computepools/gpu-a?nodes=9999")
    rare = await read(dashboard, "/computepools/gpu-a?on=ads/rare")

    assert Page(whole).elements < 2_500
    assert len(whole) < 300_000
    assert "Page 1 of 42" in whole
    assert whole.count('class="node"') == NODES_SHOWN
    assert "node-0999" in last
    assert (rare.count('class="node"'), "node-0999" in rare) == (1, True)


async def test_what_is_live_asks_for_itself_when_a_topic_of_its_has_changed(full: Dashboard) -> None:
    text = await read(full, "/computepools/gpu-a")

    # htmx reads a slash as the beginning of a quoted text: what has one is the last.
    assert (
        'hx-trigger="refresh, sse:computeoverrides, sse:allocationdecisions, sse:computepools/gpu-a"' in text
    )
    assert "topic=computepools/gpu-a" in text


async def test_nobody_listens_to_what_they_may_not_see(full: Dashboard) -> None:
    full.allowed.namespaces["bob"] = frozenset({"ads"})

    text = await read(full, "/inferences/ads/fine", "token-of-bob")

    assert "topic=inferences/ads/fine" in text
    assert "topic=allocationdecisions" not in text
    assert "the right <code>list allocationdecisions</code> is missing" in text


async def test_events_stay_when_a_page_reads_itself_again(full: Dashboard) -> None:
    async with full.browser() as browser:
        first = await browser.get("/inferences/ads/fine")
        again = await browser.get("/inferences/ads/fine", headers={"hx-request": "true"})

    assert 'id="events"' in first.text
    assert 'id="events"' not in again.text
