"""How long replicas take to load, as the allocator sees it: from the pods that are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders.allocator import NOW, a_member
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.pods import a_pod_body
from tidegate.allocation.snapshot import DEFAULT_LOAD_S
from tidegate.api.inference import PoolShare
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.pools.claims import AssignedPod, make_claim, read_assigned_pod
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.names import POOL_LABEL, SLICES_LABEL

CREATED = "2026-01-01T00:00:00Z"
READY = "2026-01-01T00:00:42Z"


def pod_on_a_slice(
    created: str | None = CREATED, ready: str | None = READY, restarts: int = 0, status: str = "True"
) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, **({"lastTransitionTime": ready} if ready else {})}
    body = a_pod_body(
        status={
            "conditions": [condition],
            "containerStatuses": [{"name": "triton", "restartCount": restarts, "state": {}}],
        }
    )
    body["metadata"]["labels"] |= {POOL_LABEL: "cpu-a", SLICES_LABEL: "1"}
    if created:
        body["metadata"]["creationTimestamp"] = created
    return {**body, "spec": {"nodeName": "node-0"}}


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (pod_on_a_slice(), 42.0),
        (pod_on_a_slice(restarts=1), None),
        (pod_on_a_slice(status="False"), None),
        (pod_on_a_slice(created=None), None),
        (pod_on_a_slice(ready=None), None),
        (pod_on_a_slice(ready="2026-01-01T00:16:00Z"), None),
        (pod_on_a_slice(ready="2025-12-31T23:59:59Z"), None),
    ],
)
def test_a_pod_shows_its_load_time_unless_it_may_be_another(
    body: dict[str, Any], seconds: float | None
) -> None:
    assigned = read_assigned_pod(body)
    assert assigned is not None
    assert assigned.load_s == seconds


def test_the_median_of_the_pods_in_the_pool_counts() -> None:
    inference = an_inference(replicas=4, placement={"pool": "cpu-a"})
    pods = [
        AssignedPod(pool, "node-0", 1, "realtime", ready=True, load_s=seconds)
        for pool, seconds in (
            ("cpu-a", 20.0),
            ("cpu-a", 30.0),
            ("cpu-a", 500.0),
            ("cpu-a", None),
            ("cpu-b", 1.0),
        )
    ]
    assert make_claim(inference, PoolShare("cpu-a", 1), None, pods).load_s == 30.0
    assert make_claim(inference, PoolShare("cpu-a", 1), None, pods[3:]).load_s is None


@pytest.mark.parametrize(("measured", "planned"), [(75.0, 75.0), (0.0, 0.0), (None, DEFAULT_LOAD_S)])
def test_the_allocator_plans_with_the_measured_time(measured: float | None, planned: float) -> None:
    member = a_member()
    member = replace(member, claim=replace(member.claim, load_s=measured))
    observed = AllocationObserved(a_compute_pool(), NOW, PoolSlices(()), (member,))
    [model] = build_allocation_view(observed).snapshot.inferences
    assert model.placements[0].load_s == planned
