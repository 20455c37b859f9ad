"""What the controllers keep of GPUs and claims, and what they do about the claims of a pool: fed as watches feed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from builders.compute_pool import compute_pool_body, gpu_slice_body, node_body
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError, PermanentError
from tidegate.kube import kinds
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.kube.pool_views import PoolViews
from tidegate.planning.placement import Placing
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, SLICES_LABEL
from tidegate.resources.pod import SLICE_GATE
from tidegate.resources.sharing.shared_claim import claim_name
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.gpus import Gpus
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolParts
from tidegate_controllers.shared_claims import NOT_ENABLED, SharedClaims
from tidegate_controllers.stores import Stores

MPS = {"backend": "SharedClaim", "slicesPerGPU": 2, "cpu": "1", "memory": "1Gi"}
FIRST, SECOND = claim_name("gpu-a", 2, 0), claim_name("gpu-a", 2, 1)
OURS = {"app.kubernetes.io/managed-by": "tidegate", POOL_LABEL: "gpu-a"}


class Api:
    """Keeps what was written."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[str] = []
        self.refused: dict[str, Exception] = {}
        """What the API server answers to a call instead of taking it."""

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.refused:
            raise self.refused[what]

    async def get(self, kind: Kind, key: ObjectKey) -> Mapping[str, Any] | None:
        return self.world.stores.of(kind).get(key)

    async def apply(self, manifest: Mapping[str, Any], fence: Fence) -> Mapping[str, Any]:
        del fence
        self._call(f"make {manifest['metadata']['name']}")
        return self.world.stamped({**manifest, "metadata": {**manifest["metadata"], "uid": "made"}})

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        del fence
        assert kind is kinds.RESOURCE_CLAIM
        self._call(f"delete {key.name} {uid}")

    async def merge(
        self, kind: Kind, key: ObjectKey, patch: Mapping[str, Any], fence: Fence
    ) -> Mapping[str, Any] | None:
        del fence
        assert kind is kinds.POD
        self._call(f"admit {key.name}")
        body = self.world.stores.pods.get(key)
        assert body is not None
        assert patch["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
        return self.world.stamped({**body, "spec": {**body["spec"], **patch["spec"]}})


class World:
    """One pool with a node of two GPUs of two slices each."""

    def __init__(self) -> None:
        self.stores, self.gpus, self.api = Stores(), Gpus(cast(Any, None)), Api(self)
        self.inferences = Parsed(Inference, self.stores.inferences)
        ownership, self.pools = Ownership(self.stores), Parsed(ComputePool, self.stores.pools)
        self.occupancy = Occupancy(self.stores.pods, ownership.owns_pod)
        self.views = PoolViews(self.pools, self.occupancy, self.gpus)
        parts = PoolParts(self.pools, self.views, self.occupancy, ownership, self.gpus)
        self.placements = Placements(parts, self.inferences, self.stores)
        self.claims = SharedClaims(self.gpus, self.placements, self.stores.pods)
        self.woken: list[str] = []
        self.claims.subscribe(lambda key: self.woken.append(key.name))
        self._version = 0
        self.occupancy.begin()
        self.has(self.stores.pools, compute_pool_body("gpu-a", slice={"cpu": None, "mps": MPS}))
        self.has(self.occupancy._nodes, node_body("gpu-0", cpu="64", memory="256Gi"))
        self.publish(2)
        self.has(self.gpus._classes, {"metadata": {"name": "gpu.nvidia.com"}})
        self.listed()

    def listed(self) -> None:
        for reflector in self.gpus._reflectors:
            reflector.settled.set()
            reflector._store.synced.set()

    def stamped(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._version += 1
        metadata = {"uid": f"uid-{body['metadata']['name']}", **body["metadata"]}
        return {**body, "metadata": {**metadata, "resourceVersion": str(self._version)}}

    def has(self, store: Any, body: Mapping[str, Any], *, gone: bool = False) -> None:
        store.observe("DELETED" if gone else "MODIFIED", self.stamped(body))

    def publish(self, count: int, name: str = "gpu-0", generation: int = 1, *, gone: bool = False) -> None:
        body = gpu_slice_body("gpu-0", count, generation=generation)
        self.has(self.gpus._slices, {**body, "metadata": {"name": name}}, gone=gone)

    def claim(self, name: str, device: str = "", *, ours: bool = True, gone: bool = False) -> None:
        result = {"driver": "gpu.nvidia.com", "pool": "gpu-0", "device": device, "request": "gpu"}
        status = {"allocation": {"devices": {"results": [result]}}} if device else {}
        metadata = {"name": name, "namespace": "ads", "uid": f"uid-{name}", "labels": OURS if ours else {}}
        self.has(self.gpus.claims, {"metadata": metadata, "spec": {}, "status": status}, gone=gone)

    @property
    def pool(self) -> ComputePool:
        found = self.pools.get(ObjectKey("", "gpu-a"))
        assert found is not None
        return found

    def inference(self, name: str, replicas: int) -> None:
        placement = {"pool": "gpu-a", "slices": 1}
        body = inference_body(name, "ads", placement=placement, replicas=replicas)
        self.has(self.stores.inferences, body)

    def of(self, name: str) -> Placing:
        inference = self.inferences.get(ObjectKey("ads", name))
        assert inference is not None
        placing = self.placements.of(inference)
        assert placing is not None
        return placing

    def given(self, name: str) -> tuple[str, int]:
        placing = self.of(name)
        assert placing.seat is not None
        return placing.seat.gpu_claim, placing.replicas

    def labels(self, name: str) -> dict[str, str]:
        return {**OURS, INFERENCE_LABEL: name, SLICES_LABEL: "1", "tidegate.io/tier": "realtime"}

    def deployment(self, name: str, claim: str, replicas: int) -> None:
        labels, spec = self.labels(name), self.spec(claim)
        body = {
            "metadata": {"name": f"inf-{name}", "namespace": "ads", "labels": labels, **of_inference(name)},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }
        self.has(self.stores.deployments, body)

    def pod(self, name: str, number: int, claim: str, *, waits: bool = True, gone: bool = False) -> None:
        gates = {"schedulingGates": [{"name": "other"}, {"name": SLICE_GATE}]} if waits else {}
        spec = {**self.spec(claim), **gates, **({} if waits else {"nodeName": "gpu-0"})}
        metadata = {"name": f"{name}-{number}", "namespace": "ads"}
        metadata |= of_deployment(f"inf-{name}", self.labels(name))
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending" if waits else "Running"}}
        self.has(self.stores.pods, body, gone=gone)

    @staticmethod
    def spec(claim: str) -> dict[str, Any]:
        return {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}], "containers": []}

    async def carry_out(self) -> list[str]:
        self.api.calls.clear()
        writer = Writer(cast(Any, self.api), self.stores, Fence.unlimited(1))
        await self.claims.carry_out(
            self.pool, self.claims.plan(self.pool), self.views.slices(self.pool), writer
        )
        return list(self.api.calls)


def test_gpus_are_those_of_the_newest_slices_with_who_has_them() -> None:
    world = World()
    assert [gpu.claim for gpu in world.gpus.of("gpu-0")] == [None, None]
    world.claim(FIRST, "gpu-1")
    world.claim("theirs", "gpu-0", ours=False)
    owners = [(gpu.claim and gpu.claim.name, gpu.pool) for gpu in world.gpus.of("gpu-0")]
    assert owners == [("theirs", ""), (FIRST, "gpu-a")]
    world.publish(3, name="newer", generation=2)
    assert len(world.gpus.of("gpu-0")) == 3
    world.publish(2, gone=True)
    world.claim(FIRST, "gpu-1", gone=True)
    assert [gpu.pool for gpu in world.gpus.of("gpu-0")] == ["", "", ""]
    assert world.gpus.of("gpu-9") == ()


def test_a_listing_that_gives_a_gpu_to_another_claim_leaves_it_with_that_one() -> None:
    """What a watch missed: the first claim went, and the second one has its GPU."""
    world = World()
    world.claim(FIRST, "gpu-1")
    first = world.gpus.claims.get(ObjectKey("ads", FIRST))
    assert first is not None
    second = world.stamped({**first, "metadata": {**first["metadata"], "name": SECOND}})
    world.gpus.claims.replace([second])
    assert [gpu.claim and gpu.claim.name for gpu in world.gpus.of("gpu-0")] == [None, SECOND]
    world.claim(SECOND, "gpu-1", gone=True)
    assert [gpu.claim for gpu in world.gpus.of("gpu-0")] == [None, None]


def test_slices_of_the_pool_follow_gpus_and_claims() -> None:
    world = World()
    assert world.views.slices(world.pool).total == 4
    world.claim("theirs", "gpu-0", ours=False)
    assert world.views.slices(world.pool).total == 2
    world.claim("theirs", ours=False)
    assert world.views.slices(world.pool).total == 4


def test_what_is_missing_is_said_with_the_way_out() -> None:
    world = World()
    assert world.claims.missing(world.pool) == ""
    world.has(world.gpus._classes, {"metadata": {"name": "gpu.nvidia.com"}}, gone=True)
    assert "there is no DeviceClass gpu.nvidia.com" in world.claims.missing(world.pool)
    world.gpus._reflectors[0].absent = True
    assert "SharedClaim needs Kubernetes 1.34 or later" in world.claims.missing(world.pool)
    disabled = SharedClaims(None, world.placements, world.stores.pods)
    assert disabled.missing(world.pool) == NOT_ENABLED
    assert disabled.known(world.pool)
    world.has(world.stores.pools, compute_pool_body("gpu-a"))
    assert world.claims.missing(world.pool) == disabled.missing(world.pool) == ""


def test_a_slice_of_a_gpu_is_given_once_before_and_after_it_is_written() -> None:
    world = World()
    world.inference("a", 1)
    world.inference("b", 2)
    world.inference("c", 2)
    assert world.given("a") == (FIRST, 1)
    assert world.given("b") == (SECOND, 2)
    assert world.given("c")[0] == FIRST
    assert world.given("c")[1] == 1
    assert set(world.woken) == {"gpu-a"}

    for name, claim, replicas in (("a", FIRST, 1), ("b", SECOND, 2), ("c", FIRST, 1)):
        world.deployment(name, claim, replicas)
        world.placements.forget(ObjectKey("ads", name))
    assert [world.given(name) for name in "cba"] == [(FIRST, 1), (SECOND, 2), (FIRST, 1)]


def test_another_process_gives_the_same() -> None:
    worlds = World(), World()
    for world in worlds:
        world.deployment("b", SECOND, 2)
        world.deployment("a", FIRST, 1)
        for name in "ab":
            world.inference(name, 2)
    assert worlds[0].given("a") == worlds[1].given("a") == (FIRST, 2)
    assert [world.given("b") for world in worlds] == [(SECOND, 2)] * 2


async def test_claims_are_made_before_pods_are_let_in_and_no_pod_is_let_in_twice() -> None:
    world = World()
    world.inference("a", 2)
    world.of("a")
    assert await world.carry_out() == [f"make {FIRST}"]
    world.deployment("a", FIRST, 2)
    for number in range(3):
        world.pod("a", number, FIRST)
    assert await world.carry_out() == ["admit a-0", "admit a-1"]
    kept = world.stores.pods.get(ObjectKey("ads", "a-0"))
    assert kept is not None
    assert kept["spec"]["schedulingGates"] == [{"name": "other"}]
    # The watch has not said so yet, and nobody else is let in.
    assert await world.carry_out() == []
    world.pod("a", 0, FIRST, waits=False, gone=True)
    assert await world.carry_out() == ["admit a-2"]


async def test_a_claim_of_nobody_is_deleted_and_none_is_made_without_a_gpu() -> None:
    world = World()
    world.claim(SECOND, "gpu-1")
    assert await world.carry_out() == [f"delete {SECOND} uid-{SECOND}"]
    world.inference("a", 2)
    world.of("a")
    world.publish(2, gone=True)
    assert "make" not in " ".join(await world.carry_out())


async def test_what_is_refused_keeps_nobody_else_waiting_and_is_said() -> None:
    world = World()
    for name in "ab":
        world.inference(name, 2)
        world.of(name)
    world.claim(claim_name("gpu-a", 2, 7))
    world.claim(SECOND)
    world.deployment("b", SECOND, 2)
    world.pod("b", 0, SECOND)
    world.pod("b", 1, SECOND)
    third, nobodys = f"make {FIRST}", f"delete {claim_name('gpu-a', 2, 7)} uid-{claim_name('gpu-a', 2, 7)}"
    world.api.refused = {
        third: PermanentError("exceeded quota: claims"),
        "admit b-0": ConflictError("pod b-0 was changed"),
        nobodys: PermanentError("may not"),
    }
    with pytest.raises(ConflictError, match="b-0"):
        await world.carry_out()
    assert world.api.calls == ["admit b-0", "admit b-1", nobodys, third]
    del world.api.refused["admit b-0"], world.api.refused[nobodys]
    await world.carry_out()
    said = world.claims.refused(world.pool)
    assert f"the API server refuses ResourceClaim ads/{FIRST}" in said
    assert "exceeded quota: claims; raise the quota" in said
    world.api.refused.clear()
    await world.carry_out()
    assert world.claims.refused(world.pool) == ""
