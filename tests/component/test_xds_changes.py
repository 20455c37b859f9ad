"""Changes under load: what a real Envoy loses while clusters, endpoints and routes come and go, and while our server does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from builders.model_access import a_model_access, a_route
from fixtures.envoy import ControlPlane, Gateway, Load, Upstream, backend_of, eventually
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, content_hash
from tidegate.xds.steps import DiscoveryStream

CTR = (("x-tidegate-access", "ads/ctr"),)
ACCESS = HostKey(HostKind.ACCESS, ObjectKey("ads", "ctr"))

Fleet = tuple[ModelAccess | Backend, ...]


def replacements(one: Upstream, other: Upstream, count: int) -> Iterator[Fleet]:
    """Each time, the only target is another Inference than before, and the one before is deleted."""
    for number in range(count):
        name = f"ctr-v{number}"
        yield (
            a_model_access(routes=[a_route("default", name)], metadata={"generation": number + 2}),
            backend_of(name, (one, other)[number % 2]),
        )


async def test_replacing_the_target_and_deleting_the_old_one_loses_nothing(
    gateway_of_either_dialect: Gateway,
) -> None:
    gateway = gateway_of_either_dialect
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        for fleet in replacements(one, other, 25):
            await gateway.control_plane.push(*fleet)
            await load.answered(8)

    assert load.errors == []
    assert min(load.answers["one"], load.answers["other"]) > 50
    assert gateway.control_plane.ledger.programmed(ACCESS, 26)
    assert await gateway.envoy.stat("cluster_manager.cluster_removed") == 50


async def test_without_the_gate_the_same_replacements_do_lose_requests(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiscoveryStream, "_gate_open", lambda *_: True)
    monkeypatch.setattr(DiscoveryStream, "_routing_settled", lambda *_: True)
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    load = Load(client, CTR)
    async with load.running():
        for fleet in replacements(one, other, 25):
            await gateway.control_plane.push(*fleet)
            await load.answered(8)
    assert load.errors


async def test_a_newer_snapshot_in_the_middle_of_a_change_loses_nothing(
    gateway_of_either_dialect: Gateway,
) -> None:
    gateway = gateway_of_either_dialect
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
    gateway_of_either_dialect: Gateway,
) -> None:
    """It would wait 15 s for its endpoints if they were not sent again."""
    gateway = gateway_of_either_dialect
    old, new = await gateway.upstream("old"), await gateway.upstream("new")
    client = await gateway.start(a_model_access(), backend_of("ctr", old))
    async with asyncio.timeout(5):
        with_retry = a_model_access(routes=[a_route(retry={"attempts": 1, "budgetPercent": 50})])
        await gateway.control_plane.push(with_retry, backend_of("ctr", new))

        async def answered_by_new() -> bool:
            return await client.infer(metadata=CTR) == "new"

        await eventually("the new endpoint answers", answered_by_new)
    assert await gateway.envoy.stat("cluster_manager.warming_clusters") == 0


async def test_pods_that_leave_finish_what_they_have(gateway: Gateway) -> None:
    leaving, staying = await gateway.upstream("leaving"), await gateway.upstream("staying")
    leaving.delay_s = 0.4
    access = a_model_access(routes=[a_route(timeout="5s")])
    client = await gateway.start(access, backend_of("ctr", leaving))
    in_flight = [asyncio.create_task(client.infer(metadata=CTR)) for _ in range(8)]

    async def all_arrived() -> bool:
        return leaving.inferences == 8

    await eventually("all requests reached the pod", all_arrived)
    await gateway.control_plane.push(access, backend_of("ctr", staying))
    assert await client.infer(metadata=CTR) == "staying"
    assert await asyncio.gather(*in_flight) == ["leaving"] * 8


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
            await leaving.stop(grace_s=2)
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


def spoilt(snapshot: Snapshot, type_url: TypeUrl, resource: Resource) -> Snapshot:
    """The same snapshot with one resource that no proxy accepts."""
    body = resource.body[:-3] + b"\xff\xff\xff"
    bad = replace(resource, body=body, version=content_hash([body]))
    resources = dict(snapshot.resources)
    resources[type_url] = {**resources[type_url], resource.name: bad}
    return replace(
        snapshot,
        revision="spoilt",
        resources=resources,
        versions={**snapshot.versions, type_url: "spoilt"},
    )


async def refused(control_plane: ControlPlane) -> str:
    async def nack() -> str | None:
        return control_plane.ledger.report().proxies[0].nack

    return await eventually("the proxy refuses", nack)


@pytest.mark.parametrize("type_url", [TypeUrl.SCOPE, TypeUrl.CLUSTER])
async def test_a_refused_configuration_leaves_the_last_good_one(
    gateway_of_either_dialect: Gateway, type_url: TypeUrl
) -> None:
    gateway = gateway_of_either_dialect
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
        assert set(load.answers) == {"old"}
        assert control_plane.ledger.programmed(ACCESS, 1)
        assert not control_plane.ledger.programmed(ACCESS, 2)
        kind = "route" if type_url is TypeUrl.SCOPE else "cluster"
        assert control_plane.metric("tidegate_xds_nacks_total", type=kind) == 1

        control_plane.cache.set(good)
        await control_plane.accepted(good)
        await load.answered(20)
    assert load.errors == []
    assert load.answers["new"] > 0
    assert control_plane.ledger.report().proxies[0].nack is None


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

    await eventually("the other cluster's endpoints arrive", answered_by_new)


async def test_the_gateway_serves_on_without_its_xds_server(
    gateway_of_either_dialect: Gateway,
) -> None:
    gateway = gateway_of_either_dialect
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
            return control_plane.ledger.connected == 1

        await eventually("the proxy has come back", connected)
        await load.answered(50)
        assert control_plane.metric("tidegate_xds_pushes_total", type="cluster") == 0
        assert control_plane.ledger.report().revision == ""
        assert not control_plane.ledger.programmed(ACCESS, 1)
        await control_plane.push(a_model_access(), backend_of("ctr", one))
    assert load.errors == []


async def test_stopping_in_good_order_ends_the_streams(gateway: Gateway) -> None:
    await gateway.start(a_model_access(), backend_of("ctr", await gateway.upstream("one")))
    async with asyncio.timeout(3):
        await gateway.control_plane.server.stop()
    assert gateway.control_plane.ledger.connected == 0


async def test_two_servers_send_the_same_bytes(gateway: Gateway) -> None:
    one = await gateway.upstream("one")
    fleet = (a_model_access(), a_model_access("b"), backend_of("ctr", one), backend_of("b"))
    first, second = ControlPlane().set(*fleet), ControlPlane().set(*reversed(fleet))
    assert first.revision == second.revision
    assert first.resources == second.resources
