"""The planner of shares with a real Envoy: overload ends in the order of values, and the capacity is used."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.port import Manifest
from tidegate.planning.access.admitted_shares import RouteLoad
from tidegate.publisher import share_planner
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.publisher.share_planner import SharePlanner, build_loads, resolve_gateways
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, SPARE_LABEL, SPARE_MODELS_ANNOTATION
from tidegate.routing.bootstrap import STATS_PATH
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.route_rates import RouteRates
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.shares import SHARES_TTL_S, AdmittedShares

CTR = (("x-tidegate-access", "ads/ctr"),)
REST_ROUTE = "access/ads/ctr/rest"
SEGMENTS = {"gold": (*CTR, ("x-segment", "gold")), "rest": CTR}
CAPACITY = 60
GOLD_RATE, REST_RATE = 30, 60


def put_object(inputs: RoutingInputs, kind: kinds.Kind, body: Manifest) -> None:
    """Put an object into the cache of its kind."""
    store = next(store for store in inputs.required_stores if store.kind == kind)
    store.observe("ADDED", {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}})


def access_body(mode: str) -> Manifest:
    """A route of value 5 for x-segment: gold, and one of value 1."""
    match = {"headers": [{"name": "x-segment", "exact": "gold"}]}
    routes = [a_route("gold", match=match, value="5"), a_route("rest", value="1")]
    return model_access_body(routes=routes, protection={"admissionControl": {"mode": mode}})


def make_planner(inputs: RoutingInputs, rates: RouteRates) -> SharePlanner:
    """A planner that reads these rates and asks no gateway."""

    async def find_gateways() -> Sequence[ScrapeTarget]:
        return []

    return SharePlanner(
        inputs=inputs,
        shares=AdmittedShares(),
        metrics=XdsMetrics(CollectorRegistry()),
        find_gateways=find_gateways,
        rates=rates,
    )


def fill_inputs(mode: str, capacity: dict[str, Any] | None) -> RoutingInputs:
    """An Inference with one pod, and an access to it."""
    inputs = RoutingInputs()
    put_object(inputs, kinds.INFERENCE, inference_body(capacity=capacity))
    put_object(inputs, kinds.MODEL_ACCESS, access_body(mode))
    put_object(inputs, kinds.POD, a_pod("p", "10.0.0.1"))
    return inputs


def a_pod(name: str, address: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ads", "uid": name, "labels": {INFERENCE_LABEL: "ctr"}},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    }


async def send_load(client: Client, seconds: float) -> Counter[tuple[str, str]]:
    """Send both segments at their rates; return the counts of outcomes by segment."""
    outcomes: Counter[tuple[str, str]] = Counter()

    async def send_request(segment: str) -> None:
        try:
            outcome = await client.infer(metadata=SEGMENTS[segment])
        except grpc.aio.AioRpcError as error:
            outcome = error.code().name
        outcomes[segment, outcome] += 1

    async def send_segment(segment: str, rate: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(begin + number / rate - loop.time(), 0))
            tasks.create_task(send_request(segment))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_segment("gold", GOLD_RATE))
        tasks.create_task(send_segment("rest", REST_RATE))
    return outcomes


async def plan_while_loaded(
    gateway: Gateway, mode: str, capacity: dict[str, Any] | None
) -> tuple[Counter[tuple[str, str]], Sequence[float]]:
    """Send 1.5 times the capacity while a planner runs; return the outcomes and the shares after it has settled."""
    model = await gateway.upstream("v1")
    access = ModelAccess.model_validate(access_body(mode))
    client = await gateway.start(access, backend_of("ctr", model))

    async def find_gateways() -> Sequence[ScrapeTarget]:
        return [ScrapeTarget("gateway-1", gateway.envoy.admin)]

    planner = SharePlanner(
        inputs=fill_inputs(mode, capacity),
        shares=gateway.control_plane.shares,
        metrics=XdsMetrics(CollectorRegistry()),
        find_gateways=find_gateways,
    )
    planning = asyncio.create_task(planner.run_rounds())
    await send_load(client, 5)
    shares: list[float] = []

    async def record_shares() -> None:
        # While requests come: a route without any has no share.
        while True:
            samples = (
                sample for metric in planner.metrics.admitted_share.collect() for sample in metric.samples
            )
            shares.extend(sample.value for sample in samples if sample.labels == {"route": REST_ROUTE})
            await asyncio.sleep(0.2)

    recording = asyncio.create_task(record_shares())
    outcomes = await send_load(client, 5)
    recording.cancel()
    planning.cancel()
    return outcomes, shares


async def test_overload_refuses_the_low_value_and_uses_the_capacity(gateway: Gateway) -> None:
    outcomes, shares = await plan_while_loaded(gateway, "Priced", {"requestsPerSecond": str(CAPACITY)})
    assert outcomes["gold", "v1"] == GOLD_RATE * 5
    assert outcomes["rest", "v1"] + outcomes["rest", "RESOURCE_EXHAUSTED"] == REST_RATE * 5
    answered = outcomes["gold", "v1"] + outcomes["rest", "v1"]
    # Five standard deviations of a binomial with 300 requests and p = 0.5, and what the planner holds.
    assert answered == pytest.approx(CAPACITY * 5, abs=43 + 0.02 * REST_RATE * 5)
    # After a pause of this process it sends what was due meanwhile, and one share is that of a higher rate.
    assert statistics.median(shares) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("mode", "capacity"),
    [("Local", {"requestsPerSecond": "1"}), ("Priced", None)],
    ids=["local", "unmeasured"],
)
async def test_without_a_price_or_a_capacity_nothing_is_refused(
    gateway: Gateway, mode: str, capacity: dict[str, Any] | None
) -> None:
    outcomes, shares = await plan_while_loaded(gateway, mode, capacity)
    assert outcomes == Counter({("gold", "v1"): GOLD_RATE * 5, ("rest", "v1"): REST_RATE * 5})
    assert gateway.control_plane.shares.by_route == {}
    assert shares == []


async def test_an_access_that_cannot_be_planned_is_no_load_and_the_others_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = fill_inputs("Priced", {"requestsPerSecond": "60"})
    bad = access_body("Priced")
    put_object(
        inputs, kinds.MODEL_ACCESS, {**bad, "metadata": {**bad["metadata"], "name": "bad", "uid": "bad"}}
    )

    class Rates(RouteRates):
        async def read_gateways(self, gateways: Sequence[ScrapeTarget]) -> Mapping[str, float]:
            return {REST_ROUTE: 60.0 / 0.97, "access/ads/bad/rest": 30.0}

    def build_some(access: ModelAccess, *arguments: Any) -> list[RouteLoad]:
        if access.metadata.name == "bad" and is_broken:
            raise KeyError("a mistake of ours")
        return build_loads(access, *arguments)

    monkeypatch.setattr(share_planner, "build_loads", build_some)
    planner = make_planner(inputs, Rates())
    is_broken = True
    await planner.update_shares()
    assert planner.shares.by_route == {REST_ROUTE: pytest.approx(0.97 * 0.97)}
    assert list(inputs.faults.failures) == ["admitted shares of ads/bad"]
    is_broken = False
    await planner.update_shares()
    assert planner.shares.by_route.keys() == {REST_ROUTE, "access/ads/bad/rest"}
    assert inputs.faults.failures == {}


async def test_replicas_that_were_measured_together_get_what_they_answer_together() -> None:
    together = [{"replicas": 2, "requestsPerSecond": "100"}]
    inputs = fill_inputs("Priced", {"requestsPerSecond": "60", "together": together})

    class Rates(RouteRates):
        async def read_gateways(self, gateways: Sequence[ScrapeTarget]) -> Mapping[str, float]:
            return {REST_ROUTE: 200.0}

    planner = make_planner(inputs, Rates())
    await planner.update_shares()
    assert planner.shares.by_route == {REST_ROUTE: pytest.approx(0.97 * 60 / 200)}
    put_object(inputs, kinds.POD, a_pod("q", "10.0.0.2"))
    await planner.update_shares()
    assert planner.shares.by_route == {REST_ROUTE: pytest.approx(0.97 * 100 / 200)}

    # One pod of a pool whose replicas answer half as much: it does not slow down the two of the other pool.
    pools = [{"name": "cpu-a"}, {"name": "cpu-b", "relativeCapacity": "0.5"}]
    capacity = {"requestsPerSecond": "60", "together": together}
    body = inference_body(capacity=capacity, placement={"pools": pools})
    put_object(inputs, kinds.INFERENCE, body)
    for name, address, pool in (("p", 1, "cpu-a"), ("q", 2, "cpu-a"), ("r", 3, "cpu-b")):
        pod = a_pod(name, f"10.0.0.{address}")
        pod["metadata"]["labels"][POOL_LABEL] = pool
        put_object(inputs, kinds.POD, pod)
    await planner.update_shares()
    assert planner.shares.by_route == {REST_ROUTE: pytest.approx(0.97 * (100 + 30) / 200)}


@pytest.mark.parametrize(
    ("offered", "needed"),
    [
        ([90.0], 1.5),
        # A spare serves nothing while the decided replica has capacity, or nothing is known.
        ([60.0], 1),
        ([float("nan")], 1),
        ([90.0, None], 1),
        ([90.0, 40.0], 1),
        # A little less changes nothing, and a little more does.
        ([90.0, 80.0], 1.5),
        ([90.0, 70.0], 1.2),
        ([90.0, 91.0], 1.6),
        # What is about the capacity of the decided replica does not switch the spare on and off.
        ([60.0, 61.0, 59.0], 1.1),
        ([61.0, 59.0, 46.0, 60.0], 1.1),
        ([90.0, 50.0], 1.1),
        ([61.0, 44.0], 1),
        ([61.0, 44.0, 59.0], 1),
    ],
)
async def test_a_shared_spare_gets_what_the_decided_replicas_have_no_capacity_for(
    offered: Sequence[float | None], needed: float
) -> None:
    inputs = fill_inputs("Local", {"requestsPerSecond": "60"})
    spare = {
        "metadata": {
            "name": "spare",
            "namespace": "ads",
            "uid": "spare",
            "labels": {SPARE_LABEL: "0"},
            "annotations": {SPARE_MODELS_ANNOTATION: "ctr=1@s"},
        },
        "status": {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    put_object(inputs, kinds.POD, spare)
    rates = iter(offered)

    class Rates(RouteRates):
        async def read_gateways(self, gateways: Sequence[ScrapeTarget]) -> Mapping[str, float] | None:
            rate = next(rates)
            return None if rate is None else {REST_ROUTE: rate}

    planner = make_planner(inputs, Rates())
    for _ in offered:
        await planner.update_shares()
    routing = IncrementalTranslator()
    inputs.feed_changes(routing)
    pool = routing.take_change().pools[BackendKey(BackendKind.INFERENCE, "ads", "ctr")]
    assert pool is not None
    assert pool.spares is not None
    assert pool.spares.needed == needed


async def test_gateways_are_those_behind_the_name() -> None:
    assert ScrapeTarget("127.0.0.1", "127.0.0.1:9902") in await resolve_gateways("localhost", 9902)
    with pytest.raises(OSError, match=r"Name|name|address"):
        await resolve_gateways("tidegate-gateway-metrics.invalid", 9902)


@pytest.mark.parametrize(
    ("error", "is_fault"), [(OSError("no such name"), False), (KeyError("a mistake of ours"), True)]
)
async def test_a_round_that_fails_renews_nothing_and_the_next_one_follows(
    error: Exception, is_fault: bool
) -> None:
    rounds = 0

    async def find_gateways() -> Sequence[ScrapeTarget]:
        nonlocal rounds
        rounds += 1
        raise error

    planner = SharePlanner(
        inputs=fill_inputs("Priced", {"requestsPerSecond": "1"}),
        shares=AdmittedShares(),
        metrics=XdsMetrics(CollectorRegistry()),
        find_gateways=find_gateways,
    )
    planner.shares.publish_shares({REST_ROUTE: 0.5})
    version = planner.shares.resource.version
    planning = asyncio.create_task(planner.run_rounds())

    async def two_rounds() -> bool:
        return rounds >= 2

    await eventually(two_rounds, "two rounds are over")
    assert planner.shares.resource.version == version
    assert ("admitted shares" in planner.inputs.faults.failures) is is_fault
    planning.cancel()


async def test_gateways_whose_pages_never_end_keep_no_round_from_the_others_for_longer_than_shares_last() -> (
    None
):
    completed = itertools.count(100, 100)

    async def get_page(_: web.Request) -> web.Response:
        counter = "vhost.access/ads/ctr.route.rest.upstream_rq_completed"
        return web.Response(text=f"{counter}: {next(completed)}\nserver.uptime: 5\n")

    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.1)
        return response

    async with AsyncExitStack() as stack:
        gateways: list[ScrapeTarget] = []
        for name, handler in (*((f"slow-{number}", trickle) for number in range(8)), ("good", get_page)):
            app = web.Application()
            app.router.add_get(STATS_PATH, handler)
            server = await stack.enter_async_context(TestServer(app, host="127.0.0.1"))
            gateways.append(ScrapeTarget(name, f"127.0.0.1:{server.port}"))
        rates = RouteRates()
        async with asyncio.timeout(SHARES_TTL_S):
            assert await rates.read_gateways(gateways) is None, "one page gives no rate"
        async with asyncio.timeout(SHARES_TTL_S):
            by_route = await rates.read_gateways(gateways)
        assert by_route is not None
        assert by_route[REST_ROUTE] > 0
