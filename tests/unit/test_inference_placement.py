"""Inference on a pool: what is applied and said when the pool gives all, some or nothing, and when it is gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from builders.compute_pool import a_compute_pool
from builders.conditions import find_condition
from builders.inference import an_inference
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import DeploymentView, parse_deployment
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.replicas import resolve_replicas
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.placement import PlacementResult, place_without_pool
from tidegate.resources.inference import hash_source
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import make_slice_resources

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
PLACED = Verdict(True, Reason.PLACED, "ComputePool cpu-a gives 2 replicas 1 slice each")
FULL = Verdict(False, Reason.POOL_FULL, "ComputePool cpu-a gives 1 of 2 replicas their 1 slice", stalled=True)


def inference(**spec: Any) -> Inference:
    return an_inference(replicas=2, placement={"pool": "cpu-a"}, **spec)


def given(replicas: int, verdict: Verdict = PLACED) -> PlacementResult:
    return PlacementResult(
        make_slice_resources(a_compute_pool(), 1, inference().spec.tier), replicas, verdict
    )


def planned(
    placement: PlacementResult | None, found: Inference | None = None, **observed: Any
) -> ReconcilePlan:
    asked = InferenceObserved(found or inference(), NOW, epoch=1, placement=placement, **observed)
    return plan_inference(asked, SETTINGS)


def deployment(plan: ReconcilePlan) -> Any:
    return next((each for each in plan.apply if each["kind"] == "Deployment"), None)


def live(plan: ReconcilePlan, *, ready: int) -> DeploymentView:
    """The Deployment of a plan, rolled out."""
    applied = deployment(plan)
    progress = {"type": "Progressing", "reason": "NewReplicaSetAvailable", "status": "True"}
    status = {"readyReplicas": ready, "replicas": ready, "updatedReplicas": ready, "conditions": [progress]}
    return parse_deployment({**applied, "status": status})


def serving(plan: ReconcilePlan, count: int) -> dict[str, Any]:
    """As many ready pods of a plan's Deployment, each serving version 1."""
    digest = live(plan, ready=count).digest
    source = hash_source(inference())
    pods = [a_pod(f"p{n}", source=source, template=digest) for n in range(count)]
    return {
        "pods": pods,
        "reports": {pod.uid: a_report(1) for pod in pods},
        "deployments": [live(plan, ready=count)],
    }


def test_as_many_replicas_are_made_as_the_pool_gives() -> None:
    assert deployment(planned(given(2)))["spec"]["replicas"] == 2
    plan = planned(given(1, FULL))
    assert deployment(plan)["spec"]["replicas"] == 1
    assert find_condition(plan, "Placed")["reason"] == find_condition(plan, "Ready")["reason"] == "PoolFull"
    assert [event.reason for event in plan.events] == ["PoolFull"]


def test_an_inference_that_has_some_of_its_replicas_is_not_ready_but_serves() -> None:
    plan = planned(given(1, FULL), **serving(planned(given(1, FULL)), 1))

    assert find_condition(plan, "Ready")["reason"] == "PoolFull"
    assert plan.status["versions"]["serving"] == "1"  # type: ignore[index]


def test_nothing_given_is_not_said_to_be_scaled_to_zero() -> None:
    plan = planned(given(0, FULL))
    assert find_condition(plan, "Ready")["reason"] == "PoolFull"


def test_all_given_and_serving_is_ready() -> None:
    plan = planned(given(2), **serving(planned(given(2)), 2))

    assert find_condition(plan, "Ready")["status"] == "True"
    assert find_condition(plan, "Placed")["status"] == "True"


def test_a_pool_that_is_gone_changes_nothing_of_what_runs() -> None:
    before = serving(planned(given(2)), 2)
    plan = planned(place_without_pool("cpu-a", 2, before["deployments"][0]), **before)

    assert deployment(plan) is None
    assert plan.delete == ()
    assert find_condition(plan, "Placed")["reason"] == "PoolNotFound"
    assert find_condition(plan, "Ready")["status"] == "True"


def test_a_change_that_needs_the_pool_waits_for_it_and_is_not_called_ready() -> None:
    before = serving(planned(given(2)), 2)
    changed = inference(batching={"mode": "Fixed"})
    plan = planned(place_without_pool("cpu-a", 2, before["deployments"][0]), changed, **before)

    assert deployment(plan) is None
    assert find_condition(plan, "Ready")["reason"] == "PoolNotFound"
    assert find_condition(plan, "Stalled")["status"] == "True"


def test_fewer_replicas_than_are_wanted_are_not_ready_without_the_pool() -> None:
    before = serving(planned(given(1, FULL)), 1)
    plan = planned(place_without_pool("cpu-a", 2, before["deployments"][0]), **before)
    assert find_condition(plan, "Ready")["reason"] == "PoolNotFound"


def test_fewer_replicas_are_carried_out_without_the_pool_and_in_the_same_pods() -> None:
    before = serving(planned(given(2)), 2)
    fewer = an_inference(replicas=1, placement={"pool": "cpu-a"})
    plan = planned(place_without_pool("cpu-a", 1, before["deployments"][0]), fewer, **before)

    applied = deployment(plan)
    assert applied["spec"]["replicas"] == 1
    first = deployment(planned(given(2)))
    assert applied["spec"]["template"] == first["spec"]["template"]
    assert applied["metadata"]["labels"] == first["metadata"]["labels"]
    assert find_condition(plan, "Placed")["reason"] == "PoolNotFound"


def test_an_inference_without_a_pool_says_nothing_of_placement() -> None:
    placed = planned(given(2))
    free = an_inference(replicas=2, status=dict(placed.status))
    assert find_condition(planned(None, free), "Placed") == {}


def test_a_pod_that_finds_no_node_says_what_to_do_about_slices() -> None:
    first = planned(given(2))
    words = "0/2 nodes are available: 2 Insufficient cpu."
    pod = a_pod(
        source=hash_source(inference()),
        template=live(first, ready=0).digest,
        ready=False,
        unschedulable=words,
    )
    plan = planned(given(2), pods=[pod], deployments=[live(first, ready=0)])

    assert find_condition(plan, "Placed")["reason"] == "NoCapacity"
    assert (
        "lower spec.placement.slices or spec.replicas, or add nodes to ComputePool cpu-a"
        in find_condition(plan, "Ready")["message"]
    )
    # Where moves of other pods make room, they are what to do.
    moves = "to make room, move a replica of ads/embed (1 slice) from node a to b"
    advised = planned(replace(given(2), remedy=moves), pods=[pod], deployments=[live(first, ready=0)])
    assert find_condition(advised, "Ready")["message"].endswith(f"; {moves}")


def with_a_spare(replicas: int = 2) -> Inference:
    """Two replicas and a warm spare were decided."""
    allocation = {"replicas": replicas, "spares": 1, "decision": "d", "epoch": 1}
    scaling = {"minReplicas": 1, "maxReplicas": 4}
    found = an_inference(placement={"pool": "cpu-a"}, scaling=scaling, status={"allocation": allocation})
    return resolve_replicas(found, None)


def test_a_spare_is_a_pod_of_the_same_deployment() -> None:
    plan = planned(given(3), with_a_spare())
    assert deployment(plan)["spec"]["replicas"] == 3


def test_a_spare_that_still_loads_keeps_nobody_from_being_ready() -> None:
    found = with_a_spare()
    before = serving(planned(given(3), found), 3)
    loading = replace(before["pods"][2], ready=False)
    observed = {**before, "pods": [*before["pods"][:2], loading]}
    observed["reports"] = {**before["reports"], loading.uid: a_report(None, target=1)}
    plan = planned(given(3), found, **observed)
    assert find_condition(plan, "Ready")["status"] == find_condition(plan, "ModelLoaded")["status"] == "True"
    assert (plan.status["readyReplicas"], plan.status["spareReplicas"]) == (2, 0)
    assert plan.requeue_after is not None  # it is asked again until it is there

    whole = planned(given(3), found, **before)
    assert (whole.status["readyReplicas"], whole.status["spareReplicas"]) == (3, 1)
    assert find_condition(whole, "Ready")["status"] == "True"


def test_one_replica_fewer_than_needed_is_missed_though_a_spare_was_decided() -> None:
    found = with_a_spare()
    before = serving(planned(given(3), found), 3)
    pods = [before["pods"][0], *(replace(pod, ready=False) for pod in before["pods"][1:])]
    plan = planned(given(3), found, **{**before, "pods": pods})
    assert find_condition(plan, "Ready")["status"] == "False"


def test_a_rollout_is_not_over_while_a_spare_is_of_the_old_template() -> None:
    found = with_a_spare()
    before = serving(planned(given(3), found), 3)
    old = replace(before["pods"][2], template="an-earlier-one")
    plan = planned(given(3), found, **{**before, "pods": [*before["pods"][:2], old]})
    assert find_condition(plan, "Ready")["status"] == "False"


def test_a_spare_gets_the_new_version_as_well() -> None:
    found = with_a_spare()
    wanted = found.spec.model.model_copy(update={"version": "2"})
    changed = found.model_copy(update={"spec": found.spec.model_copy(update={"model": wanted})})
    before = serving(planned(given(3), found), 3)
    served = {uid: a_report(2 if uid != "p2" else 1) for uid in before["reports"]}
    start = [one for one in planned(given(3), found).apply if one["kind"] == "ConfigMap"]
    plan = planned(given(3), changed, **{**before, "reports": served, "config_maps": start})
    assert [order.pod.key.name for order in plan.orders] == ["p2"]
    assert find_condition(plan, "ModelLoaded")["reason"] == "SwappingVersion"


def test_the_cluster_assigns_the_user_that_the_settings_leave_out() -> None:
    """OpenShift refuses pods that name one; MPS needs the user of its pool."""

    def security(settings: ServingSettings, placement: PlacementResult | None = None) -> dict[str, Any]:
        found = inference() if placement else an_inference(replicas=2)
        asked = InferenceObserved(found, NOW, epoch=1, placement=placement)
        context: dict[str, Any] = deployment(plan_inference(asked, settings))["spec"]["template"]["spec"][
            "securityContext"
        ]
        return context

    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
    assert security(SETTINGS) == restricted | own
    unset = replace(SETTINGS, security_context={})
    assert security(unset) == restricted
    slices = given(2).resources
    assert slices is not None
    shared = replace(given(2), resources=replace(slices, run_as_user=1000))
    assert security(unset, shared) == restricted | {"runAsUser": 1000}
