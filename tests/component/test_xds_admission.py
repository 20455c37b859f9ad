"""Admission control in a real Envoy: who is refused while a target fails for overload, and what never counts as that."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from builders.model_access import a_model_access, a_route
from builders.release import released
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, Upstream, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.routing.envoy import admission
from tidegate.routing.envoy_names import OVERLOAD_DETAILS

CTR = (("x-tidegate-access", "ads/ctr"),)
GOLD = (*CTR, ("x-segment", "gold"))
INFER = "/v2/models/ctr/infer"
REFUSED = "refused"
SHORT = 40
"""Requests that are over long before those that made the filter refuse are forgotten, ten seconds after."""


def valued(*targets: str, control: dict[str, Any] | None = None, **spec: Any) -> ModelAccess:
    """A route of value 3 for x-segment: gold, and one of value 1."""
    match = {"headers": [{"name": "x-segment", "exact": "gold"}]}
    patient = {"timeout": "60s"}  # longer than any test here holds a request
    routes = [
        a_route("gold", *targets, match=match, value="3", **patient),
        a_route("rest", *targets, value="1.0", **patient),
    ]
    protection = {"admissionControl": control or {}, **spec.pop("protection", {})}
    return a_model_access(routes=routes, protection=protection, **spec)


async def outcome(client: Client, metadata: tuple[tuple[str, str], ...] = CTR) -> str:
    """Who answered, the status, or that it was refused for overload, and told when to come again."""
    try:
        return await client.infer(metadata=metadata)
    except grpc.aio.AioRpcError as error:
        if error.details() != admission.REJECTED_BODY:
            return error.code().name
        said = dict([*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())])
        return REFUSED if said.get("retry-after") == "1" else "refused without a word when to come again"


async def outcomes(client: Client, count: int, metadata: tuple[tuple[str, str], ...] = CTR) -> Counter[str]:
    """What became of `count` requests, ten at a time."""
    seen: Counter[str] = Counter()
    for start in range(0, count, 10):
        batch = min(10, count - start)
        seen.update(await asyncio.gather(*(outcome(client, metadata) for _ in range(batch))))
    return seen


async def until_refusing(
    gateway: Gateway, client: Client, metadata: tuple[tuple[str, str], ...] = CTR
) -> None:
    """Sends requests until Envoy's own counter says that it refuses some; then nearly all of this kind are refused."""
    before = (await admitted(gateway)).get("rq_rejected", 0)

    async def refusing() -> bool:
        await outcomes(client, 20, metadata)
        return (await admitted(gateway)).get("rq_rejected", 0) > before

    await eventually(refusing, "admission control refuses requests")


async def admitted(gateway: Gateway) -> dict[str, int]:
    """Envoy's own counters of all that passed admission control, by the end of their names."""
    stats = json.loads(await gateway.envoy.get_admin("/stats?format=json"))["stats"]
    return {
        one["name"].rpartition(".")[2]: one["value"]
        for one in stats
        if "admission_control." in one.get("name", "")
    }


async def refused_by_route(gateway: Gateway) -> Counter[str]:
    """How many each route was refused, as Prometheus would see it."""
    seen: Counter[str] = Counter()
    for line in (await gateway.envoy.get_admin("/stats/prometheus")).splitlines():
        if line.startswith("envoy_tidegate_refused{") and OVERLOAD_DETAILS in line:
            seen[line.partition('route="')[2].partition('"')[0]] += int(line.rpartition(" ")[2])
    return seen


async def a_third_fails(gateway: Gateway) -> Upstream:
    """A model that is overloaded by a third."""
    model = await gateway.upstream("v1")
    model.fail_with, model.fail_every = grpc.StatusCode.UNAVAILABLE, 3
    return model


BY_HOST = pytest.param(
    "host", marks=pytest.mark.slow("test_xds_scopes.py: hosts lead to the header's routes")
)


@pytest.mark.parametrize("by", ["header", BY_HOST])
async def test_low_value_is_refused_and_high_value_is_not(gateway: Gateway, by: str) -> None:
    model = await a_third_fails(gateway)
    client = await gateway.start(valued(), backend_of("ctr", model))
    low: tuple[tuple[str, str], ...] = CTR
    high: tuple[tuple[str, str], ...] = GOLD
    if by == "host":
        client = gateway.client("ctr.ads.tidegate")
        low, high = (), (("x-segment", "gold"),)
    await until_refusing(gateway, client, low)

    asked = model.inferences
    mine, others = await outcomes(client, SHORT, low), await outcomes(client, 200, high)
    assert mine[REFUSED] > SHORT / 2
    assert others[REFUSED] == 0
    # What is refused never reaches the model.
    assert model.inferences - asked == SHORT + 200 - mine[REFUSED]
    counted = await refused_by_route(gateway)
    assert counted.keys() == {"access/ads/ctr/rest/grpc"}
    assert counted["access/ads/ctr/rest/grpc"] >= mine[REFUSED]


async def test_a_target_that_answers_is_never_protected_from_anybody(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(valued(), backend_of("ctr", model))
    assert await outcomes(client, 200) == Counter({"v1": 200})
    # One bad request in a hundred is no overload.
    model.fail_with, model.fail_every = grpc.StatusCode.UNAVAILABLE, 100
    assert (await outcomes(client, 200))[REFUSED] == 0


async def test_few_requests_say_nothing(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    model.fail_with = grpc.StatusCode.UNAVAILABLE
    client = await gateway.start(valued(), backend_of("ctr", model))
    assert await outcomes(client, 40) == Counter({"UNAVAILABLE": 40})


async def test_a_mistake_of_a_model_is_no_overload(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    model.fail_with = grpc.StatusCode.INTERNAL
    client = await gateway.start(valued(), backend_of("ctr", model))
    assert await outcomes(client, 200) == Counter({"INTERNAL": 200})


async def test_what_a_limit_refuses_is_overload(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(valued(protection={"maxConcurrent": 1}), backend_of("ctr", model))
    assert await outcome(client) == "v1"
    model.open.clear()
    held = [asyncio.create_task(outcome(client, GOLD))]

    async def taken() -> bool:
        return model.inferences == 2

    await eventually(taken, "one request holds the model")
    await until_refusing(gateway, client)
    seen = await outcomes(client, SHORT)
    assert seen["RESOURCE_EXHAUSTED"] + seen[REFUSED] == SHORT
    assert seen[REFUSED] > SHORT / 2
    model.open.set()
    assert await asyncio.gather(*held) == ["v1"]


async def test_what_the_rate_refuses_is_no_overload(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    # Another may pass after half a minute: Envoy refills all the time, not once a minute.
    rate = {"rateLimit": {"requests": 2, "per": "1m"}}
    client = await gateway.start(valued(protection=rate), backend_of("ctr", model))
    assert await outcomes(client, 200) == Counter({"v1": 2, "RESOURCE_EXHAUSTED": 198})
    assert await admitted(gateway) == {"rq_failure": 0, "rq_rejected": 0, "rq_success": 2}


async def test_probes_are_neither_counted_nor_refused(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(valued(), backend_of("ctr", model))

    async def probe() -> None:
        await client.stub().ModelMetadata(
            service_pb2.ModelMetadataRequest(name="ctr"), metadata=CTR, timeout=10
        )
        status, _, _ = await client.rest("GET", "/v2/models/ctr/ready", headers=dict(CTR))
        assert status == 200

    for _ in range(60):
        await probe()
    assert sum((await admitted(gateway)).values()) == 0
    model.fail_with = grpc.StatusCode.UNAVAILABLE
    await until_refusing(gateway, client)
    for _ in range(60):
        await probe()


async def test_rest_is_told_503_and_when_to_come_again(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(valued(protection={"maxConcurrent": 1}), backend_of("ctr", model))
    model.open.clear()
    held = asyncio.create_task(client.rest("POST", INFER, headers=dict(GOLD)))

    async def taken() -> bool:
        return model.inferences == 1

    await eventually(taken, "one request holds the model")
    answers = list[tuple[int, str, dict[str, str]]]()

    async def refused() -> bool:
        answers.extend([await client.rest("POST", INFER, headers=dict(CTR)) for _ in range(20)])
        return any(body == admission.REJECTED_BODY for _, body, _ in answers)

    await eventually(refused, "admission control refuses requests")
    said = Counter((status, body) for status, body, _ in answers)
    assert said[503, admission.REJECTED_BODY] > 0
    assert {headers["Retry-After"] for _, _, headers in answers} == {"1"}
    assert (await refused_by_route(gateway))["access/ads/ctr/rest/http"] == said[503, admission.REJECTED_BODY]
    model.open.set()
    assert (await held)[0] == 200


async def test_each_target_is_judged_by_itself(gateway: Gateway) -> None:
    failing, sound = await gateway.upstream("failing"), await gateway.upstream("sound")
    failing.fail_with = grpc.StatusCode.UNAVAILABLE
    client = await gateway.start(
        valued("failing", "sound"), backend_of("failing", failing), backend_of("sound", sound)
    )
    await until_refusing(gateway, client)
    asked = sound.inferences
    seen = await outcomes(client, 3 * SHORT)
    # All that was meant for the sound one got there, and half of all was.
    assert seen["sound"] == sound.inferences - asked > SHORT / 2
    assert seen[REFUSED] > SHORT / 2


async def test_a_canary_that_fails_costs_the_stable_target_nothing_and_is_seen_failing(
    gateway: Gateway,
) -> None:
    canary, stable = await gateway.upstream("canary"), await gateway.upstream("stable")
    canary.fail_with = grpc.StatusCode.UNAVAILABLE
    release = {
        "route": "rest",
        "target": "canary",
        "steps": [50],
        "checks": [{"metric": "ErrorRate", "max": "0.9"}],
    }
    access = released(valued("stable", "canary", release=release), phase="Progressing", step=1)
    client = await gateway.start(access, backend_of("canary", canary), backend_of("stable", stable))
    # On the other route nobody judges it, and it is refused.
    await until_refusing(gateway, client, GOLD)
    asked = canary.inferences
    seen = await outcomes(client, 400)
    assert seen["UNAVAILABLE"] == canary.inferences - asked > 100
    assert seen["stable"] == 400 - seen["UNAVAILABLE"]


async def test_copies_do_not_count(gateway: Gateway) -> None:
    model, shadow = await gateway.upstream("v1"), await gateway.upstream("shadow")
    shadow.fail_with = grpc.StatusCode.UNAVAILABLE
    routes = [a_route("only", value="1", mirror=[{"inference": "shadow"}])]
    access = a_model_access(routes=routes, protection={"admissionControl": {}})
    client = await gateway.start(access, backend_of("ctr", model), backend_of("shadow", shadow))
    assert await outcomes(client, 200) == Counter({"v1": 200})
    assert await admitted(gateway) == {"rq_failure": 0, "rq_rejected": 0, "rq_success": 200}


async def test_a_target_that_recovers_is_asked_again(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    model.fail_with = grpc.StatusCode.UNAVAILABLE
    client = await gateway.start(valued(), backend_of("ctr", model))
    await until_refusing(gateway, client)
    model.fail_with = None

    async def back() -> bool:
        return await outcomes(client, 20) == Counter({"v1": 20})

    # Failures count for ten seconds.
    await eventually(back, "nobody is refused any more")
