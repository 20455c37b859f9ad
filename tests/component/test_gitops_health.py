"""What GitOps tools make of our objects in each state: by the real kstatus, and by Argo CD's own Lua with the entries that we give it.

The statuses are the planners' own, and of a new object what the API server fills in by the CRD.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from builders.allocator import a_decision
from builders.batch import batch_spec
from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body, node_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.release import ERRORS
from builders.rollout_world import RolloutWorld
from fixtures.gitops import health, healths, kstatus
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import NOT_OBSERVED
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import ReleaseStatus
from tidegate.api.release_commands import ReleasePhase
from tidegate.planning.access.model_access import AccessObserved, plan_model_access, with_release
from tidegate.planning.access.proxies import ProxyView
from tidegate.planning.access.release import ReleaseMeasurements, ReleasePlan, plan_release
from tidegate.planning.batch.jobs import parse_job
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.pools.compute_override import OverrideObserved, plan_override
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate.planning.pools.nodes import parse_node
from tidegate.planning.pools.pool_slices import sum_pool_slices
from tidegate.resources.settings import ServingSettings
from tidegate.routing import hosts
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
Body = dict[str, Any]


def new(body: Body) -> Body:
    """As the API server has it before anybody has looked."""
    return {**body, "status": {"observedGeneration": NOT_OBSERVED}}


def changed(body: Body) -> Body:
    """Its spec is of a later generation than its status."""
    return {**body, "metadata": {**body["metadata"], "generation": body["metadata"]["generation"] + 1}}


def deleted(body: Body) -> Body:
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T13:00:00Z"}}


def an_inference(ticks: int = 0, refused: str = "") -> Body:
    """An Inference with that many seconds of a rollout behind it; 0: until it settles. `refused`: why its version does not load."""
    world = RolloutWorld(inference_body(replicas=2), refusals={1: refused} if refused else {})
    for _ in range(ticks):
        world.step()
    if not ticks:
        world.settle()
    return world.body


def a_batch(job: str = "", **spec: Any) -> Body:
    """A batch whose Job is as `job` says: not there, at work, failed."""
    body = inference_body(tier="offline", **{"replicas": 2, "batch": batch_spec(), **spec})
    inference = Inference.parse(body)
    made = plan_inference(InferenceObserved(inference, NOW, epoch=3), SETTINGS)
    jobs = [each for each in made.apply if each["kind"] == "Job"]
    states: dict[str, Body] = {
        "at work": {"completedIndexes": "0", "active": 1},
        "complete": {
            "completedIndexes": "0-7",
            "startTime": "2026-01-01T10:00:00Z",
            "completionTime": "2026-01-01T11:00:00Z",
            "conditions": [{"type": "Complete", "status": "True"}],
        },
        "failed": {
            "failedIndexes": "0",
            "conditions": [{"type": "Failed", "status": "True", "reason": "FailedIndexes"}],
        },
    }
    views: list[Any] = []
    if job:
        manifest: Any = jobs[0]
        metadata = {**manifest["metadata"], "uid": "u-1"}
        views = [parse_job({**manifest, "metadata": metadata, "status": states[job]})]
    observed = InferenceObserved(inference, NOW, epoch=3, jobs=tuple(views))
    return {**body, "status": plan_inference(observed, SETTINGS).status}


def an_access(
    acked: int = 1, *, target: str = "ctr", phase: ReleasePhase | None = None, reason: str = ""
) -> Body:
    """A ModelAccess of which a gateway runs that generation, and whose release is so far."""
    others = [{"inference": "v3", "weight": 0}]
    routes = [{"name": "default", "targets": [{"inference": target}, *others]}]
    release = {"release": {"route": "default", "target": "v3", "checks": [ERRORS]}} if phase else {}
    body = model_access_body(routes=routes, **release)
    access = ModelAccess.parse(body)
    released: ReleaseStatus | None = None
    if phase:
        begun = plan_release(access, ReleaseMeasurements(), NOW).status
        assert begun is not None
        released = begun.model_copy(update={"phase": phase, "reason": reason})
        access = with_release(access, released)
    backends = {}
    for name in ("ctr", "v3"):
        key = BackendKey(BackendKind.INFERENCE, "ads", name)
        backends[key] = Backend(key, "ctr", (Endpoint("10.0.0.1"),))
    routing = plan_access(access, backends, hosts.find_host_owners((access,)), None)
    observed = AccessObserved(
        access,
        NOW,
        routing,
        [ProxyView("gateway-1", acked)],
        (),
        gateway="gateway:8080",
        release=ReleasePlan(released),
    )
    return {**body, "status": plan_model_access(observed).status}


def a_release(phase: str, reason: str) -> Body:
    return an_access(phase=ReleasePhase(phase), reason=reason)


def some_features(**spec: Any) -> Body:
    body = feature_compute_body(**spec)
    observed = FeaturesObserved(FeatureCompute.parse(body), NOW, proxies=(ProxyView("gateway-1", 0),))
    return {**body, "status": plan_features(observed, SETTINGS).status}


def a_pool(*nodes: Body, **spec: Any) -> Body:
    body = compute_pool_body(**spec)
    pool = ComputePool.parse(body)
    slices = sum_pool_slices(pool, [parse_node(node) for node in nodes], {}, ())
    return {**body, "status": plan_pool(PoolObserved(pool, NOW, slices)).status}


def an_override(*, exists: bool = True, scaled: bool = True, **spec: Any) -> Body:
    body = compute_override_body(**{"pin": {"replicas": 6}, **spec})
    override = ComputeOverride.parse(body)
    return {**body, "status": plan_override(OverrideObserved(override, NOW, exists, scaled)).status}


def a_record(**fields: Any) -> Body:
    body = a_decision(("ctr", 1, 3), **fields).dump()
    return {"apiVersion": "tidegate.io/v1alpha1", "kind": "AllocationDecision", **body}


STATES: dict[str, tuple[Callable[[], Body], str, str]] = {
    "Inference new": (lambda: new(inference_body()), "InProgress", "Progressing"),
    "Inference loads": (lambda: an_inference(ticks=2), "InProgress", "Progressing"),
    "Inference serves": (an_inference, "Current", "Healthy"),
    "Inference changed": (lambda: changed(an_inference()), "InProgress", "Progressing"),
    "Inference does not load": (lambda: an_inference(refused="invalid model"), "Failed", "Degraded"),
    "Inference deleted": (lambda: deleted(an_inference()), "Terminating", "Progressing"),
    "batch before its pods": (a_batch, "InProgress", "Progressing"),
    "batch at work": (lambda: a_batch("at work"), "Current", "Progressing"),
    "batch held": (lambda: a_batch(replicas=0), "Current", "Suspended"),
    "batch complete": (lambda: a_batch("complete"), "Current", "Healthy"),
    "batch failed": (lambda: a_batch("failed"), "Failed", "Degraded"),
    "ModelAccess new": (lambda: new(model_access_body()), "InProgress", "Progressing"),
    "ModelAccess without its gateways": (lambda: an_access(acked=0), "InProgress", "Progressing"),
    "ModelAccess serves": (an_access, "Current", "Healthy"),
    "ModelAccess changed": (lambda: changed(an_access()), "InProgress", "Progressing"),
    "ModelAccess waits for its target": (lambda: an_access(target="gone"), "InProgress", "Progressing"),
    "ModelAccess releases": (lambda: a_release("Progressing", "Stepping"), "Current", "Progressing"),
    "ModelAccess holds a release": (lambda: a_release("Paused", "Paused"), "Current", "Suspended"),
    "ModelAccess took a release back": (
        lambda: a_release("RolledBack", "CheckFailed"),
        "Current",
        "Degraded",
    ),
    "ModelAccess promoted": (lambda: a_release("Promoted", "Promoted"), "Current", "Healthy"),
    "ModelAccess deleted": (lambda: deleted(an_access()), "Terminating", "Progressing"),
    "FeatureCompute new": (lambda: new(feature_compute_body()), "InProgress", "Progressing"),
    "FeatureCompute starts": (some_features, "InProgress", "Progressing"),
    "FeatureCompute deleted": (lambda: deleted(some_features()), "Terminating", "Progressing"),
    "ComputePool new": (lambda: new(compute_pool_body()), "InProgress", "Progressing"),
    "ComputePool without nodes": (a_pool, "Failed", "Degraded"),
    "ComputePool with nodes": (lambda: a_pool(node_body()), "Current", "Healthy"),
    "ComputePool changed": (lambda: changed(a_pool(node_body())), "InProgress", "Progressing"),
    "ComputeOverride new": (lambda: new(compute_override_body()), "InProgress", "Progressing"),
    "ComputeOverride in force": (an_override, "Current", "Healthy"),
    "ComputeOverride over": (
        lambda: an_override(expiresAt="2026-01-01T11:00:00Z"),
        "Failed",
        "Suspended",
    ),
    "ComputeOverride of nothing": (lambda: an_override(exists=False), "Failed", "Degraded"),
    "AllocationDecision recommended": (lambda: a_record(mode="RecommendOnly"), "Current", "Healthy"),
    "AllocationDecision under way": (a_record, "Current", "Progressing"),
    "AllocationDecision carried out": (
        lambda: a_record(outcome={"appliedAt": "2026-01-01T12:01:00Z"}),
        "Current",
        "Healthy",
    ),
    "AllocationDecision given up": (
        lambda: a_record(outcome={"error": "the pool changed"}),
        "Current",
        "Degraded",
    ),
}


@cache
def built() -> dict[str, Body]:
    return {name: build() for name, (build, _, _) in STATES.items()}


@pytest.mark.parametrize("kind", [each.resource.KIND for each in KIND_DEFINITIONS])
def test_tools_wait_for_what_is_under_way_and_fail_where_somebody_has_to_act(kind: str) -> None:
    bodies = {name: body for name, body in built().items() if body["kind"] == kind}
    waits, said = kstatus(*bodies.values()), healths(*bodies.values())

    found = {name: (wait, shown) for name, wait, (shown, _) in zip(bodies, waits, said, strict=True)}
    assert bodies
    assert found == {name: STATES[name][1:] for name in bodies}
    assert all(message for _, message in said)


def test_without_the_default_of_the_crd_a_new_object_would_count_as_done() -> None:
    """Which is why the CRDs have it."""
    assert kstatus(inference_body()) == ["Current"]


def test_a_message_says_what_the_condition_says() -> None:
    verdict, message = health(an_inference(refused="invalid model"))

    assert verdict == "Degraded"
    assert message.startswith("LoadFailed: ")
    assert "invalid model" in message
