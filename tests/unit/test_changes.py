"""Whether to write: never for a settled object, always for a changed one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kube.changes import (
    add_apply_annotations,
    compute_digest,
    is_subset,
    merge_onto_live,
    needs_apply,
)
from tidegate.kube.fence import APPLIED_ANNOTATION, EPOCH_ANNOTATION


def a_deployment() -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "inf-ctr", "namespace": "ads", "labels": {"tidegate.io/inference": "ctr"}},
        "spec": {
            "replicas": 2,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "triton",
                            "image": "triton:1",
                            "command": ["/bin/sh", "-c", "exec tritonserver"],
                            "resources": {"limits": {"cpu": "1000m", "memory": "2048Mi"}},
                            "env": [],
                            "volumeMounts": [
                                {"name": "shm", "mountPath": "/dev/shm", "readOnly": False},
                                {"name": "tmp", "mountPath": "/tmp"},
                            ],
                        }
                    ],
                    "tolerations": [{"operator": "Exists"}],
                    "hostNetwork": False,
                    "nodeName": "",
                }
            },
        },
    }


def live(manifest: dict[str, Any], epoch: int = 1) -> dict[str, Any]:
    """What the API server makes of it: quantities rewritten, empty values dropped, its own fields added."""
    stored = copy.deepcopy(add_apply_annotations(manifest, epoch))
    stored["metadata"] |= {"uid": "1", "resourceVersion": "7", "generation": 1}
    spec = stored["spec"]["template"]["spec"]
    del spec["hostNetwork"], spec["nodeName"]
    spec["dnsPolicy"] = "ClusterFirst"
    container = spec["containers"][0]
    del container["env"], container["volumeMounts"][0]["readOnly"]
    container["resources"]["limits"] = {"cpu": "1", "memory": "2Gi"}
    container["terminationMessagePath"] = "/dev/termination-log"
    return stored


def container(stored: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = stored["spec"]["template"]["spec"]["containers"][0]
    return first


def test_a_settled_object_costs_no_write() -> None:
    assert not needs_apply(a_deployment(), live(a_deployment()))


def test_an_absent_object_is_written() -> None:
    assert needs_apply(a_deployment(), None)


def test_a_failover_rewrites_nothing() -> None:
    assert not needs_apply(add_apply_annotations(a_deployment(), 8), live(a_deployment(), epoch=7))


def test_an_object_without_our_mark_is_written() -> None:
    stored = live(a_deployment())
    del stored["metadata"]["annotations"]
    assert needs_apply(a_deployment(), stored)


def test_a_field_that_we_no_longer_want_is_written_away() -> None:
    wanted = a_deployment()
    del wanted["spec"]["template"]["spec"]["tolerations"]
    assert needs_apply(wanted, live(a_deployment()))


@pytest.mark.parametrize(
    "drift",
    [
        lambda stored: stored["spec"].update(replicas=0),
        lambda stored: container(stored).update(image="evil:1"),
        lambda stored: container(stored)["command"].append("--allow-all"),
        lambda stored: container(stored)["resources"]["limits"].update(cpu="2"),
        lambda stored: container(stored)["volumeMounts"].pop(),
        lambda stored: stored["spec"]["template"]["spec"]["tolerations"].append(
            {"operator": "Exists", "key": "x"}
        ),
        lambda stored: stored["metadata"]["labels"].clear(),
        lambda stored: stored["spec"].pop("template"),
        lambda stored: stored["spec"].update(template="text"),
        lambda stored: container(stored).update(command="text"),
        lambda stored: container(stored).pop("command"),
    ],
)
def test_drift_is_repaired(drift: Any) -> None:
    stored = live(a_deployment())
    drift(stored)
    assert needs_apply(a_deployment(), stored)


@pytest.mark.parametrize(
    "addition",
    [
        lambda stored: stored["metadata"]["labels"].update(team="ads"),
        lambda stored: stored["metadata"]["annotations"].update({"deployment.kubernetes.io/revision": "3"}),
        lambda stored: stored["spec"]["template"]["spec"]["containers"].insert(
            0, {"name": "mesh", "image": "m:1"}
        ),
        lambda stored: container(stored)["volumeMounts"].append({"name": "ca", "mountPath": "/ca"}),
        lambda stored: stored.update(status={"readyReplicas": 2}),
    ],
)
def test_what_others_add_is_theirs(addition: Any) -> None:
    stored = live(a_deployment())
    addition(stored)
    assert not needs_apply(a_deployment(), stored)


def test_a_default_that_takes_the_place_of_our_zero_is_drift() -> None:
    assert not is_subset({"replicas": 0}, {"replicas": 1})
    assert is_subset({"replicas": 0}, {})


def test_quantities_are_compared_by_value_only_where_they_are_quantities() -> None:
    assert is_subset({"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "500m"}})
    assert is_subset({"sizeLimit": "1024Mi"}, {"sizeLimit": "1Gi"})
    assert not is_subset({"limits": {"cpu": "x"}}, {"limits": {"cpu": "y"}})
    assert not is_subset({"labels": {"version": "1000m"}}, {"labels": {"version": "1"}})


def test_the_mark_does_not_depend_on_our_own_annotations_or_the_order_of_keys() -> None:
    wanted = a_deployment()
    turned = dict(reversed(wanted.items()))
    assert (
        compute_digest(add_apply_annotations(wanted, 4)) == compute_digest(wanted) == compute_digest(turned)
    )


def test_a_stamp_keeps_other_annotations() -> None:
    wanted = a_deployment()
    wanted["metadata"]["annotations"] = {"team": "ads"}
    annotations = add_apply_annotations(wanted, 4)["metadata"]["annotations"]
    assert annotations == {"team": "ads", EPOCH_ANNOTATION: "4", APPLIED_ANNOTATION: compute_digest(wanted)}
    assert wanted["metadata"]["annotations"] == {"team": "ads"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_everything_is_a_subset_of_itself(value: Any) -> None:
    assert is_subset(value, copy.deepcopy(value))


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=3),
    st.dictionaries(st.text(max_size=3), JSON, max_size=3),
)
def test_comparing_never_fails_and_additions_never_count(
    desired: dict[str, Any], added: dict[str, Any]
) -> None:
    assert is_subset(desired, {**added, **desired})
    is_subset(desired, added)


def a_job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "inf-ctr", "namespace": "ads"},
        "spec": {"parallelism": 2, **spec},
    }


def a_live_job(manifest: dict[str, Any], **spec: Any) -> dict[str, Any]:
    stored = copy.deepcopy(add_apply_annotations(manifest, 1))
    stored["metadata"] |= {"uid": "1", "resourceVersion": "7"}
    stored["spec"] |= spec
    return stored


def test_what_is_said_only_at_first_is_sent_with_a_new_object_alone() -> None:
    wanted = a_job(suspend=True)
    assert merge_onto_live(None, wanted) == wanted
    started = a_live_job(wanted, suspend=False)
    assert not needs_apply(wanted, started)
    assert merge_onto_live(started, wanted)["spec"] == {"parallelism": 2}


def test_a_job_that_still_waits_is_not_started_by_a_change_and_a_start_in_between_is_a_conflict() -> None:
    waiting = a_live_job(a_job(suspend=True))
    wanted = a_job(suspend=True, parallelism=1)
    assert needs_apply(wanted, waiting)
    sent = merge_onto_live(waiting, wanted)
    assert sent["spec"] == {"parallelism": 1, "suspend": True}
    assert sent["metadata"]["resourceVersion"] == "7"
    # What was sent is what was wanted, as far as the annotation is concerned.
    assert (
        compute_digest(sent)
        == compute_digest(wanted)
        == compute_digest(merge_onto_live(a_live_job(wanted, suspend=False), wanted))
    )


def test_a_job_that_nobody_suspends_is_sent_whole_and_without_a_version() -> None:
    wanted = a_job()
    assert merge_onto_live(a_live_job(wanted), wanted) == wanted
    # Somebody's own suspending is a field that we do not set.
    assert not needs_apply(wanted, a_live_job(wanted, suspend=True))
