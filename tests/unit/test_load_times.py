"""How long replicas take to load and to drain, as the allocator sees it: from past decisions, or from the pods that are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders.allocator import NOW, a_decision, a_member, nodes
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.pods import a_pod_body
from tidegate.allocation.snapshot import DEFAULT_DRAIN_S, DEFAULT_LOAD_S
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import PoolShare
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.replica_times import ReplicaTimes
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.pools.claims import AssignedPod, make_claim, read_assigned_pod
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.names import POOL_LABEL, SLICES_LABEL
from tidegate_controllers.allocator.observer import PoolObserver

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


@pytest.mark.parametrize(
    ("measured", "planned"),
    [
        (ReplicaTimes(75.0, 40.0), (75.0, 40.0)),
        (ReplicaTimes(0.0, 0.0), (0.0, 0.0)),
        (ReplicaTimes(load_s=75.0), (75.0, DEFAULT_DRAIN_S)),
        (ReplicaTimes(drain_s=40.0), (DEFAULT_LOAD_S, 40.0)),
        (ReplicaTimes(), (DEFAULT_LOAD_S, DEFAULT_DRAIN_S)),
    ],
)
def test_the_allocator_plans_with_the_measured_times(
    measured: ReplicaTimes, planned: tuple[float, float]
) -> None:
    observed = AllocationObserved(
        a_compute_pool(), NOW, PoolSlices(()), (replace(a_member(), times=measured),)
    )
    [model] = build_allocation_view(observed).snapshot.inferences
    assert (model.placements[0].load_s, model.placements[0].drain_s) == planned


def make_observer(member: PoolMember, by_key: Mapping[ObjectKey, AllocationDecision]) -> PoolObserver:
    """An observer with one member, and with these decisions in the cache."""
    store = SimpleNamespace(by_label=lambda *_: [{"metadata": {"name": key.name}} for key in by_key])
    caches: Any = SimpleNamespace(
        get_slices=lambda _: nodes(8),
        list_claims=lambda _: [member.claim],
        get=lambda _: member.inference,
        find_pool_workload=lambda *_: None,
        list_all=tuple,
        list_live=lambda _: (),
        get_plan=lambda _: None,
    )
    return PoolObserver(
        pools=caches, inferences=caches, decisions=cast("Any", SimpleNamespace(store=store, get=by_key.get)),
        slices_cache=caches, occupancy=caches, placements=caches, spares=caches, overrides=caches,
        clock=cast("Any", SimpleNamespace(now=lambda: NOW)),
    )  # fmt: skip


def observe(member: PoolMember, *decisions: AllocationDecision) -> PoolMember:
    """The member as the allocator observes it, with these decisions in the cache."""
    by_key = {decision.key: decision for decision in decisions}
    [seen] = make_observer(member, by_key).observe_pool(a_compute_pool()).members
    return seen


def started(name: str, seconds: float, **spec: Any) -> AllocationDecision:
    """A decision that started a replica of ads/ctr, which served after so many seconds."""
    outcome = {"appliedAt": format_timestamp(NOW + timedelta(seconds=seconds))}
    return a_decision(("ctr", 1, 2), name=name, outcome=outcome, **spec)


def test_an_inference_without_a_ready_pod_loads_as_long_as_its_last_replicas() -> None:
    drained = a_decision(("ctr", 2, 1), name="cpu-a-2", outcome={"reclaimSeconds": 4.0})
    assert observe(a_member(), started("cpu-a-1", 90), drained).times == ReplicaTimes(90.0, 4.0)
    # A decision about another pool shows nothing about this one.
    assert observe(a_member(), started("cpu-b-1", 90, pool="cpu-b")).times == ReplicaTimes()


@pytest.mark.parametrize(("pods_s", "load_s"), [(None, 90.0), (60.0, 60.0), (600.0, 90.0)])
def test_the_shorter_load_time_of_pods_and_decisions_counts(pods_s: float | None, load_s: float) -> None:
    """A pod that started with many others loads for longer, and so does a decision that waits for something else."""
    member = a_member()
    member = replace(member, claim=replace(member.claim, load_s=pods_s))
    assert observe(member).times == ReplicaTimes(load_s=pods_s)
    assert observe(member, started("cpu-a-1", 90)).times == ReplicaTimes(load_s=load_s)


@pytest.mark.parametrize("name", ["a/b/c", "/", ""])
def test_a_decision_about_a_malformed_name_does_not_stop_the_allocator(name: str) -> None:
    move = {"inference": name, "tier": "realtime", "from": 1, "to": 2, "slices": 1}
    outcome = {"appliedAt": format_timestamp(NOW + timedelta(seconds=30))}
    malformed = a_decision(name="cpu-a-2", moves=[move], outcome=outcome)
    assert observe(a_member(), malformed, started("cpu-a-1", 90)).times == ReplicaTimes(load_s=90.0)


def test_a_load_time_is_measured_again_only_when_a_decision_has_changed() -> None:
    decisions = [started("cpu-a-1", 90), a_decision(("ctr", 2, 3), name="cpu-a-2")]
    by_key = {decision.key: decision for decision in decisions}
    observer = make_observer(a_member(), by_key)

    def read_times() -> ReplicaTimes:
        [seen] = observer.observe_pool(a_compute_pool()).members
        return seen.times

    first = read_times()
    assert first == ReplicaTimes(load_s=90.0)
    assert read_times() is first
    finished = started("cpu-a-2", 50)
    by_key[finished.key] = finished
    assert read_times() == ReplicaTimes(load_s=70.0)
    by_key.clear()
    assert read_times() == ReplicaTimes()
