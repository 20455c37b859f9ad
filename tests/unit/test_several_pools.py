"""An Inference in several pools: who runs where, which Deployment is whose, and what happens to a pool that it leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.compute_pool import a_compute_pool
from builders.conditions import find_condition
from builders.inference import an_inference
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference, Placement
from tidegate.api.reasons import Reason
from tidegate.planning.access.backends import build_inference_backend, weigh_pools
from tidegate.planning.inference.deployments import DeploymentView, parse_deployment
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.planning.pools.placement import PlacementResult, place_without_pool
from tidegate.planning.pools.spill_over import DividedReplicas, divide_replicas, merge_placements
from tidegate.resources.inference import hash_source
from tidegate.resources.names import make_pool_deployment_name
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import make_slice_resources
from tidegate.routing.envoy.endpoints import TYPE, encode_endpoints
from tidegate.routing.ir import EndpointPool, InferenceProtocol
from tidegate.routing.protos import decode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
FULL = Verdict(False, Reason.POOL_FULL, "ComputePool cpu-a gives 2 of 3 replicas their 1 slice", stalled=True)
OWN_B = make_pool_deployment_name("ctr", "cpu-b")


def in_pools(*pools: str, replicas: int = 3, **spec: Any) -> Inference:
    return an_inference(replicas=replicas, placement={"pools": [{"name": pool} for pool in pools]}, **spec)


def gives(pool: str, replicas: int, verdict: Verdict | None = None, slices: int = 1) -> PlacementResult:
    """What a pool gives."""
    body = a_compute_pool(pool, nodeSelector={"pool": pool})
    resources = make_slice_resources(body, slices, in_pools("cpu-a").spec.tier)
    verdict = verdict or Verdict(True, Reason.PLACED, f"ComputePool {pool} gives {replicas}")
    return PlacementResult(resources, replicas, verdict, replicas, pool)


class World:
    """The Deployments and pods of one Inference, as Kubernetes would have them after each plan."""

    def __init__(self) -> None:
        self.given_pods: Sequence[PodView] | None = None
        """Its pods, if they are not what the Deployments make."""
        self.deployments: dict[str, dict[str, Any]] = {}
        self.ready: dict[str, int] = {}
        """Ready pods by Deployment; by default all of them."""
        self.plan: ReconcilePlan

    def reconcile(self, inference: Inference, *results: PlacementResult) -> ReconcilePlan:
        placement = merge_placements(results, inference.spec.replicas) if results else None
        pods = self.pods(inference)
        observed = InferenceObserved(
            inference,
            NOW,
            epoch=1,
            pods=pods,
            reports={pod.uid: a_report(1) for pod in pods if pod.ready},
            deployments=[self._view(name) for name in self.deployments],
            placement=placement,
        )
        self.plan = plan_inference(observed, SETTINGS)
        for manifest in self.plan.apply:
            body: Any = json.loads(json.dumps(manifest))
            if body["kind"] == "Deployment":
                self.deployments[body["metadata"]["name"]] = body
        for deletion in self.plan.delete:
            if deletion.kind == "Deployment":
                assert deletion.uid == f"uid-{deletion.key.name}"
                del self.deployments[deletion.key.name]
        return self.plan

    @property
    def replicas(self) -> Mapping[str, int]:
        return {name: body["spec"]["replicas"] for name, body in self.deployments.items()}

    def applied(self, name: str) -> Any:
        return self.deployments[name]

    def template_hash(self, name: str) -> str:
        return self._view(name).digest

    def pods(self, inference: Inference) -> Sequence[PodView]:
        if self.given_pods is not None:
            return self.given_pods
        found: list[PodView] = []
        for name, body in self.deployments.items():
            view, count = self._view(name), body["spec"]["replicas"]
            ready = self.ready.get(name, count)
            for number in range(count):
                pod = a_pod(
                    f"{name}-{number}",
                    source=hash_source(inference),
                    template=view.digest,
                    ready=number < ready,
                )
                found.append(replace(pod, pool=view.pool))
        return found

    def _view(self, name: str) -> DeploymentView:
        body: Any = self.deployments[name]
        replicas = body["spec"]["replicas"]
        progress = {"type": "Progressing", "reason": "NewReplicaSetAvailable", "status": "True"}
        status = {
            "readyReplicas": replicas,
            "replicas": replicas,
            "updatedReplicas": replicas,
            "conditions": [progress],
        }
        metadata = {**body["metadata"], "uid": f"uid-{name}"}
        return parse_deployment({**body, "metadata": metadata, "status": status})


@pytest.mark.parametrize(
    ("replicas", "running", "staying", "pending"),
    [
        (3, (0, 0), (0, 0), 3),
        (3, (2, 1), (2, 1), 0),
        # A replica in the second pool stays there, although the first one may have room.
        (3, (0, 3), (0, 3), 0),
        (5, (2, 1), (2, 1), 2),
        # Fewer: the last pools give first.
        (2, (2, 1), (2, 0), 0),
        (1, (2, 1), (1, 0), 0),
        (0, (2, 1), (0, 0), 0),
        # A Deployment that a person has scaled takes no other pool's part beyond the spec.
        (3, (99, 1), (3, 0), 0),
    ],
)
def test_replicas_that_run_stay_and_a_surplus_ends_in_the_last_pool(
    replicas: int, running: tuple[int, ...], staying: tuple[int, ...], pending: int
) -> None:
    assert divide_replicas(replicas, running) == DividedReplicas(staying, pending)


def test_defaults_of_a_pool_are_those_of_the_placement() -> None:
    placement = Placement.model_validate(
        {
            "slices": 2,
            "pools": [{"name": "a"}, {"name": "b", "slices": 1}, {"name": "c", "relativeCapacity": "2.5"}],
        }
    )
    shares = [(share.name, share.slices, share.relative_capacity) for share in placement.pool_shares]
    assert shares == [("a", 2, 1.0), ("b", 1, 0.5), ("c", 2, 2.5)]
    one = Placement(pool="a", slices=3)
    assert [(share.name, share.slices, share.relative_capacity) for share in one.pool_shares] == [
        ("a", 3, 1.0)
    ]


def test_each_pool_has_a_deployment_with_its_own_nodes() -> None:
    world = World()
    world.reconcile(in_pools("cpu-a", "cpu-b"), gives("cpu-a", 2, FULL), gives("cpu-b", 1))

    assert world.replicas == {"inf-ctr": 2, OWN_B: 1}
    bare, own = world.applied("inf-ctr"), world.applied(OWN_B)
    for body, pool in ((bare, "cpu-a"), (own, "cpu-b")):
        assert body["metadata"]["labels"]["tidegate.io/pool"] == pool
        assert body["spec"]["template"]["spec"]["nodeSelector"] == {"pool": pool}
        assert body["spec"]["template"]["metadata"]["labels"]["tidegate.io/pool"] == pool
    assert bare["spec"]["selector"]["matchLabels"] == {"tidegate.io/inference": "ctr"}
    assert own["spec"]["selector"]["matchLabels"] == {
        "tidegate.io/inference": "ctr",
        "tidegate.io/pool": "cpu-b",
    }
    volumes = [body["spec"]["template"]["spec"]["volumes"] for body in (bare, own)]
    assert volumes[0] == volumes[1], "both read one ConfigMap"
    kinds = [manifest["kind"] for manifest in world.plan.apply]
    assert kinds == ["ConfigMap", "Deployment", "Deployment", "PodDisruptionBudget"]


def test_a_second_pool_and_another_order_restart_no_pod() -> None:
    world = World()
    world.reconcile(an_inference(replicas=3, placement={"pool": "cpu-a"}), gives("cpu-a", 3))
    before = world.template_hash("inf-ctr")

    world.reconcile(in_pools("cpu-a", "cpu-b"), gives("cpu-a", 3), gives("cpu-b", 0))
    assert world.replicas == {"inf-ctr": 3}, "a pool without replicas has no Deployment"
    world.reconcile(in_pools("cpu-b", "cpu-a"), gives("cpu-b", 0), gives("cpu-a", 3))
    assert world.replicas == {"inf-ctr": 3}
    world.reconcile(in_pools("cpu-b", "cpu-a", replicas=4), gives("cpu-b", 1), gives("cpu-a", 3))
    assert world.replicas == {"inf-ctr": 3, OWN_B: 1}
    assert world.template_hash("inf-ctr") == before


def test_the_status_has_the_replicas_of_each_pool() -> None:
    world, inference = World(), in_pools("cpu-a", "cpu-b")
    given = gives("cpu-a", 2, FULL), gives("cpu-b", 1)
    world.reconcile(inference, *given)
    world.ready[OWN_B] = 0
    status: Any = world.reconcile(inference, *given).status

    assert status["pools"] == [
        {"name": "cpu-a", "replicas": 2, "readyReplicas": 2},
        {"name": "cpu-b", "replicas": 1, "readyReplicas": 0},
    ]
    assert status["poolSummary"] == "cpu-a 2/2, cpu-b 0/1"
    assert find_condition(world.plan, "Placed")["status"] == "True"
    assert "2 in ComputePool cpu-a, 1 in ComputePool cpu-b" in find_condition(world.plan, "Placed")["message"]
    ready = find_condition(world.plan, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Loading")

    del world.ready[OWN_B]
    world.reconcile(inference, *given)
    assert find_condition(world.plan, "Ready")["status"] == "True"


def test_a_pod_without_a_node_is_named_with_its_pool() -> None:
    world, inference = World(), in_pools("cpu-a", "cpu-b")
    given = gives("cpu-a", 2, FULL), gives("cpu-b", 1)
    world.reconcile(inference, *given)
    *ready, last = world.pods(inference)
    last = replace(last, address=None, ready=False, unschedulable="0/2 nodes are available: taints.")
    world.given_pods = [*ready, last]

    for kind in ("Ready", "Placed"):
        condition = find_condition(world.reconcile(inference, *given), kind)
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
        assert condition["message"].startswith(f"in ComputePool cpu-b: pod {last.key.name}: 0/2 nodes")


def test_with_one_pool_the_status_says_nothing_of_pools() -> None:
    plan = World().reconcile(an_inference(placement={"pool": "cpu-a"}), gives("cpu-a", 1))
    assert "poolSummary" not in plan.status
    assert plan.status["pools"] == []


def test_all_pools_full_is_not_placed_and_names_them() -> None:
    second = Verdict(
        False, Reason.POOL_FULL, "ComputePool cpu-b gives 0 of 1 replicas their 1 slice", stalled=True
    )
    plan = World().reconcile(in_pools("cpu-a", "cpu-b"), gives("cpu-a", 2, FULL), gives("cpu-b", 0, second))

    placed = find_condition(plan, "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "PoolFull")
    assert placed["message"].startswith("2 of 3 replicas have slices (2 in ComputePool cpu-a): ")
    assert "ComputePool cpu-a gives 2 of 3" in placed["message"]
    assert "ComputePool cpu-b gives 0 of 1" in placed["message"]


def test_a_pool_that_is_gone_keeps_its_pods_and_is_named() -> None:
    world, inference = World(), in_pools("cpu-a", "cpu-b")
    given = gives("cpu-a", 2, FULL), gives("cpu-b", 1)
    world.reconcile(inference, *given)
    world.reconcile(inference, *given)
    before = world.template_hash(OWN_B)

    gone = place_without_pool("cpu-b", 1, world._view(OWN_B))
    world.reconcile(inference, given[0], gone)

    assert world.replicas == {"inf-ctr": 2, OWN_B: 1}
    assert world.template_hash(OWN_B) == before
    placed = find_condition(world.plan, "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "PoolNotFound")
    assert "there is no ComputePool cpu-b; its 1 pods stay as they are" in placed["message"]
    assert find_condition(world.plan, "Ready")["status"] == "True", "what runs is as the spec asks"


def test_an_unknown_pool_takes_nothing_from_the_others() -> None:
    world = World()
    world.reconcile(in_pools("nowhere", "cpu-b"), place_without_pool("nowhere", 0, None), gives("cpu-b", 3))

    assert sum(world.replicas.values()) == 3
    assert find_condition(world.plan, "Placed")["reason"] == "PoolNotFound"


class TestAPoolThatLeavesTheList:
    def start(self) -> World:
        """Two replicas in each pool, all ready."""
        world, inference = World(), in_pools("cpu-a", "cpu-b", replicas=4)
        for _ in range(2):
            world.reconcile(inference, gives("cpu-a", 2, FULL), gives("cpu-b", 2))
        return world

    @pytest.mark.parametrize("asked", [{"pool": "cpu-a"}, {"pools": [{"name": "cpu-a"}]}])
    def test_its_pods_stay_until_others_are_ready(self, asked: Mapping[str, Any]) -> None:
        world, inference = self.start(), an_inference(replicas=4, placement=asked)
        world.ready = {"inf-ctr": 2}
        world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas == {"inf-ctr": 4, OWN_B: 2}
        world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas == {"inf-ctr": 4, OWN_B: 2}, "nothing is ready in their place"
        message = find_condition(world.plan, "Placed")["message"]
        assert (
            "pods outside the pools of spec.placement end as others become ready: 2 in ComputePool cpu-b"
            in message
        )

        world.ready = {"inf-ctr": 3}
        world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas == {"inf-ctr": 4, OWN_B: 1}, "one for one"
        world.ready = {}
        world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas == {"inf-ctr": 4, OWN_B: 0}
        world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas == {"inf-ctr": 4}, "deleted once its pods are gone"
        assert find_condition(world.plan, "Ready")["status"] == "True"

    def test_where_the_others_have_no_room_it_keeps_what_they_lack(self) -> None:
        world, inference = self.start(), in_pools("cpu-a", replicas=4)
        for _ in range(3):
            world.reconcile(inference, gives("cpu-a", 3, FULL))
        assert world.replicas == {"inf-ctr": 3, OWN_B: 1}

    def test_the_bare_name_may_be_the_one_that_ends(self) -> None:
        world, inference = self.start(), in_pools("cpu-b", replicas=4)
        before = world.template_hash(OWN_B)
        for _ in range(3):
            world.reconcile(inference, gives("cpu-b", 4))
        assert world.replicas == {OWN_B: 4}
        assert world.template_hash(OWN_B) == before

    def test_a_terminating_pod_keeps_the_deployment(self) -> None:
        world, inference = self.start(), in_pools("cpu-a", replicas=2)
        ends = replace(a_pod("ends", source="", ready=False, terminating=True), pool="cpu-b")
        world.given_pods = [ends]
        world.deployments[OWN_B]["spec"]["replicas"] = 0
        world.reconcile(inference, gives("cpu-a", 2))
        assert OWN_B in world.replicas
        world.given_pods = []
        world.reconcile(inference, gives("cpu-a", 2))
        assert OWN_B not in world.replicas

    def test_a_deployment_of_somebody_else_with_our_label_stays(self) -> None:
        world, inference = self.start(), in_pools("cpu-a", replicas=4)
        world.deployments[OWN_B]["metadata"]["ownerReferences"] = []
        for _ in range(3):
            world.reconcile(inference, gives("cpu-a", 4))
        assert world.replicas[OWN_B] == 2

    def test_pods_without_any_pool_end_too(self) -> None:
        world = World()
        world.reconcile(an_inference(replicas=2))
        inference = in_pools("cpu-a", "cpu-b", replicas=2)
        own_a = make_pool_deployment_name("ctr", "cpu-a")
        world.ready = {own_a: 0}
        for _ in range(2):
            world.reconcile(inference, gives("cpu-a", 2), gives("cpu-b", 0))
        assert world.replicas == {"inf-ctr": 2, own_a: 2}
        assert find_condition(world.plan, "Placed")["message"].endswith("ready: 2 outside pools")
        pools: Any = world.plan.status["pools"]
        assert [pool["name"] for pool in pools] == ["cpu-a", "cpu-b"]
        world.ready = {}
        for _ in range(2):
            world.reconcile(inference, gives("cpu-a", 2), gives("cpu-b", 0))
        assert world.replicas == {own_a: 2}

    def test_without_any_placement_it_ends_too(self) -> None:
        world, inference = self.start(), an_inference(replicas=4)
        for _ in range(3):
            world.reconcile(inference)
        assert world.replicas == {"inf-ctr": 4}


def test_one_pool_for_another_rolls_the_deployment_over_as_before() -> None:
    world = World()
    world.reconcile(an_inference(placement={"pool": "cpu-a"}), gives("cpu-a", 1))
    world.reconcile(an_inference(placement={"pool": "cpu-b"}), gives("cpu-b", 1))
    assert world.replicas == {"inf-ctr": 1}
    assert world.applied("inf-ctr")["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cpu-b"}


class TestWeights:
    def pods(self) -> Sequence[PodView]:
        """One pod of each pool."""
        return [
            replace(a_pod(f"p{n}", source=""), pool=pool, address=f"10.0.0.{n}")
            for n, pool in enumerate(("cpu-a", "cpu-b"), start=1)
        ]

    def test_each_pod_has_the_weight_of_its_pool(self) -> None:
        inference = an_inference(
            placement={"pools": [{"name": "cpu-a"}, {"name": "cpu-b", "relativeCapacity": "0.333"}]}
        )
        backend = build_inference_backend(inference, self.pods())
        assert [(pod.address, pod.weight) for pod in backend.endpoints] == [
            ("10.0.0.1", 100),
            ("10.0.0.2", 33),
        ]
        assert backend.pods_by_capacity == {1.0: 1, 0.33: 1}

        pool = EndpointPool(backend.key, backend.endpoints)
        assignment = decode(TYPE, encode_endpoints("c", pool, InferenceProtocol.GRPC))
        (locality,) = assignment.endpoints
        assert [pod.load_balancing_weight.value for pod in locality.lb_endpoints] == [100, 33]

    @pytest.mark.parametrize(
        ("placement", "weight"),
        [({"pool": "cpu-a"}, 0), ({"pools": [{"name": "cpu-a", "relativeCapacity": "3"}]}, 300)],
    )
    def test_a_pool_alone_has_a_weight_if_it_has_a_capacity_of_its_own(
        self, placement: Mapping[str, Any], weight: int
    ) -> None:
        backend = build_inference_backend(an_inference(placement=placement), self.pods()[:1])
        assert backend.endpoints[0].weight == weight
        assert backend.pods_by_capacity == {1.0: 0} | {(weight or 100) / 100: 1}

    @pytest.mark.parametrize(("relative", "weight"), [("0.000000001", 1), ("999999999999", 1_000_000)])
    def test_absurd_capacities_stay_within_what_envoy_takes(self, relative: str, weight: int) -> None:
        inference = an_inference(
            placement={"pools": [{"name": "cpu-a"}, {"name": "cpu-b", "relativeCapacity": relative}]}
        )
        assert weigh_pools(inference) == {"cpu-a": 100, "cpu-b": weight}

    def test_a_pod_of_a_pool_that_is_no_longer_named_has_the_full_weight(self) -> None:
        inference = an_inference(placement={"pools": [{"name": "x"}, {"name": "cpu-b", "slices": 2}]})
        backend = build_inference_backend(inference, self.pods())
        assert [pod.weight for pod in backend.endpoints] == [100, 200]
