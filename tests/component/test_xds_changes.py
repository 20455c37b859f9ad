"""Changes under load: what a real Envoy loses while clusters, endpoints and routes come and go, and while our server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from builders.model_access import a_model_access, a_route
from builders.waiting import LIMIT_S, LONGEST_S, ends_in_time, eventually
from fixtures.envoy import ControlPlane, Gateway, Load, Upstream, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing import protos
from tidegate.routing.envoy import clusters, routes
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds import stream, subscription
from tidegate.xds.desired import HeldBack
from tidegate.xds.resources import Snapshot, TypeUrl, XdsResource, content_hash
from tidegate.xds.server import XdsServerSettings
from tidegate.xds.stream import UpdatePhase

CTR = (("x-tidegate-access", "ads/ctr"),)
ACCESS = HostKey(HostKind.ACCESS, ObjectKey("ads", "ctr"))

Fleet = tuple[ModelAccess | Backend, ...]
CONTROL = "shows that the test before it can fail"


def replacements(one: Upstream, other: Upstream, count: int) -> Iterator[Fleet]:
    """Each time, the only target is another Inference than before, and the one before is deleted."""
    for number in range(count):
        name = f"ctr-v{number}"
        yield (
            a_model_access(routes=[a_route("default", name)], metadata={"generation": number + 2}),
            backend_of(name, (one, other)[number % 2]),
        )


@pytest.mark.no_rerun("a lost request")
async def test_replacing_the_target_and_deleting_the_old_one_loses_nothing(
    gateway: Gateway,
) -> None:
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        for fleet in replacements(one, other, 25):
            await gateway.control_plane.push(*fleet)
            await load.answered(8)

    assert load.errors == []
    assert min(load.answers["one"], load.answers["other"]) > 50
    assert gateway.control_plane.ledger.is_programmed(ACCESS, 26)
    assert await gateway.envoy.stat("cluster_manager.cluster_removed") == 50


@pytest.mark.slow(CONTROL)
async def test_without_phases_the_same_replacements_do_lose_requests(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "current_phase", lambda *_: UpdatePhase.BREAK)
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        for fleet in replacements(one, other, 25):
            await gateway.control_plane.push(*fleet)
            await load.answered(8)
    assert load.errors


@pytest.mark.no_rerun("a lost request")
async def test_a_newer_snapshot_in_the_middle_of_a_change_loses_nothing(
    gateway: Gateway,
) -> None:
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        for number, fleet in enumerate(replacements(one, other, 60)):
            snapshot = gateway.control_plane.set(*fleet)
            # Interrupts a change at another point each time.
            for _ in range(number % 7):
                await load.answered(1)
        await gateway.control_plane.accepted(snapshot)
    assert load.errors == []


async def test_a_changed_cluster_serves_at_once(
    gateway: Gateway,
) -> None:
    """It would wait 15 s for its endpoints if they were not sent again."""
    old, new = await gateway.upstream("old"), await gateway.upstream("new")
    client = await gateway.start(a_model_access(), backend_of("ctr", old))
    async with ends_in_time("the cluster serves, without a wait of 15 s", timeout_s=10):
        with_retry = a_model_access(routes=[a_route(retry={"attempts": 1, "budgetPercent": 50})])
        await gateway.control_plane.push(with_retry, backend_of("ctr", new))

        async def answered_by_new() -> bool:
            return await client.infer(metadata=CTR) == "new"

        await eventually(answered_by_new, "the new endpoint answers")
    assert await gateway.envoy.stat("cluster_manager.warming_clusters") == 0


async def test_pods_that_leave_finish_what_they_have(gateway: Gateway) -> None:
    leaving, staying = await gateway.upstream("leaving"), await gateway.upstream("staying")
    leaving.delay_s = 0.4
    access = a_model_access(routes=[a_route()])
    client = await gateway.start(access, backend_of("ctr", leaving))
    in_flight = [asyncio.create_task(client.infer(metadata=CTR)) for _ in range(8)]

    async def all_arrived() -> bool:
        return leaving.inferences == 8

    await eventually(all_arrived, "all requests reached the pod")
    await gateway.control_plane.push(access, backend_of("ctr", staying))
    assert await client.infer(metadata=CTR) == "staying"
    assert await asyncio.gather(*in_flight) == ["leaving"] * 8


@pytest.mark.no_rerun("a lost request")
async def test_rolling_all_pods_of_a_target_loses_nothing(gateway: Gateway) -> None:
    pods = [await gateway.upstream(f"old-{number}") for number in range(2)]
    client = await gateway.start(a_model_access(), backend_of("ctr", *pods))
    load = Load(client, CTR)
    async with load.running():
        for number in range(8):
            new = await gateway.upstream(f"new-{number}")
            leaving, pods = pods[0], [*pods[1:], new]
            await gateway.control_plane.push(a_model_access(), backend_of("ctr", *pods))
            await load.answered(20)
            await leaving.stop(grace_s=LIMIT_S)
    assert load.errors == []
    assert load.answers["new-7"] > 0


async def test_a_target_that_falls_asleep_hands_its_share_over_first(gateway: Gateway) -> None:
    tired, awake = await gateway.upstream("tired"), await gateway.upstream("awake")
    access = a_model_access(routes=[a_route("default", "a", "b")])
    client = await gateway.start(access, backend_of("a", tired), backend_of("b", awake))
    load = Load(client, CTR)
    async with load.running():
        for _ in range(15):
            await gateway.control_plane.push(access, backend_of("a"), backend_of("b", awake))
            await load.answered(8)
            await gateway.control_plane.push(access, backend_of("a", tired), backend_of("b", awake))
            await load.answered(8)
    assert load.errors == []
    assert min(load.answers.values()) > 20


# Faults


def spoilt(snapshot: Snapshot, type_url: TypeUrl, resource: XdsResource) -> Snapshot:
    """The same snapshot with one resource that no proxy accepts."""
    body = resource.body[:-3] + b"\xff\xff\xff"
    bad = replace(resource, body=body, version=content_hash([body]))
    of_type = snapshot.resources[type_url].with_changes({resource.name: bad})
    return replace(snapshot, revision="spoilt", resources={**snapshot.resources, type_url: of_type})


async def refused(control_plane: ControlPlane) -> str:
    async def nack() -> str | None:
        return control_plane.ledger.build_report().proxies[0].nack

    return await eventually(nack, "the proxy refuses")


@pytest.mark.parametrize("type_url", [TypeUrl.SCOPE, TypeUrl.CLUSTER])
async def test_a_refused_configuration_leaves_the_last_good_one(gateway: Gateway, type_url: TypeUrl) -> None:
    old, new = await gateway.upstream("old"), await gateway.upstream("new")
    client = await gateway.start(a_model_access(), backend_of("ctr", old), backend_of("new", new))
    control_plane = gateway.control_plane
    changed = a_model_access(
        routes=[a_route("default", "new", retry={"attempts": 1})], metadata={"generation": 2}
    )
    good = control_plane.build(changed, backend_of("ctr", old), backend_of("new", new))
    load = Load(client, CTR)
    async with load.running():
        resource = next(iter(good.resources[type_url].values()))
        control_plane.cache.set(spoilt(good, type_url, resource))
        assert await refused(control_plane)
        await load.answered(20)
        # The routes may go on to a cluster that the proxy has as it was before the refused change.
        if type_url is TypeUrl.SCOPE:
            assert set(load.answers) == {"old"}
        assert control_plane.ledger.is_programmed(ACCESS, 1)
        assert not control_plane.ledger.is_programmed(ACCESS, 2)
        kind = "route" if type_url is TypeUrl.SCOPE else "cluster"
        assert control_plane.metric("tidegate_xds_nacks_total", type=kind) >= 1

        control_plane.cache.set(good)
        await control_plane.accepted(good)
        await load.answered(20)
    assert load.errors == []
    assert load.answers["new"] > 0
    assert control_plane.ledger.build_report().proxies[0].nack is None


async def test_a_refused_cluster_does_not_stop_the_endpoints_of_the_others(gateway: Gateway) -> None:
    old, new = await gateway.upstream("old"), await gateway.upstream("new")
    client = await gateway.start(a_model_access(), backend_of("ctr", old), backend_of("bad", old))
    control_plane = gateway.control_plane
    good = control_plane.build(a_model_access(), backend_of("ctr", new), backend_of("bad", old))
    bad = good.resources[TypeUrl.CLUSTER]["inference/ads/bad/grpc"]
    control_plane.cache.set(spoilt(good, TypeUrl.CLUSTER, bad))
    assert await refused(control_plane)

    async def answered_by_new() -> bool:
        return await client.infer(metadata=CTR) == "new"

    await eventually(answered_by_new, "the other cluster's endpoints arrive")


def with_another(snapshot: Snapshot, type_url: TypeUrl, resource: XdsResource) -> Snapshot:
    """The same snapshot with one resource more."""
    of_type = snapshot.resources[type_url].with_changes({resource.name: resource})
    return Snapshot.from_sets({**snapshot.resources, type_url: of_type}, snapshot.hosts)


def a_refused_scope(name: str) -> XdsResource:
    """A scope whose regular expression Envoy cannot read."""
    match = {"safe_regex": {"regex": "(("}}
    route = {"name": "x", "match": match, "direct_response": {"status": 404}}
    host = {"name": name, "domains": ["*"], "routes": [route]}
    body = routes.join_virtual_hosts([protos.encode("envoy.config.route.v3.VirtualHost", host)])
    scope = protos.encode_any(routes.TYPE, routes.join_scope(name, body))
    return XdsResource(name, content_hash([scope]), scope)


def a_refused_cluster(name: str) -> XdsResource:
    """A cluster that Envoy does not know how to balance."""
    fields = {"name": name, "type": "EDS", "lb_policy": "CLUSTER_PROVIDED"}
    body = protos.encode_any(clusters.TYPE, protos.encode(clusters.TYPE, fields))
    return XdsResource(name, content_hash([body]), body)


# Before and after the good one in the order in which they are sent.
REFUSED = {
    "scope-first": (TypeUrl.SCOPE, a_refused_scope("access/ads/aaa")),
    "scope-last": (TypeUrl.SCOPE, a_refused_scope("access/ads/zzz")),
    "cluster": (TypeUrl.CLUSTER, a_refused_cluster("inference/ads/bad/grpc")),
}


async def programmed(control_plane: ControlPlane, generation: int) -> None:
    """Until the proxy is known to run this generation of ads/ctr."""

    async def runs_it() -> bool:
        return control_plane.ledger.is_programmed(ACCESS, generation)

    await eventually(runs_it, f"generation {generation} is programmed")


async def answers_after_a_refusal(gateway: Gateway, type_url: TypeUrl, bad: XdsResource) -> Callable[[], Any]:
    """An access moves from `one` to `other` while the proxy refuses something that has nothing to do with it."""
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    backends = [backend_of("one", one), backend_of("other", other)]
    before = a_model_access(routes=[a_route("default", "one")])
    client = await gateway.start(before, *backends)
    control_plane = gateway.control_plane
    control_plane.cache.set(with_another(control_plane.build(before, *backends), type_url, bad))
    assert await refused(control_plane)
    after = a_model_access(routes=[a_route("default", "other")], metadata={"generation": 2})
    control_plane.cache.set(with_another(control_plane.build(after, *backends), type_url, bad))

    async def answer() -> str:
        return await client.infer(metadata=CTR)

    return answer


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_does_not_stop_the_changes_of_others(gateway: Gateway, case: str) -> None:
    answer = await answers_after_a_refusal(gateway, *REFUSED[case])

    async def by_other() -> bool:
        return await answer() == "other"

    await eventually(by_other, "the change arrives")
    control_plane = gateway.control_plane
    await programmed(control_plane, 2)
    assert control_plane.ledger.build_report().proxies[0].nack
    cured = control_plane.build(
        a_model_access(routes=[a_route("default", "other")], metadata={"generation": 3}),
        backend_of("other", await gateway.upstream("third")),
    )
    control_plane.cache.set(cured)
    await control_plane.accepted(cured)
    assert control_plane.ledger.build_report().proxies[0].nack is None


OTHER = HostKey(HostKind.ACCESS, ObjectKey("ads", "other"))


@dataclass
class TwoAccesses:
    """ads/other leads to the Inference `one` and stays as it is, refused; ads/ctr moves on from Inference to Inference under load."""

    gateway: Gateway
    servers: tuple[Upstream, Upstream]
    load: Load

    @property
    def plane(self) -> ControlPlane:
        return self.gateway.control_plane

    def fleet(self, target: str, generation: int) -> Fleet:
        """Both accesses in this generation, ads/other still to `one`, and the target; `one` is of the first fleet alone."""
        ctr = a_model_access(routes=[a_route("default", target)], metadata={"generation": generation})
        other = a_model_access(
            "other", routes=[a_route("default", target)], metadata={"generation": generation}
        )
        return ctr, other, backend_of(target, self.servers[generation % 2])

    async def other_is_answered(self) -> bool:
        headers = {"x-tidegate-access": "ads/other"}
        status, _, _ = await self.load.client.rest(
            "POST", "/v2/models/ctr/infer", headers=headers, body=b"{}"
        )
        return status == 200


@pytest_asyncio.fixture
async def two_accesses(gateway: Gateway) -> AsyncIterator[TwoAccesses]:
    """The first generation of both runs, under load."""
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    accesses = [a_model_access(name, routes=[a_route("default", "one")]) for name in ("ctr", "other")]
    client = await gateway.start(*accesses, backend_of("one", one))
    load = Load(client, CTR)
    async with load.running():
        yield TwoAccesses(gateway, (one, other), load)
    assert load.errors == []


async def test_beside_a_refused_route_every_generation_is_programmed_and_old_clusters_go(
    two_accesses: TwoAccesses,
) -> None:
    plane, envoy = two_accesses.plane, two_accesses.gateway.envoy
    rounds = 6
    for generation in range(2, 2 + rounds):
        good = plane.build(*two_accesses.fleet(f"v{generation}", generation))
        plane.cache.set(with_another(good, TypeUrl.SCOPE, a_refused_scope("access/ads/other")))
        await programmed(plane, generation)
        await two_accesses.load.answered(8)
        assert await two_accesses.other_is_answered()
    assert not plane.ledger.is_programmed(OTHER, 2)
    assert plane.ledger.is_programmed(OTHER, 1)
    (proxy,) = plane.ledger.build_report().proxies
    assert set(proxy.refused) == {str(OTHER)}
    assert "missing )" in proxy.refused[str(OTHER)]

    # Two clusters for each target of ads/ctr that is gone; `one` stays for ads/other, which leads there still.
    async def only_one_is_kept() -> bool:
        return await envoy.stat("cluster_manager.cluster_removed") >= 2 * (rounds - 1)

    await eventually(only_one_is_kept, "the old targets are gone")
    clusters = await envoy.get_admin("/clusters")
    assert "inference/ads/one/grpc" in clusters
    assert "inference/ads/v2/grpc" not in clusters
    assert await two_accesses.other_is_answered()

    mended = plane.build(*two_accesses.fleet("last", 20))
    plane.cache.set(mended)
    await plane.accepted(mended)
    assert plane.ledger.is_programmed(OTHER, 20)
    assert plane.ledger.build_report().proxies[0].refused == {}
    assert "inference/ads/one/grpc" not in await envoy.get_admin("/clusters")
    assert plane.metric("tidegate_xds_gate_deadline_misses_total") == 0


async def test_beside_a_refused_cluster_every_generation_is_programmed_and_old_clusters_go(
    two_accesses: TwoAccesses,
) -> None:
    plane, envoy = two_accesses.plane, two_accesses.gateway.envoy
    for generation in range(2, 6):
        ctr, other, target = two_accesses.fleet(f"v{generation}", generation)
        other = a_model_access(
            "other", routes=[a_route("default", "bad")], metadata={"generation": generation}
        )
        good = plane.build(ctr, other, target, backend_of("bad", two_accesses.servers[0]))
        bad = [a_refused_cluster(f"inference/ads/bad/{protocol}") for protocol in ("grpc", "http")]
        plane.cache.set(with_another(with_another(good, TypeUrl.CLUSTER, bad[0]), TypeUrl.CLUSTER, bad[1]))
        await programmed(plane, generation)
        await two_accesses.load.answered(8)
        assert await two_accesses.other_is_answered()
    assert not plane.ledger.is_programmed(OTHER, 2)
    refused = plane.ledger.build_report().proxies[0].refused
    assert set(refused) == {str(OTHER)}
    assert "cannot create an EDS cluster" in refused[str(OTHER)]
    clusters = await envoy.get_admin("/clusters")
    assert "inference/ads/one/grpc" in clusters
    assert "inference/ads/v2/grpc" not in clusters
    assert plane.metric("tidegate_xds_gate_deadline_misses_total") == 0


async def test_what_was_refused_along_with_another_is_in_force_once_it_is_accepted(
    two_accesses: TwoAccesses,
) -> None:
    """Envoy remembers each scope of a response that it refuses, and takes the same one for known when it comes again."""
    plane = two_accesses.plane
    good = plane.build(*two_accesses.fleet("v3", 3))
    plane.cache.set(with_another(good, TypeUrl.SCOPE, a_refused_scope("access/ads/other")))
    await programmed(plane, 3)

    async def answered_by_the_new_target() -> bool:
        return two_accesses.load.answers["other"] > 0

    await eventually(answered_by_the_new_target, "the new target answers")


@pytest.mark.slow(CONTROL)
async def test_without_a_roll_back_first_it_is_accepted_and_not_in_force(
    two_accesses: TwoAccesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: Envoy says that it has the scope, and its workers go on with the one before."""
    monkeypatch.setattr(subscription, "ROLLED_BACK_TYPES", frozenset())
    plane = two_accesses.plane
    good = plane.build(*two_accesses.fleet("v3", 3))
    plane.cache.set(with_another(good, TypeUrl.SCOPE, a_refused_scope("access/ads/other")))
    await programmed(plane, 3)
    await two_accesses.load.answered(100)
    assert set(two_accesses.load.answers) == {"one"}


@pytest.mark.slow(CONTROL)
async def test_if_nothing_is_held_back_the_refused_access_loses_its_target(
    two_accesses: TwoAccesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: old clusters go although a route that was refused still leads there."""
    monkeypatch.setattr(HeldBack, "keeps_cluster", lambda *_: False)
    plane = two_accesses.plane
    good = plane.build(*two_accesses.fleet("v2", 2))
    plane.cache.set(with_another(good, TypeUrl.SCOPE, a_refused_scope("access/ads/other")))
    await programmed(plane, 2)

    async def unanswered() -> bool:
        return not await two_accesses.other_is_answered()

    await eventually(unanswered, "the other access is not answered")


async def test_the_gateway_serves_on_without_its_xds_server(
    gateway: Gateway,
) -> None:
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        await gateway.lose_control_plane()
        await load.answered(200)
        # The new server knows another fleet, in which the old target does not even exist.
        control_plane = await gateway.replace_control_plane()
        await load.answered(50)
        (fleet,) = replacements(other, one, 1)
        await control_plane.push(*fleet)
        await load.answered(50)
    assert load.errors == []
    assert load.answers["other"] > 0


async def test_a_server_without_a_snapshot_says_nothing(gateway: Gateway) -> None:
    one = await gateway.upstream("one")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        await gateway.lose_control_plane()
        control_plane = await gateway.replace_control_plane()

        async def connected() -> bool:
            return control_plane.ledger.connected_count == 1

        await eventually(connected, "the proxy has come back")
        await load.answered(50)
        assert control_plane.metric("tidegate_xds_pushes_total", type="cluster") == 0
        assert control_plane.ledger.build_report().revision == ""
        assert not control_plane.ledger.is_programmed(ACCESS, 1)
        await control_plane.push(a_model_access(), backend_of("ctr", one))
    assert load.errors == []


async def test_stopping_in_good_order_ends_the_streams(gateway: Gateway) -> None:
    gateway.control_plane = ControlPlane(XdsServerSettings(drain_s=2 * LONGEST_S))
    await gateway.start(a_model_access(), backend_of("ctr", await gateway.upstream("one")))
    async with ends_in_time("the server stops, and not only once the streams are drained"):
        await gateway.control_plane.server.stop()
    assert gateway.control_plane.ledger.connected_count == 0


async def test_two_servers_send_the_same_bytes(gateway: Gateway) -> None:
    one = await gateway.upstream("one")
    fleet = (a_model_access(), a_model_access("b"), backend_of("ctr", one), backend_of("b"))
    first, second = ControlPlane().set(*fleet), ControlPlane().set(*reversed(fleet))
    assert first.revision == second.revision
    assert first.resources == second.resources
