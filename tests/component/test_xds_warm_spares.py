"""Warm spares behind a real Envoy: who gets requests while pods fail, come, are promoted and taken back, and that none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from builders.inference import an_inference
from builders.model_access import a_model_access
from builders.pods import a_pod
from builders.waiting import eventually
from fixtures.envoy import Gateway, Load, Upstream
from tidegate.api.inference import Inference
from tidegate.planning.access.backends import build_inference_backend
from tidegate.planning.pods import PodView
from tidegate.routing.fleet import Backend

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CTR = (("x-tidegate-access", "ads/ctr"),)


@dataclass
class Fleet:
    """The Inference ctr, each of its pods an upstream."""

    gateway: Gateway
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    second: int = 0

    async def ready(self, *names: str) -> None:
        """These turn ready, one after the other."""
        for name in names:
            upstream = self.upstreams.get(name) or await self.gateway.upstream(name)
            self.upstreams[name] = upstream
            self.second += 1
            since = NOON + timedelta(seconds=self.second)
            pod = a_pod(name, source="s")
            self.pods[name] = replace(pod, address=upstream.address, ready_since=since)

    def fails(self, name: str) -> None:
        self.pods[name] = replace(self.pods[name], ready=False, ready_since=None)

    def backend(self, replicas: int, spares: int) -> Backend:
        """What routing starts from when so many were decided; upstreams have ports of their own."""
        backend = build_inference_backend(_decided(replicas, spares), self.pods.values())
        by_address = {each.address: each.endpoint for each in self.upstreams.values()}
        return replace(backend, endpoints=tuple(by_address[one.address] for one in backend.endpoints))

    async def push(self, replicas: int, spares: int) -> None:
        await self.gateway.control_plane.push(a_model_access(), self.backend(replicas, spares))

    def counts(self) -> dict[str, int]:
        """Requests that each upstream has had."""
        return {name: upstream.inferences for name, upstream in self.upstreams.items()}


def _decided(replicas: int, spares: int) -> Inference:
    allocation = {"replicas": replicas, "spares": spares, "decision": "d", "epoch": 1}
    return an_inference(
        placement={"pool": "cpu-a"},
        scaling={"minReplicas": 1, "maxReplicas": 9},
        status={"allocation": allocation},
    )


async def _asked_of(fleet: Fleet, load: Load, *expected: str) -> None:
    """From now on these get requests, and nobody else one; what was on its way may still arrive."""
    await load.answered(20)
    before = fleet.counts()
    await load.answered(60)
    got = {name for name, count in fleet.counts().items() if count > before[name]}
    assert got == set(expected)


async def test_a_spare_gets_no_request_until_it_is_promoted_or_stands_in(gateway: Gateway) -> None:
    fleet = Fleet(gateway)
    await fleet.ready("a", "b", "c")
    load = Load(await gateway.start(a_model_access(), fleet.backend(2, 1)), CTR)
    async with load.running():
        await _asked_of(fleet, load, "a", "b")
        assert fleet.upstreams["c"].calls.total() == 0

        # One fails: the spare stands in; it comes back, and is the spare.
        fleet.fails("a")
        await fleet.push(2, 1)
        await _asked_of(fleet, load, "b", "c")
        await fleet.ready("a")
        await fleet.push(2, 1)
        await _asked_of(fleet, load, "b", "c")

        # More is asked, and less again.
        await fleet.push(3, 0)
        await _asked_of(fleet, load, "a", "b", "c")
        await fleet.push(2, 1)
        await _asked_of(fleet, load, "b", "c")
    assert load.errors == []


async def test_pods_of_a_new_template_serve_when_the_old_ones_go_and_nothing_is_lost(
    gateway: Gateway,
) -> None:
    """A rollout with a surge of one: never fewer than two that get requests, and never a third."""
    fleet = Fleet(gateway)
    await fleet.ready("old-1", "old-2", "old-3")
    load = Load(await gateway.start(a_model_access(), fleet.backend(2, 1)), CTR)
    async with load.running():
        for number in (1, 2, 3):
            await fleet.ready(f"new-{number}")
            await fleet.push(2, 1)
            assert len(fleet.backend(2, 1).endpoints) == 2
            fleet.pods[f"old-{number}"] = replace(fleet.pods[f"old-{number}"], terminating=True)
            await fleet.push(2, 1)
            assert len(fleet.backend(2, 1).endpoints) == 2
            await load.answered(40)
        await _asked_of(fleet, load, "new-1", "new-2")
    assert load.errors == []


async def test_the_gateway_knows_as_many_hosts_as_are_to_get_requests(gateway: Gateway) -> None:
    fleet = Fleet(gateway)
    await fleet.ready("a", "b", "c")
    await gateway.start(a_model_access(), fleet.backend(1, 2))
    name = "cluster.inference/ads/ctr/grpc.membership_total"

    async def hosts(expected: int) -> None:
        async def so_many() -> bool:
            return await gateway.envoy.stat(name) == expected

        await eventually(so_many, f"{expected} hosts")

    await hosts(1)
    await fleet.push(3, 0)
    await hosts(3)
    await fleet.push(2, 1)
    await hosts(2)
