"""Pipelines on a real Triton, behind and before a real Envoy, with models on another Triton that take 50 ms each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from builders.feature_compute import a_feature_compute as a_feature_compute_object
from builders.fleet import credentials
from builders.metrics_page import metric
from builders.model_access import a_model_access, a_route
from builders.slow_models import SlowModel
from builders.waiting import eventually, wait_until
from fixtures.agent import ModelPod
from fixtures.envoy import Gateway
from fixtures.pipeline import Rig, a_rig, an_inference_of, backend, endpoint_of, slow_models
from fixtures.triton import RunningTriton, TritonFiles
from tidegate.api.model_access import ModelAccess
from tidegate.planning.access.pipeline_plan import Callees
from tidegate.routing.fleet import BackendKind, Endpoint
from tidegate_dataplane.contract import DEFAULTED, RunnerEnd

pytestmark = [pytest.mark.triton, pytest.mark.asyncio(loop_scope="module")]

CTR, CVR, GMV = (SlowModel(name, factor) for name, factor in (("ctr", 2), ("cvr", 3), ("gmv", 5)))
LATE = SlowModel("late", 7, delay_ms=10_000)
CALM = SlowModel("calm", 11, delay_ms=1)
USERS = SlowModel("users", 0.5, delay_ms=1, given="user_id", given_type="INT64", gives="x")
OPTIONAL = {"optional": True, "timeout": "5s", "default": "0.25"}
CALLEES = Callees(inferences={one.name: an_inference_of(one) for one in (CTR, CVR, GMV, LATE, CALM)})
AT_ONCE_S = 0.120
"""One after the other three models never take less than 150 ms, however idle the machine; at once, a busy one takes more than 50 ms."""
ANSWERED = {"pctr": [2.0, 4.0], "pcvr": [3.0, 6.0], "pgmv": [5.0, 10.0]}


def a_scene(*models: dict[str, Any], features: str | None = None, **spec: Any) -> ModelAccess:
    pipeline = {"models": list(models), **({"features": features} if features else {})}
    return a_model_access("scene", routes=[{"name": "all", "timeout": "10s", "pipeline": pipeline}], **spec)


THREE = a_scene(
    {"inference": "ctr", "as": "pctr"},
    {"inference": "cvr", "as": "pcvr"},
    {"inference": "gmv", "as": "pgmv", **OPTIONAL},
)


@pytest.fixture(scope="module")
def models(triton_files: TritonFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    folder = tmp_path_factory.mktemp("models") / "server"
    with slow_models(triton_files, folder, CTR, CVR, GMV, LATE, CALM, USERS) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(
    shared_pod: ModelPod, models: RunningTriton, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    async with (
        Gateway(tmp_path_factory.mktemp("gateway")) as gateway,
        a_rig(gateway, shared_pod, models) as running,
    ):
        pods = endpoint_of(models)
        await running.push(
            **{name: backend(name, pods) for name in ("ctr", "cvr", "gmv", "late", "calm")},
            features=backend("users", pods, kind=BackendKind.FEATURE_COMPUTE),
        )
        await running.take(THREE, CALLEES)
        yield running
        shared_pod.triton.kill()  # in good order it would wait for the gateway's connections


def values(answer: Any) -> dict[str, list[float]]:
    return {name: array.ravel().tolist() for name, array in answer.items() if name != DEFAULTED}


def marks(answer: Any) -> set[bytes]:
    return set(answer[DEFAULTED].ravel().tolist())


async def asked_at_rest(rig: Rig) -> Mapping[str, int]:
    """What each model has taken, once that rests: Triton answers first and counts afterwards."""
    found = await rig.asked()

    async def rests() -> bool:
        nonlocal found
        before = found
        await asyncio.sleep(1.0)
        found = await rig.asked()
        return found == before

    await eventually(rests, "Triton has counted the calls")
    return found


async def test_three_models_answer_in_the_time_of_one(rig: Rig) -> None:
    seconds: list[float] = []
    while len(seconds) < 12 or (min(seconds) >= AT_ONCE_S and len(seconds) < 60):
        began = time.perf_counter()
        answer = await rig.infer([1.0, 2.0])
        seconds.append(time.perf_counter() - began)

    assert values(answer) == ANSWERED
    assert marks(answer) == {b""}
    assert min(seconds) < AT_ONCE_S, seconds


async def test_sixty_four_requests_at_once_are_few_calls_of_each_model(rig: Rig) -> None:
    before = await rig.asked()
    tries: list[dict[str, int]] = []
    # Whoever is free takes all that wait: where a busy machine falls behind in sending them, that is more often.
    while len(tries) < 5 and not (tries and all(1 <= count <= 16 for count in tries[-1].values())):
        answers = await asyncio.gather(*(rig.infer([float(place), 1.0]) for place in range(64)))

        for place, answer in enumerate(answers):
            expected = {"pctr": [2.0 * place, 2.0], "pcvr": [3.0 * place, 3.0], "pgmv": [5.0 * place, 5.0]}
            assert values(answer) == expected

        after = await asked_at_rest(rig)
        tries.append({name: after[name] - before[name] for name in ("ctr", "cvr", "gmv")})
        before = after
    assert all(1 <= count <= 16 for count in tries[-1].values()), tries


async def test_an_input_that_a_model_refuses_costs_nobody_else_the_answer(rig: Rig) -> None:
    rows = [[float(place)] for place in range(1, 9)]
    rows[3] = [-1.0]
    outcomes = await asyncio.gather(*(rig.outcome(one) for one in rows))

    assert outcomes[3].startswith("INTERNAL: pctr (Inference ctr): ")
    assert "a row is below zero" in outcomes[3]
    assert [one for place, one in enumerate(outcomes) if place != 3] == ["answered"] * 7


async def test_the_server_shows_what_became_of_requests_soon_after_them(rig: Rig) -> None:
    def count(outcome: str) -> float:
        page = rig.pod.triton.read_metrics_page()
        return metric(page, "tidegate_pipeline_requests_total", part="pctr", outcome=outcome) or 0

    before = {outcome: count(outcome) for outcome in ("answered", "failed")}
    outcomes = [await rig.outcome([row]) for row in (1.0, 2.0, -1.0)]
    assert [one == "answered" for one in outcomes] == [True, True, False]
    await asyncio.to_thread(
        wait_until,
        lambda: count("answered") >= before["answered"] + 2 and count("failed") >= before["failed"] + 1,
        what="the requests are counted",
    )


@pytest.fixture
def nobody() -> Iterator[Endpoint]:
    """A pod that was killed and that the gateway has not heard of yet."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        yield Endpoint("127.0.0.1", port, port)


async def test_an_optional_model_that_is_killed_is_answered_for_and_marked(
    rig: Rig, nobody: Endpoint
) -> None:
    alive = rig.fleet["gmv"]
    for gone in (backend("gmv", nobody), backend("gmv")):
        await rig.push(gmv=gone)
        answer = await rig.infer([1.0, 2.0])
        assert values(answer) == {**ANSWERED, "pgmv": [0.25, 0.25]}
        assert marks(answer) == {b"pgmv"}

    status, body, _ = await rig.client.rest(
        "POST",
        "/v2/models/scene/infer",
        headers={"x-tidegate-access": "ads/scene"},
        body=json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}),
    )
    outputs = {one["name"]: one["data"] for one in json.loads(body)["outputs"]}
    assert (status, outputs) == (200, {"pctr": [2], "pcvr": [3], "pgmv": [0.25], DEFAULTED: ["pgmv"]})

    await rig.push(gmv=alive)
    assert marks(await rig.infer([1.0])) == {b""}


async def test_a_model_that_is_not_optional_fails_the_request_by_its_name(rig: Rig, nobody: Endpoint) -> None:
    alive = rig.fleet["cvr"]
    await rig.push(cvr=backend("cvr", nobody))
    try:
        outcome = await rig.outcome([1.0])
    finally:
        await rig.push(cvr=alive)

    assert outcome.startswith("UNAVAILABLE: pcvr (Inference cvr): ")
    # Without any pod the gateway says so itself, and nobody is asked in vain.
    before = await rig.gateway.envoy.sum_of_stats("upstream_rq_total")
    await rig.push(cvr=backend("cvr"))
    try:
        outcome = await rig.outcome([1.0])
        assert await rig.gateway.envoy.sum_of_stats("upstream_rq_total") == before
    finally:
        await rig.push(cvr=alive)
    assert "Inference cvr, which answers pcvr in the pipeline of route all, has no ready endpoint" in outcome


async def test_the_host_for_calls_answers_no_client(rig: Rig) -> None:
    for name in ("pipeline/ads/scene", "pipeline/of/ads/scene", "pipeline/of/", "of/uid-ads-scene"):
        headers = {"x-tidegate-access": name, "x-tidegate-part": "ctr"}
        status, _, _ = await rig.client.rest("GET", "/v2/models/ctr/ready", headers=headers)
        assert status == 404


async def test_clients_show_who_they_are_and_what_the_pipeline_calls_asks_nobody(rig: Rig) -> None:
    guarded = a_scene(
        {"inference": "ctr", "as": "pctr"},
        {"inference": "cvr", "as": "pcvr"},
        {"inference": "gmv", "as": "pgmv", **OPTIONAL},
        auth={"apiKeys": {"secret": "callers"}},
    )
    key = "canary-alice-0123456789"
    await rig.push(access=guarded, keys=credentials({"callers": {"alice": key.encode()}}))
    try:
        assert values(await rig.infer([1.0, 2.0], ("x-api-key", key))) == ANSWERED
        before = await rig.gateway.envoy.sum_of_stats("upstream_rq_total")
        assert (await rig.outcome([1.0])).startswith("UNAUTHENTICATED")
        assert await rig.gateway.envoy.sum_of_stats("upstream_rq_total") == before
    finally:
        await rig.push(access=THREE)


async def test_calls_go_on_while_pods_follow_a_spec_that_names_another_model(rig: Rig) -> None:
    """The pods of before still call ctr, which the spec no longer names."""
    changed = a_scene(
        {"inference": "calm", "as": "pctr"},
        {"inference": "cvr", "as": "pcvr"},
        {"inference": "gmv", "as": "pgmv", **OPTIONAL},
    )
    await rig.push(access=changed)
    try:
        assert values(await rig.infer([1.0, 2.0])) == ANSWERED
    finally:
        await rig.push(access=THREE)


async def test_a_process_that_ends_is_replaced_and_the_pipeline_answers_again(rig: Rig) -> None:
    """One of the four; the agent has all of them loaded anew, since Triton never would."""
    pod = rig.pod

    def wait_for(what: str, holds: Callable[[], bool]) -> Awaitable[None]:
        return asyncio.to_thread(wait_until, holds, what=what, timeout_s=60)

    before = pod.triton.model_processes()
    assert len(before) == 4
    await wait_for("the pod takes requests", lambda: pod.probe("/readyz") == 200)
    ends = metric(pod.metrics(), "tidegate_agent_runner_ends_total", reason="other") or 0
    lost = min(before)
    os.kill(lost, signal.SIGKILL)
    await wait_for("the pod takes no requests", lambda: pod.probe("/readyz") == 503)
    # It is told for a quarter of a minute.
    said = await asyncio.to_thread(
        pod.wait_for, "the end is reported", lambda report: report.ended is not None
    )
    assert said.ended == RunnerEnd(version=1, killed_for_memory=False)
    await wait_for(
        "four others run",
        lambda: len(now := pod.triton.model_processes()) == 4 and not now & before,
    )
    outcomes = await asyncio.gather(*(rig.outcome([float(place)]) for place in range(32)))
    assert outcomes == ["answered"] * 32
    assert values(await rig.infer([1.0, 2.0])) == ANSWERED
    # The other three were unloaded: that is no end.
    assert metric(pod.metrics(), "tidegate_agent_runner_ends_total", reason="other") == ends + 1
    await wait_for("the pod takes requests again", lambda: pod.probe("/readyz") == 200)


async def test_a_model_with_candidates_gets_the_best_rows_and_fewer_under_overload(rig: Rig) -> None:
    """A gateway asks for fewer by its runtime layer; a client may ask, too."""
    rank = {
        "inference": "cvr",
        "as": "rank",
        "default": "-1",
        "candidates": {"by": "prerank", "max": 3, "min": 1},
    }
    pipeline = {"models": [{"inference": "ctr", "as": "prerank"}, rank], "reducedValuePercent": 90}
    route = {"name": "all", "timeout": "10s", "value": "1", "pipeline": pipeline}
    funnel = a_model_access("scene", routes=[route], protection={"admissionControl": {"mode": "Priced"}})
    await rig.take(funnel, CALLEES)
    rows = [4.0, 1.0, 5.0, 2.0, 3.0]
    full = {"prerank": [8.0, 2.0, 10.0, 4.0, 6.0], "rank": [12.0, -1.0, 15.0, -1.0, 9.0]}
    fewest = {**full, "rank": [-1.0, -1.0, 15.0, -1.0, -1.0]}
    assert values(await rig.infer(rows)) == full
    assert values(await rig.infer(rows, ("x-tidegate-candidates", "min"))) == fewest
    assert values(await rig.infer(rows, ("x-tidegate-candidates", "max"))) == full
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [5, 1], "data": rows}]}
    headers = {"x-tidegate-access": "ads/scene", "x-tidegate-candidates": "min"}
    status, text, _ = await rig.client.rest(
        "POST", "/v2/models/scene/infer", headers=headers, body=json.dumps(body)
    )
    rank_of = {one["name"]: one["data"] for one in json.loads(text)["outputs"]}["rank"]
    assert (status, rank_of) == (200, fewest["rank"])

    rig.gateway.control_plane.shares.publish_shares({"access/ads/scene/all": 0.0})

    async def is_reduced() -> bool:
        return values(await rig.infer(rows)) == fewest

    await eventually(is_reduced, "the gateway asks for the fewest candidates")
    rig.gateway.control_plane.shares.publish_shares({})
    await rig.take(THREE, CALLEES)


async def test_of_several_stages_gateways_shorten_the_one_that_they_are_told_to(rig: Rig) -> None:
    rank, final = (
        {
            "inference": name,
            "as": stage,
            "default": "-1",
            "candidates": {"by": by, "max": most, "min": 1, "reducedValuePercent": 95},
        }
        for name, stage, by, most in (("cvr", "rank", "prerank", 3), ("gmv", "final", "rank", 2))
    )
    pipeline = {"models": [{"inference": "ctr", "as": "prerank"}, rank, final], "reducedValuePercent": 90}
    route = {"name": "all", "timeout": "10s", "value": "1", "pipeline": pipeline}
    funnel = a_model_access("scene", routes=[route], protection={"admissionControl": {"mode": "Priced"}})
    await rig.take(funnel, CALLEES)
    rows = [4.0, 1.0, 5.0, 2.0, 3.0]
    full = {
        "prerank": [8.0, 2.0, 10.0, 4.0, 6.0],
        "rank": [12.0, -1.0, 15.0, -1.0, 9.0],
        "final": [20.0, -1.0, 25.0, -1.0, -1.0],
    }
    short_rank = {**full, "rank": [-1.0, -1.0, 15.0, -1.0, -1.0]}
    short_final = {**full, "final": [-1.0, -1.0, 25.0, -1.0, -1.0]}
    assert values(await rig.infer(rows)) == full
    assert values(await rig.infer(rows, ("x-tidegate-candidates", "min:rank"))) == short_rank
    assert values(await rig.infer(rows, ("x-tidegate-candidates", "min:final"))) == short_final
    assert values(await rig.infer(rows, ("x-tidegate-candidates", "min:prerank"))) == full

    name = "access/ads/scene/all"
    none_for = {
        "rank": (name, f"{name}/reduced"),
        "final": (name, f"{name}/reduced", f"{name}/reduced/rank"),
        "": (name,),
    }
    expected = {"rank": short_rank, "final": short_final, "": {**short_rank, "final": short_final["final"]}}
    for stage, shares in none_for.items():
        rig.gateway.control_plane.shares.publish_shares(dict.fromkeys(shares, 0.0))

        async def is_short(answer: dict[str, list[float]] = expected[stage]) -> bool:
            return values(await rig.infer(rows)) == answer

        await eventually(is_short, f"the gateway asks for the fewest candidates for {stage or 'all'}")
    rig.gateway.control_plane.shares.publish_shares({})
    await rig.take(THREE, CALLEES)


async def test_features_first_and_what_is_late_or_shed_is_left_out(rig: Rig) -> None:
    """And a ModelAccess among the models: its weights decide who answers."""
    inner = a_model_access("either", routes=[a_route("default", "ctr", "canary")])
    features = a_feature_compute_object(
        "users",
        entities=[{"name": "user", "key": "user_id", "type": "int64"}],
        sources=[{"name": "profiles", "entity": "user", "table": {"uri": "file:///models/users.parquet"}}],
        features=[{"name": "x", "lookup": {"field": "profiles.x", "type": "float32"}}],
    )
    scene = a_scene(
        {"access": "either", "as": "some", "optional": True, "timeout": "5s", "default": "0"},
        {"inference": "late", "as": "slow", "optional": True, "timeout": "100ms", "default": "-1"},
        {"inference": "gmv", "as": "pgmv"},
        features="users",
    )
    await rig.push(inner=inner, canary=backend("canary", endpoint_of(rig.models), serves="ctr"))
    callees = Callees(CALLEES.inferences, {"users": features}, {"either": inner})
    await rig.take(scene, callees)

    stable, canary = (f"cluster.inference/ads/{name}/http.upstream_rq_total" for name in ("ctr", "canary"))
    before = await rig.asked()
    before_stable = await rig.gateway.envoy.stat(stable)
    for _ in range(16):
        answer = await rig.infer([2, 4], name="user_id", dtype="INT64")
        assert marks(answer) == {b"slow"}, rig.pod.logs()
        assert values(answer) == {"some": [2.0, 4.0], "slow": [-1.0, -1.0], "pgmv": [5.0, 10.0]}
    said = "pipeline scene: part slow: timed out: no answer within 100 ms"
    await eventually(lambda: said in rig.pod.triton.log.read_text(), f"the log says: {said}")

    async def are_counted() -> bool:
        return (await rig.asked())["users"] - before["users"] >= 16

    await eventually(are_counted, "Triton has counted the calls")
    # A call of each for every request: those of `either` go by its weights.
    assert (await rig.asked())["users"] - before["users"] == 16
    shares = await rig.gateway.envoy.stat(stable) - before_stable, await rig.gateway.envoy.stat(canary)
    assert sum(shares) == 16
    assert min(shares) > 0

    # Its limits hold too, and what they shed is answered for.
    limited = a_model_access(
        "either",
        routes=[a_route("default", "ctr", "canary")],
        protection={"rateLimit": {"requests": 2, "per": "1m"}},
    )
    await rig.push(inner=limited)
    marked = [marks(await rig.infer([2], name="user_id", dtype="INT64")) for _ in range(5)]
    assert marked == [{b"slow"}] * 2 + [{b"some,slow"}] * 3
