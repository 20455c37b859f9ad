"""Replacing pods: what the Deployment becomes when new pods come up, when they do not, and after a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.inference import an_inference
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import parse_deployment
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodProblem, PodView
from tidegate.resources.inference import hash_source
from tidegate.resources.names import LAST_READY_ANNOTATION, ROLLED_BACK_ANNOTATION, TEMPLATE_ANNOTATION
from tidegate.resources.settings import ServingSettings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(
    dataplane_image="dataplane:1", triton_image="triton:1", client_ca="PEM", models_host_path="/models"
)
ENDED_WELL = {"reason": "NewReplicaSetAvailable", "updated": 2, "ready": 2}
ROLLING = {"reason": "ReplicaSetUpdated", "updated": 1, "ready": 2, "replicas": 3}
OVERDUE = {**ROLLING, "reason": "ProgressDeadlineExceeded"}


class Cluster:
    """One Inference and its Deployment, carried from one reconcile to the next as the API server would."""

    def __init__(self, **spec: Any) -> None:
        self.spec: dict[str, Any] = {"replicas": 2, **spec}
        self.generation = 1
        self.status: Mapping[str, Any] = {}
        self.live: dict[str, Any] | None = None
        self.config_maps: list[dict[str, Any]] = []

    @property
    def inference(self) -> Inference:
        metadata = {"generation": self.generation}
        return an_inference(metadata=metadata, status=dict(self.status), **self.spec)

    def change(self, **spec: Any) -> None:
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def kubernetes_says(
        self, *, reason: str, updated: int, ready: int, replicas: int = 2, seen: bool = True
    ) -> None:
        """What the Deployment controller writes into the Deployment's status."""
        assert self.live is not None
        generation = self.live["metadata"]["generation"]
        self.live["status"] = {
            "observedGeneration": generation if seen else generation - 1,
            "conditions": [{"type": "Progressing", "reason": reason}],
            "updatedReplicas": updated,
            "replicas": replicas,
            "readyReplicas": ready,
        }

    def reconcile(
        self, *pods: PodView, settings: ServingSettings = SETTINGS, **observed: Any
    ) -> ReconcilePlan:
        view = parse_deployment(self.live) if self.live is not None else None
        plan = plan_inference(
            InferenceObserved(
                self.inference,
                NOW,
                epoch=1,
                pods=pods,
                deployments=[view] if view is not None else [],
                config_maps=self.config_maps,
                **observed,
            ),
            settings,
        )
        self.status = dict(plan.status)
        applied: Any = next(one for one in plan.apply if one["kind"] == "Deployment")
        self.live = _stored(self.live, json.loads(json.dumps(applied)))
        config_map: Any = next(one for one in plan.apply if one["kind"] == "ConfigMap")
        if all(known["metadata"]["name"] != config_map["metadata"]["name"] for known in self.config_maps):
            self.config_maps.append({**config_map, "metadata": {**config_map["metadata"], "uid": "u"}})
        return plan

    @property
    def template(self) -> str:
        assert self.live is not None
        digest: str = self.live["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
        return digest

    @property
    def annotations(self) -> Mapping[str, str]:
        assert self.live is not None
        return self.live["metadata"].get("annotations", {})

    def pod(self, name: str, **facts: Any) -> PodView:
        """A pod of the template that the Deployment has now."""
        return a_pod(name, source=hash_source(self.inference), template=self.template, **facts)


def _stored(before: dict[str, Any] | None, applied: dict[str, Any]) -> dict[str, Any]:
    """As the API server keeps it: a changed spec has a new generation, which the status does not know yet."""
    known = before or {"metadata": {"generation": 0}, "spec": None, "status": {}}
    generation = known["metadata"]["generation"] + (applied["spec"] != known["spec"])
    metadata = {**applied["metadata"], "generation": generation}
    return {**applied, "metadata": metadata, "status": known["status"]}


def a_ready_cluster(**spec: Any) -> Cluster:
    cluster = Cluster(**spec)
    cluster.reconcile()
    cluster.kubernetes_says(**ENDED_WELL)  # type: ignore[arg-type]
    cluster.reconcile()
    return cluster


def ready(plan: ReconcilePlan) -> tuple[str, str, str]:
    items: Any = plan.status["conditions"]
    found = next(item for item in items if item["type"] == "Ready")
    return found["status"], found["reason"], found["message"]


def stalled(plan: ReconcilePlan) -> str:
    items: Any = plan.status["conditions"]
    return str(next(item["status"] for item in items if item["type"] == "Stalled"))


@pytest.mark.parametrize(("mode", "surge", "unavailable"), [("Surge", 1, 0), ("InPlace", 0, 1)])
def test_mode_is_the_deployments_own_strategy(mode: str, surge: int, unavailable: int) -> None:
    cluster = Cluster(rollout={"mode": mode, "progressDeadline": "90s"})
    cluster.reconcile()

    assert cluster.live is not None
    assert cluster.live["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": surge,
        "maxUnavailable": unavailable,
    }
    assert cluster.live["spec"]["progressDeadlineSeconds"] == 90


def test_first_rollout_has_nothing_to_go_back_to_and_remembers_nothing() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.kubernetes_says(reason="ProgressDeadlineExceeded", updated=2, ready=0)
    plan = cluster.reconcile(
        cluster.pod("new", ready=False, trouble=PodProblem(Reason.POD_FAILING, "container triton: no"))
    )

    assert cluster.annotations == {}
    assert ready(plan)[:2] == ("False", "PodFailing")


def test_change_of_the_template_remembers_the_ready_one_in_the_same_write_and_forgets_it_when_done() -> None:
    cluster = a_ready_cluster()
    old = cluster.template
    cluster.change(resources={"memory": "4Gi"})
    cluster.reconcile()

    assert cluster.template != old
    remembered = json.loads(cluster.annotations[LAST_READY_ANNOTATION])
    assert remembered["metadata"]["annotations"][TEMPLATE_ANNOTATION] == old
    cluster.kubernetes_says(**ROLLING)  # type: ignore[arg-type]
    cluster.reconcile()
    assert LAST_READY_ANNOTATION in cluster.annotations

    cluster.kubernetes_says(**ENDED_WELL)  # type: ignore[arg-type]
    cluster.reconcile()
    assert cluster.annotations == {}


def test_stuck_rollout_goes_back_says_why_and_stays_there() -> None:
    cluster = a_ready_cluster()
    old, before = cluster.template, cluster.pod("old")
    cluster.change(resources={"memory": "9Ti"})
    cluster.reconcile(before)
    stuck = cluster.pod("new", ready=False, unschedulable="0/1 nodes are available: 1 Insufficient memory.")
    cluster.kubernetes_says(**OVERDUE)  # type: ignore[arg-type]

    plan = cluster.reconcile(before, stuck)
    assert cluster.template == old
    assert ready(plan)[:2] == ("False", "RolledBack")
    assert stalled(plan) == "True"
    assert [event.reason for event in plan.events] == ["RolledBack"]
    for words in ("generation 2", "10m", "NoCapacity", "1 Insufficient memory", "1 of 2 replicas"):
        assert words in ready(plan)[2]

    for said in (OVERDUE, ROLLING, ENDED_WELL, ENDED_WELL):
        cluster.kubernetes_says(**said)  # type: ignore[arg-type]
        again = cluster.reconcile(before)
        assert cluster.template == old
        assert ready(again)[:2] == ("False", "RolledBack")
        assert again.events == ()
        assert "Insufficient memory" in ready(again)[2]


def given_up() -> tuple[Cluster, str, str]:
    """A cluster that went back, with the hashes of the good and of the bad template."""
    cluster = a_ready_cluster()
    good = cluster.template
    cluster.change(resources={"memory": "9Ti"})
    cluster.reconcile()
    bad = cluster.template
    cluster.kubernetes_says(**OVERDUE)  # type: ignore[arg-type]
    cluster.reconcile()
    assert cluster.template == good
    cluster.kubernetes_says(**ENDED_WELL)  # type: ignore[arg-type]
    return cluster, good, bad


def test_scaling_does_not_try_again_what_was_given_up() -> None:
    cluster, good, _ = given_up()
    cluster.change(replicas=5)
    plan = cluster.reconcile()

    assert cluster.template == good
    assert cluster.live is not None
    assert cluster.live["spec"]["replicas"] == 5
    assert ready(plan)[1] == "RolledBack"


def test_what_was_measured_does_not_try_again_what_was_given_up() -> None:
    cluster, good, _ = given_up()
    cluster.change(slo={"latencyP99": "30ms"}, capacity={"requestsPerSecond": "120"})
    plan = cluster.reconcile()

    assert cluster.template == good
    assert ready(plan)[1] == "RolledBack"


def test_changed_spec_tries_again_and_going_back_is_remembered_for_it_too() -> None:
    cluster, good, bad = given_up()
    cluster.change(rollout={"mode": "InPlace"})
    plan = cluster.reconcile()
    assert cluster.template == bad
    assert ROLLED_BACK_ANNOTATION not in cluster.annotations
    assert ready(plan)[1] != "RolledBack"

    cluster.kubernetes_says(**OVERDUE)  # type: ignore[arg-type]
    plan = cluster.reconcile()
    assert cluster.template == good
    assert [event.reason for event in plan.events] == ["RolledBack"]


def test_corrected_spec_comes_up_and_spec_set_back_ends_it() -> None:
    cluster, good, bad = given_up()
    cluster.change(resources={"memory": "3Gi"})
    cluster.reconcile()
    assert cluster.template not in (good, bad)

    cluster, good, _ = given_up()
    cluster.change(resources={"memory": "2Gi"})
    plan = cluster.reconcile(cluster.pod("a"), cluster.pod("b"))
    assert cluster.template == good
    assert cluster.annotations == {}
    assert ready(plan)[1] != "RolledBack"


def test_operators_own_new_template_is_another_attempt() -> None:
    cluster, good, bad = given_up()
    cluster.reconcile(settings=ServingSettings(dataplane_image="dataplane:2", triton_image="triton:2"))

    assert cluster.template not in (good, bad)


def test_change_in_the_middle_of_a_rollout_keeps_the_template_that_was_ready() -> None:
    cluster = a_ready_cluster()
    good = cluster.template
    cluster.change(resources={"memory": "4Gi"})
    cluster.reconcile()
    cluster.kubernetes_says(**ROLLING)  # type: ignore[arg-type]
    cluster.change(resources={"memory": "5Gi"})
    cluster.reconcile()
    cluster.kubernetes_says(**OVERDUE)  # type: ignore[arg-type]
    cluster.reconcile()

    assert cluster.template == good


@pytest.mark.parametrize(
    "said",
    [
        # What Kubernetes said about the rollout before this one stays until this one moves.
        {**ENDED_WELL, "updated": 0},
        {**ENDED_WELL, "seen": False},
        {**OVERDUE, "updated": 0},
        {**OVERDUE, "seen": False},
    ],
)
def test_word_about_an_earlier_rollout_neither_ends_nor_fails_this_one(said: dict[str, Any]) -> None:
    cluster = a_ready_cluster()
    cluster.change(resources={"memory": "4Gi"})
    cluster.reconcile()
    new = cluster.template
    cluster.kubernetes_says(**said)
    cluster.reconcile()

    assert cluster.template == new
    assert LAST_READY_ANNOTATION in cluster.annotations


def test_broken_annotations_are_no_memory() -> None:
    cluster = a_ready_cluster()
    cluster.change(resources={"memory": "4Gi"})
    cluster.reconcile()
    assert cluster.live is not None
    new = cluster.template
    for text in ("{", "[]", '{"metadata": 3}', '{"metadata": {}, "spec": {}}'):
        cluster.live["metadata"]["annotations"] = {LAST_READY_ANNOTATION: text, ROLLED_BACK_ANNOTATION: text}
        cluster.kubernetes_says(**OVERDUE)  # type: ignore[arg-type]
        cluster.reconcile()
        assert cluster.template == new


def test_config_map_of_the_template_to_go_back_to_is_kept_when_its_last_pod_has_gone() -> None:
    cluster = a_ready_cluster(replicas=1, rollout={"mode": "InPlace"})
    old = cluster.config_maps[0]["metadata"]["name"]
    cluster.change(model={"uri": "file:///models/other", "version": "1"})
    cluster.reconcile()
    rolling = cluster.reconcile()
    assert rolling.delete == ()

    cluster.kubernetes_says(reason="NewReplicaSetAvailable", updated=1, ready=1, replicas=1)
    assert [deletion.key.name for deletion in cluster.reconcile().delete] == [old]


def test_drained_node_is_told_that_the_budget_waits_for_the_successor() -> None:
    cluster = a_ready_cluster()
    left = cluster.pod("a")
    pending = cluster.pod("b", ready=False, unschedulable="1 node(s) were unschedulable")

    plan = cluster.reconcile(left, pending, reports={"a": a_report(1)})
    assert ready(plan)[1] == "Unschedulable"
    assert "1 of 2 replicas are ready" in ready(plan)[2]
    assert "evictions of the others are refused" in ready(plan)[2]


def test_a_rollback_names_the_compiler_that_its_pods_served_without() -> None:
    cluster = a_ready_cluster(compile={})
    cluster.change(replicas=1, resources={"cpu": "3"})
    cluster.reconcile()
    problem = PodProblem(Reason.POD_FAILING, "container compiler keeps ending (Error, exit code 1)")
    cluster.kubernetes_says(**{**OVERDUE, "replicas": 2, "ready": 1})  # type: ignore[arg-type]

    plan = cluster.reconcile(cluster.pod("p0", trouble=problem))

    assert ready(plan)[1] == "RolledBack"
    assert "(PodFailing: pod p0: container compiler keeps ending (Error, exit code 1))" in ready(plan)[2]
