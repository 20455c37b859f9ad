"""Releases over a real Envoy: judged by what the gateway itself counted, promoted and taken back in its own routes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import grpc.aio
import pytest
from aiohttp import web
from tritonclient.grpc import service_pb2

from builders.loopback import on_loopback
from builders.overlay import overlaid
from builders.release import ERRORS, a_release, released
from builders.scenario import require_scenario
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, Load, Upstream, backend_of
from fixtures.release import ReleaseRun
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.release_checks import Evidence, judge_checks
from tidegate.planning.access.release_sample import ReleaseSample
from tidegate.telemetry import gateways
from tidegate.telemetry.gateways import GatewayStats
from tidegate.telemetry.prometheus import Prometheus
from tidegate_controllers.release import ReleaseMeasurer
from tidegate_localcluster.ports import find_unused_port

ACCESS = (("x-tidegate-access", "ads/ctr"),)
INFER = "/v2/models/ctr/infer"
FEW = 100
"""Requests that are enough to pass here, so that a test takes seconds."""
LENIENT = {"metric": "ErrorRate", "max": "0.01", "minRequests": FEW}
HANGS_S = 0.3
"""How long a caller of a target that hangs waits: long enough for its request to have come to the gateway."""


async def started(gateway: Gateway, access: ModelAccess) -> tuple[ReleaseRun, Load, Upstream, Upstream]:
    """The access in the gateway, with both targets behind it."""
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    backends = backend_of("v3", v3), backend_of("v4", v4)
    client = await gateway.start(access, *backends)
    return ReleaseRun(gateway, access, backends), Load(client, ACCESS), v3, v4


async def ended(run: ReleaseRun) -> None:
    async def over() -> bool:
        return run.ended.is_set()

    await eventually(over, f"the release ends; it is at {run.phases}", timeout_s=90)


async def ask(client: Client, count: int) -> Counter[str]:
    answers: Counter[str] = Counter()
    for _ in range(count):
        try:
            answers[await client.infer(metadata=ACCESS)] += 1
        except grpc.aio.AioRpcError as error:
            answers[error.code().name] += 1
    return answers


async def test_without_a_status_of_its_own_the_target_gets_nothing_whatever_its_weight(
    gateway: Gateway,
) -> None:
    targets = [{"inference": "v3", "weight": 1}, {"inference": "v4", "weight": 1_000_000}]
    access = a_release(route={"targets": targets})
    run, load, _, v4 = await started(gateway, access)
    assert await ask(load.client, 30) == Counter({"v3": 30})
    for fields in ({"phase": "Promoted", "key": "of another release"}, {"phase": "RolledBack"}):
        await gateway.control_plane.push(released(access, **fields), *run.backends)
        assert await ask(load.client, 30) == Counter({"v3": 30})
    assert v4.inferences == 0


async def test_a_good_target_is_promoted_and_takes_everything(gateway: Gateway) -> None:
    checks = [LENIENT, {"metric": "LatencyP99", "maxRatioToStable": "5", "minRequests": FEW}]
    access = a_release(steps=[40, 70], interval="1s", checks=checks)
    run, load, _, _ = await started(gateway, access)
    async with load.running(workers=8), run.running():
        await ended(run)
    assert (run.status.phase, run.status.reason) == ("Promoted", Reason.PROMOTED)
    assert run.phases[-1] == "Promoted 2"
    assert load.errors == []
    assert await ask(load.client, 30) == Counter({"v4": 30})


async def test_a_good_target_of_another_namespace_is_promoted_by_what_it_answered(gateway: Gateway) -> None:
    targets = [{"inference": "v3", "weight": 100}, {"inference": "shop/v4", "weight": 0}]
    access = a_release(
        target="shop/v4", route={"targets": targets}, steps=[40], interval="1s", checks=[LENIENT]
    )
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    shared = replace(backend_of("v4", v4, namespace="shop"), shared_with=("ads",))
    backends = backend_of("v3", v3), shared
    client = await gateway.start(access, *backends)
    run, load = ReleaseRun(gateway, access, backends), Load(client, ACCESS)
    async with load.running(workers=8), run.running():
        await ended(run)
    assert (run.status.phase, run.status.reason) == ("Promoted", Reason.PROMOTED)
    assert await ask(client, 30) == Counter({"v4": 30})
    assert load.errors == []


@pytest.mark.produces(Reason.CHECK_FAILED)
async def test_two_failures_in_a_hundred_take_it_back(gateway: Gateway) -> None:
    run, load, _, v4 = await started(gateway, a_release(steps=[50], interval="1h"))
    v4.fail_with, v4.fail_every = grpc.StatusCode.INTERNAL, 50
    async with load.running(workers=8), run.running():
        await ended(run)
    assert (run.status.phase, run.status.reason) == ("RolledBack", Reason.CHECK_FAILED)
    assert [event.reason for event in run.events] == ["ReleaseStarted", "ReleaseRolledBack"]
    assert 0 < len(load.errors) <= 0.03 * load.total
    await gateway.control_plane.push(run.access, *run.backends)
    before = v4.inferences
    assert await ask(load.client, 30) == Counter({"v3": 30})
    assert v4.inferences == before


async def test_a_slower_target_is_taken_back(gateway: Gateway) -> None:
    latency = {"metric": "LatencyP99", "maxRatioToStable": "1.50"}
    # It takes some two thousand requests to be sure of the stable target's times, and few of the other's.
    access = a_release(steps=[5], interval="1h", checks=[latency])
    run, load, v3, v4 = await started(gateway, access)
    # Far apart: a busy machine adds to both.
    v3.delay_s, v4.delay_s = 0.020, 1.0
    async with load.running(workers=24), run.running():
        await ended(run)
    assert (run.status.phase, run.status.reason) == ("RolledBack", "CheckFailed"), run.status.message
    assert load.errors == []


async def test_every_way_to_fail_is_counted(gateway: Gateway) -> None:
    """Trailers, timeouts, a lost pod and REST statuses; and what nobody failed at is no failure."""
    access = released(a_release(route={"timeout": "5s"}, steps=[100]))
    _, load, _, v4 = await started(gateway, access)
    stats = GatewayStats(lambda: [gateways.ScrapeTarget("gateway-1", gateway.envoy.admin)], lambda: 0.0)

    async def counted() -> tuple[int, int, int]:
        stats._read_at = float("-inf")
        tally = (await stats.read_release(ObjectKey("ads", "ctr"), "v4", ["v3"])).gateways[0].target
        return tally.requests, tally.failures, tally.timed_requests

    assert await ask(load.client, 10) == Counter({"v4": 10})
    headers = {"x-tidegate-access": "ads/ctr"}
    assert (await load.client.rest("POST", INFER, headers=headers, body=b"{}"))[0] == 200
    assert (await counted())[:2] == (11, 0)

    v4.fail_with = grpc.StatusCode.INVALID_ARGUMENT
    assert await ask(load.client, 3) == Counter({"INVALID_ARGUMENT": 3})
    by_host = gateway.client("ctr.ads.tidegate")
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
            await by_host.infer()
    assert (await counted())[:2] == (16, 5)

    v4.fail_with, v4.delay_s = None, 10.0
    *late, (status, _, _) = await asyncio.gather(
        *(ask(load.client, 1) for _ in range(3)), load.client.rest("POST", INFER, headers=headers, body=b"{}")
    )
    assert (late, status) == ([Counter({"DEADLINE_EXCEEDED": 1})] * 3, 504)
    assert (await counted())[:2] == (20, 9)

    await v4.stop()
    assert (await ask(load.client, 2)).keys() <= {"UNAVAILABLE"}
    assert (await counted())[:2] == (22, 11)

    async def timed() -> bool:
        return (await counted())[2] >= 16

    await eventually(timed, "times are known of the requests that were answered")


@pytest.mark.parametrize("deadline", [False, True], ids=["cut off by clients", "cut off by the gateway"])
async def test_what_clients_give_up_on_is_a_failure(gateway: Gateway, deadline: bool) -> None:
    """A target that hangs must not pass because nobody waits for it."""
    access = released(a_release(steps=[100]))
    if deadline:
        access = ModelAccess.parse(overlaid(access.dump(), {"spec": {"protection": {"deadline": True}}}))
    _, load, _, v4 = await started(gateway, access)
    stats = GatewayStats(lambda: [gateways.ScrapeTarget("gateway-1", gateway.envoy.admin)], lambda: 0.0)
    assert await ask(load.client, 2) == Counter({"v4": 2})
    v4.open.clear()
    request = service_pb2.ModelInferRequest(model_name="ctr")
    for _ in range(10):
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await load.client.stub().ModelInfer(request, metadata=ACCESS, timeout=HANGS_S)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANGS_S)) as session:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await session.post(f"http://{load.client.address}{INFER}", headers=dict(ACCESS), data=b"{}")
    require_scenario(v4.inferences >= 17, "each came to the target before its caller gave up")
    assert v4.inferences == 17

    async def counted() -> bool:
        stats._read_at = float("-inf")
        tally = (await stats.read_release(ObjectKey("ads", "ctr"), "v4", ["v3"])).gateways[0].target
        # Where both cut it off, one request may count twice: for the gateway's answer, and for the stream it ended.
        exact = tally.failures == 15 or (deadline and tally.failures > 15)
        return exact and tally.requests - tally.failures == 2 and tally.count_slower_than(40) >= 15

    await eventually(counted, "each of them is a request that failed, and was not answered in time")
    v4.open.set()


async def test_what_other_routes_send_to_the_target_is_not_the_releases(gateway: Gateway) -> None:
    access: dict[str, Any] = a_release().dump()
    vip = {
        "name": "vip",
        "match": {"headers": [{"name": "x-vip", "exact": "yes"}]},
        "targets": [{"inference": "v4", "weight": 1}],
    }
    access["spec"]["routes"].insert(0, vip)
    _, load, _, _ = await started(gateway, ModelAccess.parse(access))
    answers = {await load.client.infer(metadata=(*ACCESS, ("x-vip", "yes"))) for _ in range(10)}
    assert answers == {"v4"}
    stats = GatewayStats(lambda: [gateways.ScrapeTarget("gateway-1", gateway.envoy.admin)])
    read = await stats.read_release(ObjectKey("ads", "ctr"), "v4", ["v3"])
    assert (read.gateways[0].target.requests, read.gateways[0].stable.requests) == (0, 0)


async def test_a_fallback_does_not_answer_for_what_is_judged(gateway: Gateway) -> None:
    """Else a target that fails would be ejected, and promoted for the fallback's answers."""
    small = await gateway.upstream("small")
    access = a_release(steps=[50], route={"fallback": {"inference": "small"}})
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    backends = backend_of("v3", v3), backend_of("v4", v4), backend_of("small", small)
    client = await gateway.start(released(access), *backends)
    v4.fail_with = grpc.StatusCode.UNAVAILABLE
    answers = await ask(client, 100)
    assert answers.keys() == {"v3", "UNAVAILABLE"}
    assert answers["UNAVAILABLE"] > 20

    await gateway.control_plane.push(released(access, phase="Promoted"), *backends)

    async def taken_over() -> bool:
        return await ask(client, 40) == Counter({"small": 40})

    await eventually(taken_over, "the fallback answers for a target that is left out")


async def test_a_gateway_that_is_away_is_named_and_its_release_waits(gateway: Gateway) -> None:
    run, _, _, _ = await started(gateway, a_release(steps=[50], interval="1s", checks=[LENIENT]))
    await run.look()
    gateway.envoy.admin = "127.0.0.1:1"

    async def held() -> bool:
        await run.look()
        return run.status.reason == Reason.WAITING_FOR_MEASUREMENTS

    await eventually(held, "it says that it waits")
    assert (run.status.phase, run.status.step) == ("Progressing", 1)
    assert "gateway-1" in run.status.message


async def test_the_gateways_own_port_shows_what_a_release_needs_and_changes_nothing(gateway: Gateway) -> None:
    ports = {"admin_port": find_unused_port("127.0.0.1"), "metrics_port": find_unused_port("127.0.0.1")}
    gateway.envoy.ports = ports
    await started(gateway, a_release())
    address = f"127.0.0.1:{ports['metrics_port']}"
    stats = GatewayStats(lambda: [gateways.ScrapeTarget("gateway-1", address)])
    assert (await stats.read_release(ObjectKey("ads", "ctr"), "v4", ["v3"])).silent == ()
    client = Client(address)
    for method, path in (("POST", "/stats"), ("POST", "/reset_counters"), ("GET", "/config_dump")):
        assert (await client.rest(method, path))[0] == 404


async def test_a_target_never_answers_for_stable_ones_without_pods_nor_takes_the_route_down(
    gateway: Gateway,
) -> None:
    access = a_release()
    v3, v4, small = [await gateway.upstream(name) for name in ("v3", "v4", "small")]
    awake, asleep = backend_of("v3", v3), backend_of("v3")
    client = await gateway.start(released(access, step=3), asleep, backend_of("v4", v4))
    answers = await ask(client, 200)
    assert answers.keys() == {"v4", "UNAVAILABLE"}
    assert 20 <= answers["v4"] <= 90

    fallback = a_release(route={"fallback": {"inference": "small"}})
    backends = asleep, backend_of("v4", v4), backend_of("small", small)
    await gateway.control_plane.push(released(fallback, step=3), *backends)
    answers = await ask(client, 200)
    assert answers.keys() == {"v4", "small"}
    assert 20 <= answers["v4"] <= 90

    for status in ({"step": 5}, {"phase": "Promoted"}):
        await gateway.control_plane.push(released(access, **status), awake, backend_of("v4"))
        assert await ask(client, 30) == Counter({"v3": 30})


PAGES = {
    "one": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "0.25"]}]},
    "nan": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "NaN"]}]},
    "two": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "1"]}] * 2},
    "none": {"resultType": "vector", "result": []},
}


async def test_a_query_is_asked_of_a_prometheus_over_http() -> None:
    async def answer(request: web.Request) -> web.Response:
        data = PAGES.get(str((await request.post())["query"]))
        body = {"status": "success", "data": data} if data else {"status": "error", "error": "bad query"}
        return web.json_response(body, status=200 if data else 400)

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    queries = (*PAGES, "refused")
    access = released(a_release(checks=[{"prometheus": query, "max": "0.5"} for query in queries]))
    async with on_loopback(app) as address:
        measurements = ReleaseMeasurer(GatewayStats(list), Prometheus(f"http://{address}"))
        measured = await measurements.measure_release(access, datetime.now(UTC), 1)
    checks = access.spec.release.checks if access.spec.release else ()
    said = judge_checks(checks, Evidence(ReleaseSample(), 1, measured.query_results, queried=True), ())
    assert [one.verdict for one in said] == ["Passing", "Waiting", "Waiting", "Waiting", "Waiting"]


async def test_a_person_ends_it_by_annotation(gateway: Gateway) -> None:
    run, load, _, _ = await started(gateway, a_release(interval="1h", checks=[ERRORS]))
    await run.look()
    run.annotate("promote")
    await run.look()
    await gateway.control_plane.push(run.access, *run.backends)
    assert await ask(load.client, 30) == Counter({"v4": 30})
    run.annotate("abort")
    await run.look()
    await gateway.control_plane.push(run.access, *run.backends)
    assert run.status.reason == Reason.ABORTED
    assert await ask(load.client, 30) == Counter({"v3": 30})
