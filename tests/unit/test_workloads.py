"""Whom Kueue's Workloads wake, and what is known of them."""

from __future__ import annotations

from typing import Any, cast

from builders.batch import batch_spec
from builders.inference import an_inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.client import KubeClient
from tidegate_controllers.stores import Stores
from tidegate_controllers.workloads import KueueWorkloads

NOBODY = cast("KubeClient", None)
"""Nothing is watched here: the test feeds the caches."""


def a_job(name: str = "inf-ctr-1", uid: str = "j-1", owner: str = "u") -> dict[str, Any]:
    labels = {"tidegate.io/inference": "ctr"}
    references = [{"kind": "Inference", "name": "ctr", "uid": owner, "controller": True}]
    metadata = {"name": name, "namespace": "ads", "uid": uid, "labels": labels, "ownerReferences": references}
    return {"metadata": metadata, "spec": {"template": {"metadata": {}, "spec": {}}}}


def a_workload(job: str = "inf-ctr-1", uid: str = "j-1", version: str = "1", **status: Any) -> dict[str, Any]:
    references = [{"kind": "Job", "name": job, "uid": uid, "controller": True}]
    metadata = {"name": f"job-{job}", "namespace": "ads", "uid": "w", "resourceVersion": version}
    return {
        "metadata": {**metadata, "ownerReferences": references},
        "spec": {"podSets": [{"template": {}}]},
        "status": status,
    }


def test_a_workload_wakes_the_inference_of_its_job_and_so_does_its_end() -> None:
    stores, woken = Stores(), list[ObjectKey]()
    workloads = KueueWorkloads(NOBODY, stores.jobs)
    workloads.subscribe(woken.append)
    stores.jobs.replace([a_job()])

    workloads.store.observe("ADDED", a_workload())
    assert woken == [ObjectKey("ads", "ctr")]
    # What is not read of it wakes nobody's planner with another picture, and somebody else's Job nobody at all.
    workloads.store.observe("ADDED", a_workload("theirs", "j-2"))
    assert woken == [ObjectKey("ads", "ctr")]
    workloads.store.observe("DELETED", a_workload(version="2"))
    assert woken == [ObjectKey("ads", "ctr")] * 2


def test_nothing_is_known_before_the_first_listing_and_asked_for_only_where_a_queue_is_named() -> None:
    stores = Stores()
    workloads = KueueWorkloads(NOBODY, stores.jobs)
    plain = an_inference(tier="offline", batch=batch_spec())
    queued = an_inference(tier="offline", batch=batch_spec(queueName="offline"))
    assert workloads.has_synced(plain)
    assert workloads.get_queueing(plain) is None
    assert not workloads.has_synced(queued)
    unlisted = workloads.get_queueing(queued)
    assert unlisted is not None
    assert not unlisted.installed

    stores.jobs.replace([a_job(owner=queued.metadata.uid)])
    stopped = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "made room"}
    workloads.store.replace([a_workload(conditions=[stopped])])
    found = workloads.get_queueing(queued)
    assert found is not None
    assert found.installed
    assert found.workloads["j-1"].eviction_reason == "Preempted"
