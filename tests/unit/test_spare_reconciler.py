"""The reconciler of shared spares over caches: what it creates, orders, writes for gateways and deletes, and in which order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from builders.compute_pool import compute_pool_body
from builders.fake_clock import FakeClock
from builders.inference import an_inference
from builders.ownership import of_deployment
from builders.placement_world import PlacementWorld
from builders.rollout_world import SETTINGS
from tidegate.api.meta import ObjectKey
from tidegate.api.shared_spares import SharedSparesStatus
from tidegate.errors import ApiUnavailableError, LeadershipLostError, PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.planning.allocator.spare_plan import PlannedSpare, PoolSparePlan
from tidegate.planning.pods import PodView
from tidegate.resources.inference import build_inference_objects, hash_source, make_desired_state
from tidegate_controllers.applier import Applier
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.reconcilers.shared_spares import SharedSparesReconciler
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_dataplane.contract import AgentPhase, AgentReport, SharedOrders, SharedReports

POOL = ObjectKey("", "cpu-a")
SPARE = PlannedSpare("spare-cpu-a-0", "ads", 0, "node-a", 1, ("ctr", "cvr"), "because")


class World(PlacementWorld):
    """A pool with a plan, two Inferences, an API server and the agent of a spare; `log` has what was done to the pod."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, object]] = []
        self.serving: Mapping[str, int] | None = {}
        self.newer_leader = False
        """Whether its agent says so."""
        self.refused: set[str] = set()
        """Namespaces in which the API server refuses everything."""
        self.interrupted: set[str] = set()
        """Namespaces in which it does not answer."""
        self.clock = FakeClock()
        self.leads_until = 1.0
        fence = Fence(7, deadline=lambda: self.leads_until, monotonic=lambda: 0.0)
        self.spares = SharedSpares(self.stores, Ownership(self.stores), self.placements)
        self.reconciler = SharedSparesReconciler(
            applier=Applier(cast(Any, self), self.stores, fence),
            agents=cast(Any, self),
            pools=self.pools,
            inferences=self.inferences,
            spares=self.spares,
            settings=lambda: SETTINGS,
            clock=self.clock,
        )
        for name in SPARE.models:
            self.commit(name, 3)
        self.plan(SPARE)

    def plan(self, *spares: PlannedSpare) -> None:
        self.spares.put_plan(POOL, PoolSparePlan(spares))

    def commit(self, name: str, version: int) -> None:
        """An Inference whose replicas all serve this version."""
        inference = an_inference(name, model={"version": str(version)})
        self.has(self.stores.inferences, inference.dump())
        assert hash_source(inference)
        start = make_desired_state(inference, SETTINGS, epoch=1).to_json()
        config_map, *_ = build_inference_objects(inference, SETTINGS, start)
        self.has(self.stores.config_maps, dict(config_map))

    def start_pod(self) -> None:
        """The pod of the spare's Deployment, as Kubernetes makes it."""
        [deployment] = self.stores.deployments
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        metadata = {"name": "spare-x", "namespace": "ads", **of_deployment("spare-cpu-a-0", labels)}
        status = {
            "podIP": "10.0.0.9",
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        spec = {"nodeName": "node-a", "containers": []}
        self.has(self.stores.pods, {"metadata": metadata, "spec": spec, "status": status})

    async def reconcile(self) -> timedelta | None:
        self.log.clear()
        return await self.reconciler.reconcile_spares(POOL)

    def status(self) -> SharedSparesStatus:
        status = self.spares.get_status(POOL, None)
        assert status is not None
        return status

    # The agent.

    async def send_shared_orders(self, pod: PodView, orders: SharedOrders) -> SharedReports | None:
        if self.newer_leader:
            message = "the agent has orders of a newer leader"
            raise LeadershipLostError(message)
        self.log.append(("ordered", {order.owner: order.version for order in orders.orders}))
        assert orders.epoch == 7
        if self.serving is None:
            return None
        reports = {
            f"ads/{name}": AgentReport(
                pod="p", epoch=7, generation=1, phase=AgentPhase.READY, serving=version
            )
            for name, version in self.serving.items()
        }
        return SharedReports(pod=pod.key.name, epoch=7, reports=reports)

    # The API server.

    async def get(self, kind: Kind, key: ObjectKey) -> Any:
        return self.stores.get_store(kind).get(key)

    async def apply_new(self, manifest: Any, fence: Fence) -> Any:
        return await self.apply(manifest, fence)

    def check(self, namespace: str) -> None:
        if namespace in self.refused:
            message = f"namespace {namespace}: exceeded quota"
            raise PermanentError(message)
        if namespace in self.interrupted:
            message = f"namespace {namespace}: no answer"
            raise ApiUnavailableError(message)

    async def apply(self, manifest: Any, fence: Fence) -> Any:
        self.check(manifest["metadata"]["namespace"])
        self._version += 1
        metadata = {**manifest["metadata"], "uid": f"uid-{manifest['metadata']['name']}"}
        return {**manifest, "metadata": {**metadata, "resourceVersion": str(self._version)}}

    async def merge(self, kind: Kind, key: ObjectKey, patch: Any, fence: Fence) -> Any:
        self.check(key.namespace)
        [annotation] = patch["metadata"]["annotations"].items()
        self.log.append(annotation)
        body: Any = self.stores.pods.get(key)
        self._version += 1
        annotations = {**(body["metadata"].get("annotations") or {}), **patch["metadata"]["annotations"]}
        metadata = {**body["metadata"], "annotations": annotations, "resourceVersion": str(self._version)}
        return {**body, "metadata": metadata}

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        self.check(key.namespace)
        self.log.append(("deleted", f"{kind.kind} {key.name}"))


ANNOTATION = "tidegate.io/shared-models"


def served(**versions: int) -> str:
    """The annotation: Inferences with their versions and the hash that the labels of their own pods have."""
    return ",".join(
        f"{name}={version}@{hash_source(an_inference(name))}" for name, version in versions.items()
    )


async def test_a_spare_is_created_and_its_models_get_requests_once_they_are_loaded() -> None:
    world = World()
    # Its pod's events tell when there is an agent to ask.
    assert await world.reconcile() == timedelta(seconds=10)
    assert [body["metadata"]["name"] for body in world.stores.deployments] == ["spare-cpu-a-0"]
    assert world.status().spares[0].problem == "it has no pod yet"
    world.start_pod()
    assert await world.reconcile() == timedelta(seconds=1)
    assert world.log == [("ordered", {"ads/ctr": 3, "ads/cvr": 3})]
    assert "ctr: version 3 is not ordered yet" in world.status().spares[0].problem

    world.serving = {"ctr": 3}
    await world.reconcile()
    assert world.log[1:] == [(ANNOTATION, served(ctr=3))]
    world.serving = {"ctr": 3, "cvr": 3}
    assert await world.reconcile() == timedelta(seconds=10)
    assert world.log[1:] == [(ANNOTATION, served(ctr=3, cvr=3))]
    assert [model.version for model in world.status().spares[0].models] == ["3", "3"]
    assert [live.serving for live in world.spares.list_live(POOL)] == [{"ctr": 3, "cvr": 3}]
    await world.reconcile()
    assert world.log == [("ordered", {"ads/ctr": 3, "ads/cvr": 3})]


async def test_an_agent_that_says_another_leads_delays_no_other_spare() -> None:
    world = World()
    await world.reconcile()
    world.start_pod()
    world.newer_leader = True
    assert await world.reconcile() == timedelta(seconds=1)
    assert "a newer leader" in world.status().spares[0].problem

    world.leads_until = 0.0
    with pytest.raises(LeadershipLostError):
        await world.reconcile()


async def a_serving_world() -> World:
    world = World()
    await world.reconcile()
    world.start_pod()
    world.serving = {"ctr": 3, "cvr": 3}
    await world.reconcile()
    return world


async def test_gateways_leave_a_model_out_before_its_spare_is_told_to_unload_it_or_to_change_its_version() -> (
    None
):
    world = await a_serving_world()
    world.commit("ctr", 4)
    assert await world.reconcile() == timedelta(seconds=1)
    # Gateways learn of it later than the API server.
    assert world.log == [(ANNOTATION, served(cvr=3))]
    [spare] = world.status().spares
    assert spare.problem == "pod spare-x: gateways stop sending before models are unloaded"
    assert [model.version for model in spare.models] == ["", "3"]
    await world.clock.advance(1.9)
    await world.reconcile()
    assert world.log == []
    await world.clock.advance(0.1)
    await world.reconcile()
    assert world.log == [("ordered", {"ads/ctr": 4, "ads/cvr": 3})]
    world.serving = {"ctr": 4, "cvr": 3}
    await world.reconcile()
    assert world.log[1:] == [(ANNOTATION, served(ctr=4, cvr=3))]

    world.plan(replace(SPARE, models=("ctr",)))
    await world.reconcile()
    assert world.log == [(ANNOTATION, served(ctr=4))]
    await world.clock.advance(2)
    await world.reconcile()
    assert world.log == [("ordered", {"ads/ctr": 4})]


async def test_a_namespace_that_refuses_everything_stops_no_other() -> None:
    world = World()
    world.refused.add("aaa")
    other = replace(SPARE, namespace="aaa", models=("rank",))
    world.plan(other, SPARE)
    await world.reconcile()
    assert [body["metadata"]["namespace"] for body in world.stores.deployments] == ["ads"]
    refused, created = world.status().spares
    assert "exceeded quota" in refused.problem
    assert created.problem == "it has no pod yet"

    world.refused.clear()
    await world.reconcile()
    assert len(world.stores.deployments) == 2
    world.refused.add("aaa")
    world.plan()
    await world.reconcile()
    assert world.log[0] == ("deleted", "Deployment spare-cpu-a-0")


async def test_an_api_server_that_fails_for_one_namespace_stops_no_other_and_is_asked_again() -> None:
    world = await a_serving_world()
    # A stale object of one namespace, and a spare of another that cannot be written.
    world.plan(replace(SPARE, namespace="bbb", models=("rank",)))
    await world.reconcile()
    world.plan(replace(SPARE, namespace="aaa", models=("rank",)), SPARE)
    world.interrupted |= {"aaa", "bbb"}
    with pytest.raises(ApiUnavailableError, match="namespace bbb: no answer"):
        await world.reconcile()
    assert world.log == [("ordered", {"ads/ctr": 3, "ads/cvr": 3})]
    failed, other = world.status().spares
    assert (failed.problem, other.problem) == ("namespace aaa: no answer", "")
    world.interrupted.clear()
    await world.reconcile()
    assert ("deleted", "Deployment spare-cpu-a-0") in world.log
    assert world.status().spares[0].problem == "it has no pod yet"


async def test_no_order_is_sent_while_gateways_cannot_be_told_what_it_unloads() -> None:
    world = await a_serving_world()
    world.commit("ctr", 4)
    world.refused.add("ads")
    await world.reconcile()
    assert world.log == []
    assert world.status().spares[0].problem


async def test_an_edited_order_concerns_its_own_model_only() -> None:
    world = await a_serving_world()
    [body] = [body for body in world.stores.config_maps if body["metadata"]["name"].startswith("inf-cvr")]
    for field, value in (("owner", "ads/ctr"), ("model", "ctr")):
        edited = json.loads(body["data"]["desired.json"])
        edited[field] = value
        world.has(world.stores.config_maps, {**body, "data": {"desired.json": json.dumps(edited)}})
        await world.reconcile()
        await world.clock.advance(2)
        await world.reconcile()
        assert world.log[-1] == ("ordered", {"ads/ctr": 3})
        assert "cvr: it has committed no version" in world.status().spares[0].problem


async def test_another_model_under_the_same_number_gets_no_requests_before_it_is_loaded() -> None:
    world = await a_serving_world()
    # The agent's report of version 3 is that of the model before, until it has taken the order.
    moved = an_inference("ctr", model={"version": "3", "uri": "s3://models/other"})
    world.has(world.stores.inferences, moved.dump())
    await world.reconcile()
    assert world.log == [(ANNOTATION, served(cvr=3))]
    await world.clock.advance(2)
    await world.reconcile()
    assert world.log == [("ordered", {"ads/cvr": 3})]


async def test_a_silent_agent_keeps_what_gateways_have_and_is_named() -> None:
    world = await a_serving_world()
    world.serving = None
    assert await world.reconcile() == timedelta(seconds=1)
    assert world.log == [("ordered", {"ads/ctr": 3, "ads/cvr": 3})]
    assert "the agent of pod spare-x does not answer" in world.status().spares[0].problem


async def test_a_spare_that_is_not_planned_any_more_is_deleted_with_its_config_map() -> None:
    world = await a_serving_world()
    world.plan()
    assert await world.reconcile() is None
    [deployment, config_map] = world.log
    assert deployment == ("deleted", "Deployment spare-cpu-a-0")
    assert str(config_map[1]).startswith("ConfigMap spare-cpu-a-0-")
    assert world.spares.get_status(POOL, None) is None


async def test_nothing_is_done_before_the_allocator_has_planned_and_for_a_pool_that_goes() -> None:
    world = World()
    world.spares.forget_plans()
    assert await world.reconcile() is None
    world.plan(SPARE)
    gone = compute_pool_body("cpu-a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    world.has(world.stores.pools, gone)
    assert await world.reconcile() is None
    assert len(world.stores.deployments) == 0
