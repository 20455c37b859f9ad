"""Signals from a real Envoy, read from its own page and through a real Prometheus: what counts as demand, and what happens when nobody answers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import grpc.aio
import pytest
from aiohttp import web
from prometheus_api_client import PrometheusConnect
from prometheus_client import CollectorRegistry

from builders.loopback import serve_registry
from builders.model_access import a_model_access, a_route
from builders.release import a_release, released
from builders.waiting import eventually
from fixtures.envoy import Client, Envoy, Gateway, backend_of
from fixtures.prometheus import RunningPrometheus
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.exporters.objects import ObjectMetrics
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.planning.access.value_classes import index_routes
from tidegate.planning.allocator.signals import MetricsScrape, Signals
from tidegate.telemetry import expressions, gateways
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.objectives import BOUNDS_MS
from tidegate.telemetry.prometheus_traffic import PrometheusTraffic
from tidegate.telemetry.recording_rules import render_recording_rules
from tidegate.telemetry.signals import SignalReader
from tidegate_localcluster.ports import ReservedPort

CTR, CVR, DEAD, NONE = (ObjectKey("ads", name) for name in ("ctr", "cvr", "dead", "none"))
PATIENT = {"timeout": "60s"}
AT_ONCE = timedelta()


def access_to(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-tidegate-access", f"ads/{name}"),)


async def outcome(client: Client, name: str = "ctr") -> str:
    """Who answered, or the name of the status."""
    try:
        return await client.infer(metadata=access_to(name))
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def outcomes(client: Client, count: int, name: str = "ctr") -> Counter[str]:
    return Counter([await outcome(client, name) for _ in range(count)])


class Looking:
    """Looks at a gateway's page, a second of its own clock apart, so that a rate is a count."""

    def __init__(self, *gateways_: gateways.ScrapeTarget, accesses: tuple[ModelAccess, ...] = ()) -> None:
        self.gateways = gateways_
        self.now_s = 100.0
        self.traffic = GatewayTraffic(
            lambda: self.gateways, lambda: index_routes(accesses), lambda: self.now_s
        )

    async def scrape_signals(self) -> MetricsScrape:
        self.now_s += 1
        return await self.traffic.scrape_signals()


def of(envoy: Envoy, name: str = "gateway-1") -> gateways.ScrapeTarget:
    return gateways.ScrapeTarget(name, envoy.admin)


def offered(look: MetricsScrape, key: ObjectKey) -> float | None:
    return look.by_key[key].offered_per_s


def served(look: MetricsScrape, key: ObjectKey) -> float | None:
    return look.by_key[key].served_per_s


async def test_requests_over_a_limit_are_demand_and_not_served(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    limited = a_model_access("ctr", protection={"maxConcurrent": 2}, routes=[a_route(**PATIENT)])
    client = await gateway.start(limited, backend_of("ctr", model))
    looking = Looking(of(gateway.envoy))
    await looking.scrape_signals()
    model.open.clear()
    held = [asyncio.create_task(outcome(client)) for _ in range(2)]

    async def both_there() -> bool:
        return model.inferences == 2

    await eventually(both_there, "two requests are with the model")
    refused = await outcomes(client, 10)
    model.open.set()
    assert await asyncio.gather(*held) == ["v1", "v1"]
    assert refused == Counter({"RESOURCE_EXHAUSTED": 10})

    look = await looking.scrape_signals()
    assert (offered(look, CTR), served(look, CTR)) == (12.0, 2.0)
    assert (look.failure, look.silent_gateways) == ("", ())
    look = await looking.scrape_signals()
    assert (offered(look, CTR), served(look, CTR)) == (0.0, 0.0)

    async def bounds() -> set[float]:
        page = await gateway.envoy.get_admin("/stats/prometheus")
        found = re.findall(r'^envoy_cluster_upstream_rq_time_bucket\{[^}]*le="([^"]+)"', page, re.MULTILINE)
        return {float(bound) for bound in found}

    # Envoy counts in the buckets that objectives are told in.
    assert await eventually(bounds, "it has counted") == {*BOUNDS_MS, inf}


async def test_requests_that_are_priced_out_are_demand_and_refused(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model = await gateway.upstream("v1")
    access = a_model_access(
        "ctr", routes=[a_route(value="2")], protection={"admissionControl": {"mode": "Priced"}}
    )
    client = await gateway.start(access, backend_of("ctr", model))
    prometheus.targets, prometheus.rules = {"gateway-1": gateway.envoy.admin}, render_recording_rules()
    prometheus.start()
    source = asking(prometheus, gateway, access)
    looking = Looking(of(gateway.envoy), accesses=(access,))
    assert await outcome(client) == "v1"
    renewal = asyncio.create_task(gateway.renew_shares({"access/ads/ctr/default": 0.0}))

    async def refusing() -> bool:
        return await outcome(client) == "RESOURCE_EXHAUSTED"

    await eventually(refusing, "the gateway refuses")
    await until("Prometheus knows it", source, lambda look: counted(look, CTR) >= 0)
    await looking.scrape_signals()
    assert await outcomes(client, 40) == Counter({"RESOURCE_EXHAUSTED": 40})
    renewal.cancel()

    look = await looking.scrape_signals()
    assert (offered(look, CTR), look.by_key[CTR].refused_per_s) == (40.0, 40.0)
    (rates,) = (rates for rates in look.by_key[CTR].classes if rates.offered_per_s)
    assert (rates.value, rates.sheds, rates.refused_per_s) == (2.0, True, 40.0)
    about_all = pytest.approx(40, rel=0.4)
    look = await until("all are counted", source, lambda look: counted(look, CTR) == about_all)
    assert (look.by_key[CTR].refused_per_s or 0) * 60 == about_all
    answer = await asyncio.to_thread(PrometheusConnect(prometheus.url).custom_query, expressions.UNSERVED)
    assert [float(sample["value"][1]) for sample in answer if float(sample["value"][1])] == []


async def test_what_admission_control_refuses_is_demand_of_the_target_it_was_for(gateway: Gateway) -> None:
    good, bad = await gateway.upstream("good"), await gateway.upstream("bad")
    bad.fail_with = grpc.StatusCode.UNAVAILABLE
    gold = a_route("gold", "cvr", match={"headers": [{"name": "x-segment", "exact": "gold"}]}, value="3")
    rest = a_route("rest", "ctr", "cvr", value="1.0")
    access = a_model_access("ctr", routes=[gold, rest], protection={"admissionControl": {}})
    client = await gateway.start(access, backend_of("ctr", good), backend_of("cvr", bad))
    looking = Looking(of(gateway.envoy), accesses=(access,))
    await looking.scrape_signals()
    sent = 0

    async def refusing() -> bool:
        nonlocal sent
        await asyncio.gather(*(outcome(client) for _ in range(40)))
        sent += 40
        return sent - good.inferences - bad.inferences >= 20

    await eventually(refusing, "admission control refuses requests")
    look = await looking.scrape_signals()
    refused = sent - good.inferences - bad.inferences
    assert (offered(look, CTR), offered(look, CVR)) == (good.inferences, bad.inferences + refused)
    assert look.by_key[CVR].refused_per_s == refused
    (shed,) = (rates for rates in look.by_key[CVR].classes if rates.value == 1.0)
    assert (shed.sheds, shed.refused_per_s) == (True, refused)


def classes_of(look: MetricsScrape, key: ObjectKey) -> set[tuple[float | None, float, float, float]]:
    return {
        (rates.value, rates.offered_per_s, rates.served_per_s, rates.refused_per_s)
        for rates in look.by_key[key].classes
    }


async def test_requests_are_counted_by_the_value_of_their_route(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    gold = a_route("gold", "ctr", match={"headers": [{"name": "x-segment", "exact": "gold"}]}, value="5")
    access = a_model_access("ctr", routes=[gold, a_route("rest", **PATIENT)], protection={"maxConcurrent": 1})
    client = await gateway.start(access, backend_of("ctr", model))
    looking = Looking(of(gateway.envoy), accesses=(access,))
    await looking.scrape_signals()
    vip = (*access_to("ctr"), ("x-segment", "gold"))
    for _ in range(3):
        assert await client.infer(metadata=vip) == "v1"
    assert await outcomes(client, 7) == Counter({"v1": 7})
    look = await looking.scrape_signals()
    assert classes_of(look, CTR) == {(5.0, 3.0, 3.0, 0.0), (None, 7.0, 7.0, 0.0)}
    assert (offered(look, CTR), look.by_key[CTR].refused_per_s) == (10.0, 0.0)

    # What a limit refuses was offered all the same.
    model.open.clear()
    held = asyncio.create_task(outcome(client))

    async def there() -> bool:
        return model.inferences == 11

    await eventually(there, "a request is with the model")
    for _ in range(4):
        with pytest.raises(grpc.aio.AioRpcError):
            await client.infer(metadata=vip)
    model.open.set()
    assert await held == "v1"
    look = await looking.scrape_signals()
    assert classes_of(look, CTR) == {(5.0, 4.0, 0.0, 0.0), (None, 1.0, 1.0, 0.0)}
    assert (offered(look, CTR), look.by_key[CTR].refused_per_s) == (5.0, 4.0)


async def test_requests_for_which_no_pod_is_left_are_demand_by_weight(gateway: Gateway) -> None:
    targets = [{"inference": "none", "weight": 3}, {"inference": "dead", "weight": 1}]
    access = a_model_access("ctr", routes=[a_route(targets=targets)])
    client = await gateway.start(access, backend_of("none"), backend_of("dead"))
    looking = Looking(of(gateway.envoy), accesses=(access,))
    await looking.scrape_signals()
    assert await outcomes(client, 8) == Counter({"UNAVAILABLE": 8})
    look = await looking.scrape_signals()
    assert (offered(look, NONE), offered(look, DEAD), served(look, NONE)) == (6.0, 2.0, 0.0)


async def test_tries_of_the_gateway_are_no_demand(gateway: Gateway) -> None:
    gone = await gateway.upstream("v1")
    await gone.stop()
    access = a_model_access("ctr", routes=[a_route("default", "dead", retry={"attempts": 3})])
    client = await gateway.start(access, backend_of("dead", gone))
    looking = Looking(of(gateway.envoy))
    await looking.scrape_signals()
    assert await outcomes(client, 10) == Counter({"UNAVAILABLE": 10})
    assert await gateway.envoy.stat("cluster.inference/ads/dead/grpc.upstream_rq_retry") == 30
    look = await looking.scrape_signals()
    assert (offered(look, DEAD), served(look, DEAD)) == (10.0, 0.0)


async def test_a_released_target_has_its_demand_and_its_failures(gateway: Gateway) -> None:
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    v4.fail_with = grpc.StatusCode.INTERNAL
    access = released(a_release(steps=[100]))
    client = await gateway.start(access, backend_of("v3", v3), backend_of("v4", v4))
    looking = Looking(of(gateway.envoy))
    await looking.scrape_signals()
    assert await outcomes(client, 10) == Counter({"INTERNAL": 10})
    look = await looking.scrape_signals()
    assert (offered(look, ObjectKey("ads", "v4")), served(look, ObjectKey("ads", "v4"))) == (10.0, 0.0)


async def test_the_end_of_a_release_is_no_gateway_that_begins_anew(gateway: Gateway) -> None:
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    client = await gateway.start(released(a_release(steps=[100])), backend_of("v3", v3), backend_of("v4", v4))
    looking = Looking(of(gateway.envoy))
    await outcomes(client, 50)
    await looking.scrape_signals()
    await gateway.control_plane.push(
        a_model_access("ctr", routes=[a_route("default", "v4")]), backend_of("v3", v3), backend_of("v4", v4)
    )

    async def gone() -> bool:
        return "cluster.release/ads/ctr/v4" not in await gateway.envoy.get_admin("/stats")

    await eventually(gone, "the cluster of the release is gone")
    await outcomes(client, 10)
    look = await looking.scrape_signals()
    assert (look.silent_gateways, offered(look, ObjectKey("ads", "v4"))) == ((), 10.0)


async def restarted(gateway: Gateway) -> Client:
    """The gateway as a new process on the same port, with all counters at zero; once it has answered one request."""
    gateway.envoy.ports = {"admin_port": int(gateway.envoy.admin.rpartition(":")[2]), "metrics_port": None}  # type: ignore[dict-item]
    gateway.envoy.stop()
    await gateway.envoy.start(gateway.control_plane.port)
    client = gateway.client()

    async def answers() -> bool:
        return await outcome(client) == "v1"

    await eventually(answers, "the new process has its routes")
    return client


def watch_of(source: Looking | PrometheusTraffic) -> Callable[[], Awaitable[Signals]]:
    return SignalReader(source, lambda: datetime.now(UTC)).read


async def test_a_gateway_that_begins_anew_lowers_nothing(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(a_model_access("ctr"), backend_of("ctr", model))
    looking = Looking(of(gateway.envoy))
    read = watch_of(looking)
    assert not (await read()).by_key
    await outcomes(client, 30)
    assert (await read()).by_key[CTR].offered_per_s == 30.0

    client = await restarted(gateway)
    # Half a minute between two looks, as in life: the age of one that ran for a second tells little.
    looking.now_s += 29
    signals = await read()
    assert (signals.by_key[CTR].offered_per_s, signals.all_fresh) == (30.0, False)
    assert "gateway-1 says nothing" in signals.message
    await outcomes(client, 20)
    signals = await read()
    assert (signals.by_key[CTR].offered_per_s, signals.all_fresh) == (20.0, True)


async def test_a_gateway_that_says_nothing_or_nonsense_lowers_nothing(gateway: Gateway) -> None:
    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(text='{"stats": [{"name": "server.uptime", "value": NaN}]}')

    app = web.Application()
    app.router.add_get("/stats", nonsense)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model = await gateway.upstream("v1")
    client = await gateway.start(a_model_access("ctr"), backend_of("ctr", model))
    looking = Looking(of(gateway.envoy))
    read = watch_of(looking)
    await read()
    await outcomes(client, 30)
    assert (await read()).by_key[CTR].offered_per_s == 30.0
    with ReservedPort("127.0.0.1") as nobody:
        for address in (f"127.0.0.1:{runner.addresses[0][1]}", f"127.0.0.1:{nobody.number}"):
            looking.gateways = (of(gateway.envoy), gateways.ScrapeTarget("gateway-2", address))
            signals = await read()
            assert (signals.by_key[CTR].offered_per_s, signals.all_fresh) == (30.0, False)
            assert "gateway-2 says nothing" in signals.message
        looking.gateways = (gateways.ScrapeTarget("gateway-1", f"127.0.0.1:{nobody.number}"),)
        signals = await read()
        assert (signals.by_key[CTR].offered_per_s, signals.all_fresh) == (30.0, False)
    await runner.cleanup()


# Through Prometheus


def asking(
    prometheus: RunningPrometheus, gateway: Gateway, *accesses: ModelAccess, name: str = "gateway-1"
) -> PrometheusTraffic:
    known = (of(gateway.envoy, name),)
    return PrometheusTraffic(prometheus.url, lambda: known, lambda: index_routes(accesses), dict, AT_ONCE)


async def until(what: str, source: PrometheusTraffic, true: Callable[[MetricsScrape], bool]) -> MetricsScrape:
    seen: list[MetricsScrape] = []

    async def found() -> MetricsScrape | None:
        seen.append(await source.scrape_signals())
        return seen[-1] if true(seen[-1]) else None

    try:
        return await eventually(found, what)
    except BaseException:
        print(seen[-1])  # noqa: T201  for the report of a failure
        raise


def counted(look: MetricsScrape, key: ObjectKey) -> float:
    """Requests of the last minute, as Prometheus works them out: a little more than there were."""
    return (look.by_key[key].offered_per_s or 0.0) * 60 if key in look.by_key else -1.0


async def test_prometheus_counts_what_was_refused_as_demand_and_its_rules_record_the_same(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model = await gateway.upstream("v1")
    limited = a_model_access("ctr", protection={"maxConcurrent": 1}, routes=[a_route(value="7", **PATIENT)])
    none = a_model_access("none", routes=[a_route("default", "none")])
    client = await gateway.start(limited, none, backend_of("ctr", model), backend_of("none"))
    prometheus.targets = {"gateway-1": gateway.envoy.admin}
    prometheus.rules = render_recording_rules()
    prometheus.start()
    source = asking(prometheus, gateway, limited, none)
    await outcome(client, "none")
    await until("it knows both", source, lambda look: counted(look, CTR) == 0 and counted(look, NONE) == 0)

    model.open.clear()
    first = asyncio.create_task(outcome(client))

    async def there() -> bool:
        return model.inferences == 1

    await eventually(there, "a request is with the model")
    assert await outcomes(client, 99) == Counter({"RESOURCE_EXHAUSTED": 99})
    assert await outcomes(client, 50, "none") == Counter({"UNAVAILABLE": 50})
    model.open.set()
    assert await first == "v1"
    # The fewer scrapes there were, the further Prometheus reckons beyond them.
    about = {CTR: pytest.approx(100, rel=0.3), NONE: pytest.approx(50, rel=0.3)}
    look = await until(
        "all are counted", source, lambda look: {key: counted(look, key) for key in about} == about
    )
    assert (served(look, CTR) or 0) * 60 < 5
    (rates,) = look.by_key[CTR].classes
    assert rates.value == 7.0
    assert rates.offered_per_s * 60 == pytest.approx(100, rel=0.3)
    assert (look.by_key[CTR].refused_per_s or 0) * 60 == pytest.approx(99, rel=0.3)

    async def recorded() -> list[Any] | None:
        asked = PrometheusConnect(prometheus.url)
        found: list[Any] = await asyncio.to_thread(
            asked.custom_query, 'tidegate:inference_offered:rate1m{inference="ctr"} * 60 >= 90'
        )
        return found

    found = await eventually(recorded, "the rule has recorded it")
    assert found[0]["metric"] == {"inference": "ctr", "namespace": "ads"}


async def test_without_prometheus_demand_is_held_and_with_it_again_it_is_fresh(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(a_model_access("ctr"), backend_of("ctr", model))
    prometheus.targets = {"gateway-1": gateway.envoy.admin}
    prometheus.start()
    source = asking(prometheus, gateway)
    await until("it knows it", source, lambda look: counted(look, CTR) == 0)
    await outcomes(client, 300)
    await until("all were counted", source, lambda look: counted(look, CTR) >= 300)
    read = watch_of(source)
    before = await read()
    assert before.all_fresh
    assert before.by_key[CTR].offered_per_s >= 5.0

    prometheus.stop()
    signals = await read()
    assert not signals.all_fresh
    assert signals.message.startswith(f"Prometheus {prometheus.url}: it cannot be asked")
    assert signals.by_key[CTR].offered_per_s == before.by_key[CTR].offered_per_s

    prometheus.start()

    async def fresh() -> Signals | None:
        signals = await read()
        return signals if signals.all_fresh else None

    assert (await eventually(fresh, "it is fresh again")).by_key[CTR].offered_per_s > 0


async def test_gateways_that_prometheus_does_not_scrape_are_silent_and_without_any_it_is_a_failure(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model = await gateway.upstream("v1")
    await gateway.start(a_model_access("ctr"), backend_of("ctr", model))
    prometheus.targets = {"gateway-1": gateway.envoy.admin}
    prometheus.start()
    both = (of(gateway.envoy), gateways.ScrapeTarget("gateway-2", "127.0.0.1:1"))
    source = PrometheusTraffic(prometheus.url, lambda: both, dict, dict, AT_ONCE)
    look = await until("it knows one", source, lambda look: CTR in look.by_key)
    assert look.silent_gateways == ("gateway-2",)
    # By default one that started just now is silent too: its rates are not of a minute yet.
    look = await PrometheusTraffic(prometheus.url, lambda: both, dict, dict).scrape_signals()
    assert (look.silent_gateways, look.failure) == (("gateway-1", "gateway-2"), "")
    look = await PrometheusTraffic(prometheus.url, lambda: both[1:], dict, dict, AT_ONCE).scrape_signals()
    assert look.failure.startswith(
        "it has scraped no gateway in the last minute, whose label instance is one of 127.0.0.1:1"
    )


async def test_a_restart_of_a_gateway_is_no_drop_and_no_spike_to_prometheus(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model = await gateway.upstream("v1")
    client = await gateway.start(a_model_access("ctr"), backend_of("ctr", model))
    prometheus.targets = {"gateway-1": gateway.envoy.admin}
    prometheus.start()
    source = asking(prometheus, gateway)
    await until("it knows it", source, lambda look: counted(look, CTR) == 0)
    await outcomes(client, 300)
    before = await until("all were counted", source, lambda look: counted(look, CTR) >= 300)
    await outcomes(await restarted(gateway), 100)
    after = await until(
        "the new ones too", source, lambda look: counted(look, CTR) > counted(before, CTR) + 5
    )
    assert counted(after, CTR) <= 550


async def test_the_error_budget_of_an_inference_burns_when_requests_are_refused_and_not_when_all_are_answered(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model, calm = await gateway.upstream("v1"), await gateway.upstream("v2")
    limited = a_model_access("ctr", protection={"maxConcurrent": 1}, routes=[a_route(**PATIENT)])
    other = a_model_access("cvr", routes=[a_route("default", "cvr")])
    client = await gateway.start(limited, other, backend_of("ctr", model), backend_of("cvr", calm))
    inferences = ObjectStore(INFERENCE)
    for name in ("ctr", "cvr"):
        metadata = {"namespace": "ads", "name": name, "uid": name, "resourceVersion": "1"}
        inferences.observe("ADDED", {"metadata": metadata, "spec": {"slo": {"latencyP99": "30s"}}})
    registry = CollectorRegistry()
    registry.register(ObjectMetrics([inferences], lambda: True))
    async with serve_registry(registry) as controllers:
        prometheus.targets = {"gateway-1": gateway.envoy.admin, "controllers-1": controllers}
        # Each second, as the server evaluates what says nothing else.
        groups: Any = render_recording_rules()["groups"]
        prometheus.rules = {"groups": [{"name": each["name"], "rules": each["rules"]} for each in groups]}
        prometheus.start()
        asked = PrometheusConnect(prometheus.url)
        # Before rates are taken, the counters have to be there.
        await outcomes(client, 1)
        await outcomes(client, 1, "cvr")

        async def burns(name: str, condition: str) -> list[Any]:
            query = f'tidegate:inference_budget_burn:rate5m{{inference="{name}"}} {condition}'
            return await asyncio.to_thread(asked.custom_query, query)

        async def scraped() -> bool:
            query = 'count(envoy_cluster_upstream_rq_total{envoy_cluster_name=~"inference/ads/.*"})'
            found = await asyncio.to_thread(asked.custom_query, query)
            return bool(found) and float(found[0]["value"][1]) >= 2

        await eventually(scraped, "both are scraped")
        model.open.clear()
        first = asyncio.create_task(outcome(client))

        async def there() -> bool:
            return model.inferences == 2

        await eventually(there, "a request is with the model")
        assert await outcomes(client, 50) == Counter({"RESOURCE_EXHAUSTED": 50})
        assert await outcomes(client, 50, "cvr") == Counter({"v2": 50})
        model.open.set()
        assert await first == "v1"
        # Nearly all were bad, and one in a hundred may be.
        found = await eventually(lambda: burns("ctr", "> 80"), "the budget burns")
        assert found[0]["metric"]["namespace"] == "ads"
        # Envoy counts a request before it puts its time into a bucket: for a moment some seem late.
        await eventually(lambda: burns("cvr", "< 0.5"), "the other was asked, and its budget is whole")
