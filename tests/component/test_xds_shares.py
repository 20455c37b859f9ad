"""Admitted shares in a real Envoy: who is refused by price, how soon a new share counts, and what ends it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc.aio

from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Client, ControlPlane, Gateway, Load, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.routing.envoy import prices

CTR = (("x-tidegate-access", "ads/ctr"),)
GOLD = (*CTR, ("x-segment", "gold"))
GOLD_ROUTE, REST_ROUTE = "access/ads/ctr/gold", "access/ads/ctr/rest"
INFER = "/v2/models/ctr/infer"
REFUSED = "refused"
TTL_S = 5.0
"""Lifetime of shares in tests that wait for their end; shorter than the default."""


def priced(mode: str = "Priced") -> ModelAccess:
    """A route of value 5 for x-segment: gold, and one of value 1."""
    match = {"headers": [{"name": "x-segment", "exact": "gold"}]}
    routes = [a_route("gold", match=match, value="5"), a_route("rest", value="1")]
    return a_model_access(routes=routes, protection={"admissionControl": {"mode": mode}})


async def count_outcomes(
    client: Client, count: int, metadata: tuple[tuple[str, str], ...] = CTR
) -> Counter[str]:
    """Count who answered `count` requests, and how many were refused by price; anything else fails the test."""

    async def send_request() -> str:
        try:
            return await client.infer(metadata=metadata)
        except grpc.aio.AioRpcError as error:
            sent: Any = [*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())]
            outcome = (error.code(), error.details(), dict(sent).get("retry-after"))
        assert outcome == (grpc.StatusCode.RESOURCE_EXHAUSTED, prices.REFUSED_BODY, "1")
        return REFUSED

    outcomes: Counter[str] = Counter()
    for start in range(0, count, 20):
        outcomes.update(await asyncio.gather(*(send_request() for _ in range(min(20, count - start)))))
    return outcomes


async def test_gateways_admit_the_share_of_the_low_value_and_all_of_the_high(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(priced(), backend_of("ctr", model))
    assert await count_outcomes(client, 100) == Counter({"v1": 100})
    renewal = asyncio.create_task(gateway.renew_shares({REST_ROUTE: 0.3, GOLD_ROUTE: 1.0}))
    await gateway.wait_for_share(REST_ROUTE, 300_000)
    before = model.inferences
    rest = await count_outcomes(client, 1000)
    # Four standard deviations of a binomial with p = 0.3 are 58.
    assert 242 <= rest["v1"] <= 358
    assert rest[REFUSED] == 1000 - rest["v1"]
    assert await count_outcomes(client, 200, GOLD) == Counter({"v1": 200})
    # What is refused never reaches the model.
    assert model.inferences - before == rest["v1"] + 200
    renewal.cancel()


def with_fallback(value_percent: int | None = 80) -> ModelAccess:
    """One route with a fallback, which answers for `value_percent`."""
    fallback = {"inference": "small", **({"valuePercent": value_percent} if value_percent else {})}
    routes = [a_route("rest", value="1", fallback=fallback)]
    return a_model_access(routes=routes, protection={"admissionControl": {"mode": "Priced"}})


async def test_a_share_beyond_the_admitted_one_goes_to_the_fallback(gateway: Gateway) -> None:
    model, small = await gateway.upstream("v1"), await gateway.upstream("small")
    client = await gateway.start(with_fallback(), backend_of("ctr", model), backend_of("small", small))
    assert await count_outcomes(client, 100) == Counter({"v1": 100})
    shares = {REST_ROUTE: 0.3, f"{REST_ROUTE}/reduced": 0.7}
    renewal = asyncio.create_task(gateway.renew_shares(shares))
    await gateway.wait_for_share(REST_ROUTE, 300_000)
    outcomes = await count_outcomes(client, 1000)
    # Four standard deviations: 58 for p = 0.3, and 62 for 0.4.
    assert 242 <= outcomes["v1"] <= 358
    assert 338 <= outcomes["small"] <= 462
    assert outcomes.total() == outcomes["v1"] + outcomes["small"] + outcomes[REFUSED] == 1000
    # Its answers are counted as the route's reduced ones, so that they are demand for the target, too.
    page = await gateway.envoy.get_admin("/stats?filter=vhost.access/ads/ctr.route")
    counts = dict(line.split(": ") for line in page.splitlines())
    prefix = "vhost.access/ads/ctr.route.rest"
    assert int(counts[f"{prefix}/reduced.upstream_rq_completed"]) == outcomes["small"]
    assert int(counts[f"{prefix}.upstream_rq_completed"]) == outcomes["v1"] + 100
    renewal.cancel()


async def test_a_fallback_without_a_value_gets_nothing_that_was_not_admitted(gateway: Gateway) -> None:
    model, small = await gateway.upstream("v1"), await gateway.upstream("small")
    client = await gateway.start(with_fallback(None), backend_of("ctr", model), backend_of("small", small))
    renewal = asyncio.create_task(gateway.renew_shares({REST_ROUTE: 0.0}))
    await gateway.wait_for_share(REST_ROUTE, 0)
    assert await count_outcomes(client, 100) == Counter({REFUSED: 100})
    renewal.cancel()


async def test_rest_is_refused_with_503_and_retry_after(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(priced(), backend_of("ctr", model))
    renewal = asyncio.create_task(gateway.renew_shares({REST_ROUTE: 0.0}))
    await gateway.wait_for_share(REST_ROUTE, 0)
    status, body, headers = await client.rest("POST", INFER, headers=dict(CTR))
    assert (status, body, headers["Retry-After"]) == (503, prices.REFUSED_BODY, "1")
    assert (await client.rest("POST", INFER, headers=dict(GOLD)))[0] == 200
    renewal.cancel()


async def test_a_local_access_has_no_shares(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(priced("Local"), backend_of("ctr", model))
    gateway.control_plane.shares.publish_shares({REST_ROUTE: 0.0})
    await gateway.wait_for_share(REST_ROUTE, 0)
    assert await count_outcomes(client, 100) == Counter({"v1": 100})


async def test_a_new_share_counts_without_a_new_route(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(priced(), backend_of("ctr", model))
    assert await count_outcomes(client, 20) == Counter({"v1": 20})
    for share, outcome in ((0.0, REFUSED), (1.0, "v1"), (0.0, REFUSED)):
        gateway.control_plane.shares.publish_shares({REST_ROUTE: share})

        async def all_have_it(wanted: str = outcome) -> bool:
            return await count_outcomes(client, 5) == Counter({wanted: 5})

        await eventually(all_have_it, f"a share of {share:g}")


async def test_shares_that_nobody_renews_end_with_their_ttl(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    gateway.control_plane = ControlPlane(shares_ttl_s=TTL_S)
    client = await gateway.start(priced(), backend_of("ctr", model))

    async def all_refused() -> float | None:
        published = time.monotonic()
        gateway.control_plane.shares.publish_shares({REST_ROUTE: 0.0})
        return published if await count_outcomes(client, 20) == Counter({REFUSED: 20}) else None

    published = await eventually(all_refused, "the gateway refuses everything")

    async def all_admitted() -> bool:
        return await count_outcomes(client, 20) == Counter({"v1": 20})

    await eventually(all_admitted, "the gateway admits everything")
    assert time.monotonic() - published > TTL_S - 0.5


async def test_a_lost_control_plane_makes_gateways_admit_everything_without_an_error(
    gateway: Gateway,
) -> None:
    model = await gateway.upstream("v1")
    gateway.control_plane = ControlPlane(shares_ttl_s=TTL_S)
    client = await gateway.start(priced(), backend_of("ctr", model))
    gateway.control_plane.shares.publish_shares({REST_ROUTE: 0.0})
    await gateway.wait_for_share(REST_ROUTE, 0)
    async with Load(client, GOLD, pause_s=0.01).running(2) as load:
        await gateway.lose_control_plane()
        assert await count_outcomes(client, 20) == Counter({REFUSED: 20})

        async def all_admitted() -> bool:
            return await count_outcomes(client, 20) == Counter({"v1": 20})

        await eventually(all_admitted, "the gateway admits everything", timeout_s=TTL_S + 5)
    assert load.errors == []
    assert load.answers.keys() == {"v1"}
    # Another server has no shares, and the gateway goes on.
    await gateway.replace_control_plane()
    gateway.control_plane.set(priced(), backend_of("ctr", model))
    gateway.control_plane.shares.publish_shares({REST_ROUTE: 0.0})
    await gateway.wait_for_share(REST_ROUTE, 0)
    assert await count_outcomes(client, 20) == Counter({REFUSED: 20})
