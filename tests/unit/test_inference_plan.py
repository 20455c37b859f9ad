"""Planning an Inference: what is applied, what is ordered, and what the user is told."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.inference import an_inference, find_config_map
from builders.pods import a_pod, a_pod_body, a_report
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.planning.plan import EventType, ReconcilePlan
from tidegate.planning.pods import PodProblem, PodView, parse_pod
from tidegate.resources.inference import build_inference_objects, hash_source, make_desired_state
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.serving import find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import DesiredState, FailureReason, RunnerEnd, VersionMemory

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(
    dataplane_image="dataplane:1", triton_image="triton:1", client_ca="PEM", models_host_path="/models"
)


def a_plan(inference: Inference, *, settings: ServingSettings = SETTINGS, **observed: Any) -> ReconcilePlan:
    return plan_inference(InferenceObserved(inference, NOW, epoch=3, **observed), settings)


def a_pod_of(inference: Inference, name: str = "p0", **facts: Any) -> PodView:
    """A pod as the Deployment of this Inference makes it."""
    template = find_template_hash(build_inference_objects(inference, SETTINGS, ""))
    return a_pod(name, source=hash_source(inference), template=template, **facts)


def started_with(plan: ReconcilePlan) -> DesiredState:
    return DesiredState.model_validate_json(find_config_map(plan)["data"]["desired.json"])


def conditions(plan: ReconcilePlan) -> dict[str, tuple[str, str]]:
    items: Any = plan.status["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in items}


def message(plan: ReconcilePlan, kind: str = "Ready") -> str:
    items: Any = plan.status["conditions"]
    return next(item["message"] for item in items if item["type"] == kind)


def again(inference: Inference, plan: ReconcilePlan, **spec: Any) -> Inference:
    """The object a moment later: with the status that the plan wrote, and maybe a new generation."""
    generation = inference.metadata.generation + bool(spec)
    return an_inference(status=dict(plan.status), metadata={"generation": generation}, **spec)


def test_ready_only_when_the_agent_says_so_for_this_generation() -> None:
    inference = an_inference()
    pod = a_pod_of(inference)

    serving = a_plan(inference, pods=[pod], reports={"p0": a_report(1)})
    older = a_plan(inference, pods=[pod], reports={"p0": a_report(1, generation=0)})
    silent = a_plan(inference, pods=[pod])

    assert conditions(serving)["Ready"] == ("True", "AllReplicasReady")
    assert serving.requeue_after is None
    assert conditions(older)["Ready"][0] == "False"
    assert [order.desired_state.generation for order in older.orders] == [1]
    assert conditions(silent)["Ready"] == ("False", "AgentUnreachable")


@pytest.mark.parametrize(("memory", "reason"), [(True, "OutOfMemory"), (False, "PodFailing")])
def test_a_model_process_that_ended_takes_ready_away_for_as_long_as_the_agent_says_so(
    memory: bool, reason: str
) -> None:
    inference = an_inference()
    pod = replace(a_pod_of(inference), memory_limit="512Mi")
    end = RunnerEnd(version=1, killed_for_memory=memory)

    ended = a_plan(inference, pods=[pod], reports={"p0": a_report(1, ended=end)})
    still = a_plan(again(inference, ended), pods=[pod], reports={"p0": a_report(1, ended=end)})
    over = a_plan(again(inference, ended), pods=[pod], reports={"p0": a_report(1)})

    assert conditions(ended)["Ready"] == ("False", reason)
    assert conditions(ended)["ModelLoaded"] == ("True", "ModelLoaded")
    assert "pod p0: the process that runs version 1" in message(ended)
    assert ("limit of 512Mi" in message(ended)) is memory
    assert [event.reason for event in ended.events if event.type is EventType.WARNING] == [reason]
    assert ended.requeue_after is not None
    assert still.events == ()
    assert conditions(over)["Ready"] == ("True", "AllReplicasReady")
    assert over.requeue_after is None


def test_status_says_what_the_agents_said_about_the_model() -> None:
    inference = an_inference()
    plan = a_plan(inference, pods=[a_pod_of(inference)], reports={"p0": a_report(1)})

    assert plan.status["versions"] == {"serving": "1", "loaded": ["1"], "memory": [], "target": "1"}
    model: Any = plan.status["model"]
    assert [tensor["name"] for tensor in model["inputs"]] == ["user_id"]
    assert plan.status["readyReplicas"] == 1


def test_memory_of_a_version_is_the_most_of_any_replica_and_steady() -> None:
    inference = an_inference(replicas=2)
    pods = [a_pod_of(inference), a_pod_of(inference, "p1")]

    def memory(*taken: int) -> Any:
        reports = {
            f"p{index}": a_report(1, memory=(VersionMemory(version=1, bytes=count),))
            for index, count in enumerate(taken)
        }
        return a_plan(inference, pods=pods, reports=reports).status["versions"]["memory"]  # type: ignore[index]

    assert memory(33_000_000, 31_000_000) == [{"version": "1", "bytes": 33_554_432}]
    assert memory(33_000_000, 33_500_000) == memory(33_000_000, 31_000_000)
    assert memory(33_000_000, 40_000_000) != memory(33_000_000, 31_000_000)


def test_settled_inference_plans_the_very_same_objects_and_status_again() -> None:
    inference = an_inference()
    pod, reports = a_pod_of(inference), {"p0": a_report(1)}
    first = a_plan(inference, pods=[pod], reports=reports)
    second = a_plan(
        again(inference, first), pods=[pod], reports=reports, config_maps=[find_config_map(first)]
    )

    assert second.status == first.status
    assert second.apply == first.apply
    assert second.orders == ()
    assert second.events == ()


def test_status_remembers_since_when_a_change_is_no_further() -> None:
    inference = an_inference()
    pod = a_pod_of(inference)
    first = a_plan(inference, pods=[pod], reports={"p0": a_report(1)})
    newer = again(inference, first, model={"version": "2"})

    plan = a_plan(newer, pods=[pod], reports={"p0": a_report(1)}, config_maps=[find_config_map(first)])
    noon = "2026-01-01T12:00:00Z"
    started = {"version": "2", "replicas": 0, "fetching": 0, "since": noon, "started": noon}
    assert plan.status["swap"] == started

    edited = again(newer, plan, replicas=2, model={"version": "2"})
    plan_of_edit = a_plan(
        edited, pods=[pod], reports={"p0": a_report(1)}, config_maps=[find_config_map(first)]
    )
    assert "started" not in plan_of_edit.status["swap"], (
        "the replica may have gone in the change before the edit"
    )

    stuck = newer.model_copy(update={"status": again(newer, plan).status})
    late = InferenceObserved(
        stuck,
        NOW + timedelta(minutes=11),
        epoch=3,
        pods=[pod],
        reports={"p0": a_report(1, target=2, generation=2)},
        config_maps=[find_config_map(first)],
    )
    undone = plan_inference(late, SETTINGS)
    assert conditions(undone)["Ready"] == ("False", "LoadTimedOut")
    assert "pod p0" in message(undone)
    assert "swap" not in undone.status
    failed = stuck.model_copy(update={"status": again(stuck, undone).status})
    later = replace(late, inference=failed, now=NOW + timedelta(minutes=30), reports={"p0": a_report(1)})
    retried = plan_inference(later, SETTINGS)
    assert "started" not in retried.status["swap"], "nor is one that went in the attempt before"
    assert [order.desired_state.version for order in undone.orders] == [1]
    assert undone.requeue_after == timedelta(seconds=30)


def test_bad_version_is_told_in_tritons_words_while_the_old_one_serves() -> None:
    inference = an_inference()
    pod = a_pod_of(inference)
    first = a_plan(inference, pods=[pod], reports={"p0": a_report(1)})
    newer = again(inference, first, model={"version": "2"})
    failed = a_report(
        1, target=2, generation=2, failure=(2, FailureReason.LOAD_FAILED, "Protobuf parsing failed")
    )

    plan = a_plan(newer, pods=[pod], reports={"p0": failed}, config_maps=[find_config_map(first)])

    assert conditions(plan)["Ready"] == ("False", "LoadFailed")
    assert conditions(plan)["Stalled"] == ("True", "LoadFailed")
    assert message(plan) == "version 2: Protobuf parsing failed; version 1 keeps serving"
    assert plan.status["failure"] == {
        "version": "2",
        "reason": "LoadFailed",
        "message": "Protobuf parsing failed",
        "time": "2026-01-01T12:00:00Z",
        "attempts": 1,
    }
    assert [order.desired_state.version for order in plan.orders] == [1]
    assert [event.type for event in plan.events] == [EventType.WARNING]

    back = a_report(1, generation=2)
    remembering = newer.model_copy(update={"status": again(newer, plan).status})
    after = a_plan(remembering, pods=[pod], reports={"p0": back}, config_maps=[find_config_map(first)])
    assert after.orders == ()
    assert after.events == ()
    assert conditions(after)["Ready"] == ("False", "LoadFailed")


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"ready": False, "unschedulable": "0/1 nodes are available: 1 Insufficient cpu"}, "NoCapacity"),
        ({"ready": False, "unschedulable": "0/1 nodes are available: 1 Too many pods"}, "NoCapacity"),
        ({"ready": False, "unschedulable": 'persistentvolumeclaim "models" not found'}, "Unschedulable"),
        (
            {"ready": False, "trouble": PodProblem(Reason.IMAGE_PULL, "container triton: no such image")},
            "ImagePull",
        ),
        (
            {"ready": False, "trouble": PodProblem(Reason.POD_FAILING, "container triton: no config")},
            "PodFailing",
        ),
    ],
)
def test_pods_that_cannot_run_are_the_reason(pod: dict[str, Any], reason: str) -> None:
    inference = an_inference()
    plan = a_plan(inference, pods=[a_pod_of(inference, **pod)])

    assert conditions(plan)["Ready"] == ("False", reason)
    words = pod["trouble"].message if "trouble" in pod else pod["unschedulable"]
    assert words in message(plan)


def test_what_the_api_server_refuses_is_told_in_its_words() -> None:
    plan = a_plan(an_inference(), refusal=PlanRefusal(Reason.CHILD_REFUSED, "exceeded quota: small"))

    assert conditions(plan)["Ready"] == ("False", "ChildRefused")
    assert conditions(plan)["Stalled"] == ("True", "ChildRefused")
    assert "exceeded quota" in message(plan)
    assert plan.requeue_after is not None


def test_no_replicas_wanted_is_ready_and_says_that_nothing_serves() -> None:
    plan = a_plan(an_inference(tier="nearline", replicas=0))

    assert conditions(plan)["Ready"] == ("True", "ScaledToZero")
    assert conditions(plan)["ModelLoaded"][0] == "False"


def test_new_source_means_new_pods_and_the_old_config_map_goes_when_its_last_pod_has_gone() -> None:
    inference = an_inference()
    first = a_plan(inference)
    old = find_config_map(first)
    moved = again(inference, first, model={"uri": "file:///models/other"})
    old_source = old["metadata"]["labels"][SOURCE_LABEL]

    with_pods = a_plan(moved, pods=[a_pod(source=old_source)], config_maps=[old])
    assert with_pods.delete == ()
    assert find_config_map(with_pods)["metadata"]["name"] != old["metadata"]["name"]

    without = a_plan(moved, config_maps=[old])
    assert [deletion.key.name for deletion in without.delete] == [old["metadata"]["name"]]


def test_old_pods_version_is_told_until_their_successors_serve() -> None:
    inference = an_inference()
    first = a_plan(inference, pods=[a_pod_of(inference)], reports={"p0": a_report(1)})
    moved = again(inference, first, model={"uri": "file:///models/other"})
    pods = [a_pod_of(inference), a_pod_of(moved, "p1", ready=False)]

    plan = a_plan(moved, pods=pods, reports={"p0": a_report(1), "p1": a_report(None, target=1)})

    assert plan.status["versions"]["serving"] == "1"  # type: ignore[index]
    assert plan.events == ()


def test_pods_of_a_deleted_namesake_do_not_make_its_successor_ready() -> None:
    predecessor, successor = an_inference(), an_inference(metadata={"uid": "another"})

    plan = a_plan(successor, pods=[a_pod_of(predecessor)], reports={"p0": a_report(1)})

    assert conditions(plan)["Ready"][0] == "False"
    assert conditions(plan)["ModelLoaded"][0] == "False"
    assert plan.orders == ()


def test_changed_resources_are_ready_only_on_pods_that_have_them() -> None:
    inference = an_inference()
    pod, reports = a_pod_of(inference), {"p0": a_report(1, generation=2)}
    first = a_plan(inference, pods=[pod], reports={"p0": a_report(1)})
    larger = again(inference, first, resources={"cpu": "1024"})
    surge = a_pod_of(larger, "p1", ready=False, unschedulable="0/1 nodes are available")

    rolling = a_plan(larger, pods=[pod], reports=reports)
    stuck = a_plan(larger, pods=[pod, surge], reports=reports)

    assert conditions(rolling)["Ready"] == ("False", "RollingOut")
    assert conditions(stuck)["Ready"] == ("False", "Unschedulable")
    assert conditions(stuck)["ModelLoaded"][0] == "True"


def test_agent_that_is_silent_beside_others_that_serve_is_not_asked_twice_a_second() -> None:
    inference = an_inference(replicas=2)
    pods = [a_pod_of(inference), a_pod_of(inference, "p1", ready=False)]

    silent = a_plan(inference, pods=pods, reports={"p0": a_report(1)})
    loading = a_plan(inference, pods=pods, reports={"p0": a_report(1), "p1": a_report(None, target=1)})

    assert silent.requeue_after is not None
    assert loading.requeue_after is not None
    assert silent.requeue_after > loading.requeue_after


def test_forged_status_is_no_memory() -> None:
    forged = {"failure": {"version": "x", "reason": "Nonsense", "message": 3}, "versions": {"serving": "one"}}
    plan = a_plan(an_inference(status=forged))

    assert started_with(plan).version == 1
    assert "failure" not in plan.status


def test_pod_view_reads_what_keeps_a_container_from_running() -> None:
    waiting = {
        "name": "triton",
        "image": "x:1",
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}},
    }
    ended = {
        "name": "triton",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }

    assert parse_pod(a_pod_body()).problem is None
    assert parse_pod(a_pod_body()).oom_killed_at is None
    killed = {
        **ended,
        "restartCount": 1,
        "lastState": {"terminated": {"reason": "OOMKilled", "finishedAt": "2026-01-01T12:00:00Z"}},
    }
    assert parse_pod(a_pod_body(status={"containerStatuses": [killed]})).oom_killed_at == NOW
    assert parse_pod(a_pod_body(status={"containerStatuses": [waiting]})).problem == PodProblem(
        Reason.IMAGE_PULL, "container triton x:1: ErrImagePull: no"
    )
    limited = {"containers": [{"name": "triton", "resources": {"limits": {"memory": "512Mi"}}}]}
    for once in (killed, ended):
        # A first kill counts: what took the memory is asked for again.
        assert parse_pod(
            {**a_pod_body(status={"containerStatuses": [once]}), "spec": limited}
        ).problem == PodProblem(
            Reason.OUT_OF_MEMORY,
            "container triton was killed at its memory limit of 512Mi; raise spec.resources.memory, or send "
            "smaller requests",
        )
    compiler = {"containers": [{"name": "compiler", "resources": {"limits": {"memory": "1Gi"}}}]}
    assert parse_pod(
        {**a_pod_body(status={"containerStatuses": [{**killed, "name": "compiler"}]}), "spec": compiler}
    ).problem == PodProblem(
        Reason.OUT_OF_MEMORY,
        "container compiler was killed at its memory limit of 1Gi; raise spec.compile.memory",
    )
    back = {**killed, "state": {"running": {}}, "ready": True}
    assert parse_pod(a_pod_body(status={"containerStatuses": [back]})).problem is None
    crashed = {**ended, "lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}
    assert parse_pod(a_pod_body(status={"containerStatuses": [crashed]})).problem == PodProblem(
        Reason.POD_FAILING, "container triton keeps ending (Error, exit code 1, see kubectl logs --previous)"
    )


def _pod(plan: ReconcilePlan) -> dict[str, Any]:
    deployment: Any = next(manifest for manifest in plan.apply if manifest["kind"] == "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def test_credentials_are_mounted_in_the_agent_alone_and_need_not_exist_yet() -> None:
    pod = _pod(a_plan(an_inference(model={"uri": "s3://models/ctr", "secretName": "models-ads"})))

    volume = next(volume for volume in pod["volumes"] if volume["name"] == "storage-secret")
    assert volume["secret"] == {"secretName": "models-ads", "optional": True}
    mounted = [
        container["name"]
        for container in (*pod["initContainers"], *pod["containers"])
        if any(mount["name"] == "storage-secret" for mount in container["volumeMounts"])
    ]
    assert mounted == ["agent"]
    assert all("envFrom" not in container for container in (*pod["initContainers"], *pod["containers"]))


def test_without_a_secret_of_its_own_the_namespaces_is_used() -> None:
    pod = _pod(a_plan(an_inference()))

    volume = next(volume for volume in pod["volumes"] if volume["name"] == "storage-secret")
    assert volume["secret"]["secretName"] == "tidegate-storage"


def test_a_service_account_of_the_users_own_is_used_and_none_is_made() -> None:
    plan = a_plan(an_inference(serviceAccountName="models-reader"))

    assert _pod(plan)["serviceAccountName"] == "models-reader"
    assert _pod(plan)["automountServiceAccountToken"] is False
    assert "ServiceAccount" not in [manifest["kind"] for manifest in plan.apply]


def test_a_changed_revision_is_ordered_without_new_pods() -> None:
    first = a_plan(an_inference(model={"uri": "oci://registry/ads/ctr", "revision": "v1"}))
    second = a_plan(an_inference(model={"uri": "oci://registry/ads/ctr", "revision": "v2", "version": "2"}))

    assert started_with(second).revision == "v2"
    assert _pod(first) == _pod(second)


@pytest.mark.parametrize(
    ("field", "unchanged", "changed", "ordered"),
    [
        ("sharedInputs", [], ["user", "age"], ["age", "user"]),
        ("instances", 1, 2, 2),
    ],
)
def test_what_is_left_out_of_the_spec_is_left_out_of_the_order_and_needs_no_new_pods(
    field: str, unchanged: Any, changed: Any, ordered: Any
) -> None:
    def describe(value: Any = None) -> tuple[str, dict[str, Any]]:
        spec: dict[str, Any] = {"model": {"uri": "s3://models/ctr", "version": "1"}}
        if value is not None:
            (spec["model"] if field == "sharedInputs" else spec)[field] = value
        inference = an_inference(**spec)
        return hash_source(inference), make_desired_state(inference, SETTINGS, epoch=3).model_dump(
            mode="json"
        )

    (without, order), (default, _), (other, other_order) = describe(), describe(unchanged), describe(changed)
    assert without == default != other
    assert field not in order
    assert other_order[field] == ordered


def test_the_sequence_of_shared_inputs_means_nothing() -> None:
    hashes = {
        hash_source(an_inference(model={"uri": "s3://models/ctr", "version": "1", "sharedInputs": names}))
        for names in (["age", "user"], ["user", "age"])
    }
    assert len(hashes) == 1
