"""Whatever anybody writes into an object of a kind that we watch: it troubles nobody but its owner."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders.compute_pool import compute_pool_body, node_body
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.kinds import HORIZONTAL_POD_AUTOSCALER, INFERENCE
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.resources.names import (
    BOUNDED_ANNOTATION,
    INFERENCE_LABEL,
    LAST_READY_ANNOTATION,
    MAX_REPLICAS_LABEL,
    ROLLED_BACK_ANNOTATION,
)
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.xds.snapshot_builder import SnapshotBuilder
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolSources
from tidegate_controllers.stores import Stores
from tidegate_controllers.workloads import KueueWorkloads

OURS = {
    "app.kubernetes.io/managed-by": "tidegate",
    INFERENCE_LABEL: "ctr",
    "tidegate.io/pool": "cpu-a",
    "tidegate.io/slices": "1",
    "tidegate.io/tier": "realtime",
}
GOOD, VICTIM = "neighbour", "ctr"


def _metadata(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ads", "uid": f"uid-{name}", "labels": OURS, **fields}


def a_pod(name: str = "odd", *, inference: str = VICTIM, ip: str = "10.0.0.9") -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}
    container = {"name": "triton", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-01T00:00:00Z"}}
    labels = {**OURS, INFERENCE_LABEL: inference}
    return {
        "metadata": {
            **_metadata(name, annotations={"tidegate.io/template": "t", "tidegate.io/calls": "a,b"}),
            **of_deployment(f"inf-{inference}", labels),
        },
        "spec": {"nodeName": "node-a", "containers": [container], "initContainers": [container]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [ready],
            "containerStatuses": [{"name": "triton", "ready": True, "restartCount": 3, "lastState": ended}],
        },
    }


def a_deployment(inference: str = VICTIM) -> dict[str, Any]:
    labels = {**OURS, INFERENCE_LABEL: inference}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "triton"}]}}
    annotations = {LAST_READY_ANNOTATION: "{}", ROLLED_BACK_ANNOTATION: "{}"}
    return {
        "metadata": {
            **_metadata(f"inf-{inference}", annotations=annotations, generation=1),
            **of_inference(inference),
            "labels": labels,
        },
        "spec": {"replicas": 2, "template": template},
        "status": {"observedGeneration": 1, "replicas": 2, "conditions": [{"type": "Progressing"}]},
    }


def a_job(name: str = "inf-odd-1") -> dict[str, Any]:
    template = {"metadata": {"labels": OURS}, "spec": {"containers": []}}
    return {
        "metadata": {**_metadata(name, annotations={}), **of_inference(VICTIM)},
        "spec": {"parallelism": 1, "completions": 2, "template": template},
        "status": {"completedIndexes": "0,2-3", "failedIndexes": "1", "conditions": [{"type": "Failed"}]},
    }


def a_workload() -> dict[str, Any]:
    owner = {"kind": "Job", "name": "inf-odd-1", "uid": "uid-inf-odd-1", "controller": True}
    return {
        "metadata": _metadata("job-odd", ownerReferences=[owner]),
        "spec": {"podSets": [{"template": {}}], "queueName": "q"},
        "status": {
            "conditions": [{"type": "Evicted", "status": "True", "reason": "Preempted", "message": "m"}]
        },
    }


def a_secret(name: str = "odd") -> dict[str, Any]:
    key = base64.b64encode(b"k" * 32).decode()
    return {"metadata": _metadata(name, annotations={}), "type": "Opaque", "data": {"caller": key}}


def an_autoscaler(inference: str = VICTIM) -> dict[str, Any]:
    target = {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": inference}
    metadata = _metadata(f"of-{inference}", annotations={BOUNDED_ANNOTATION: "2"})
    return {
        "metadata": {**metadata, "labels": {**OURS, MAX_REPLICAS_LABEL: "4"}},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2},
    }


class ControlPlane:
    """The caches of xDS and of the controllers with who reads them, fed as watches feed them."""

    def __init__(self) -> None:
        self.feed, self.routing = RoutingInputs(secret_namespaces=("ads",)), IncrementalTranslator()
        self.builder = SnapshotBuilder(ListenerSettings())
        self.stores = Stores()
        ownership = Ownership(self.stores)
        self.occupancy = NodeOccupancy(self.stores.pods, ownership.owns_pod)
        ownership.subscribe(self.occupancy.refresh_pod)
        pools = TypedCache(ComputePool, self.stores.pools)
        self.inferences = TypedCache(Inference, self.stores.inferences)
        self.placements = Placements(
            PoolSources(pools, PoolSlicesCache(pools, self.occupancy), self.occupancy, ownership),
            self.inferences,
            self.stores,
        )
        self.workloads = KueueWorkloads(None, self.stores.jobs)  # type: ignore[arg-type]  nothing is watched
        self.autoscalers = ObjectStore(HORIZONTAL_POD_AUTOSCALER)
        self.limits = AutoscalerLimits(None, self.autoscalers)  # type: ignore[arg-type]  nothing is written
        self.occupancy.start_watching()
        self._version = 0
        self.takes(self.stores.pools, compute_pool_body("cpu-a", nodeSelector={"pool": "a"}))
        self.takes(self.nodes, node_body("node-a", labels={"pool": "a"}))
        for name in (GOOD, VICTIM):
            placement = {"pool": "cpu-a", "slices": 1}
            body = inference_body(name, "ads", placement=placement, replicas=1)
            body["metadata"]["uid"] = f"uid-ads-{name}"
            self.takes(self.stores.inferences, body)
            self.takes(self.feed.own_stores[0], body)
        self.takes(self.stores.deployments, a_deployment(GOOD))
        good = a_pod("good", inference=GOOD, ip="10.0.0.1")
        self.takes(self.stores.pods, good)
        self.takes(self.feed.pods, good)
        self.takes(self.feed.secrets["ads"], a_secret("good"))
        self.takes(self.autoscalers, an_autoscaler(GOOD))

    @property
    def nodes(self) -> ObjectStore:
        return self.occupancy.own_stores[0]

    def stores_of(self, kind: str) -> tuple[ObjectStore, ...]:
        return {
            "Pod": (self.feed.pods, self.stores.pods, self.occupancy.own_stores[1]),
            "Deployment": (self.stores.deployments,),
            "Job": (self.stores.jobs,),
            "Node": (self.nodes,),
            "Workload": (self.workloads.store,),
            "ConfigMap": (self.stores.config_maps,),
            "Secret": (self.feed.secrets["ads"],),
            "HorizontalPodAutoscaler": (self.autoscalers,),
        }[kind]

    def takes(self, store: ObjectStore, body: Mapping[str, Any]) -> None:
        self._version += 1
        metadata = {"uid": "u", **body["metadata"], "resourceVersion": str(self._version)}
        store.observe("MODIFIED", {**body, "metadata": metadata})

    def of_neighbour(self) -> tuple[object, ...]:
        """All that the neighbour gets: its endpoints at the gateways, its place in the pool, its pods and its autoscaler."""
        self.feed.feed_changes(self.routing)
        snapshot = self.builder.apply_change(self.routing.take_change())
        named = [
            resource
            for resources in snapshot.resources.values()
            for name, resource in resources.items()
            if GOOD in name
        ]
        inference = self.inferences.get(ObjectKey("ads", GOOD))
        assert inference is not None
        assert named
        placement = self.placements.place(inference)
        self.placements.forget_assumed(inference.key)
        views = self.stores.pod_views.by_label(INFERENCE_LABEL, GOOD, namespace="ads")
        autoscalers = [view for view in self.limits._list_views() if view.inference.name == GOOD]
        assert autoscalers
        return named, placement, (views, autoscalers)

    def faults(self) -> Mapping[str, str]:
        return {**self.feed.faults.failures, **self.routing.faults.failures, **self.builder.faults.failures}


BASES = {
    "Pod": a_pod(),
    "Deployment": a_deployment(),
    "Job": a_job(),
    "Node": node_body("node-b", labels={"pool": "b"}),
    "Workload": a_workload(),
    "ConfigMap": {"metadata": _metadata("odd"), "data": {"config.json": "{}"}},
    "Secret": a_secret(),
    "HorizontalPodAutoscaler": an_autoscaler(),
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=12),
    st.sampled_from(
        [
            "1e90",
            "1e300",
            "-1e90",
            "999999999999999999999",
            "[" * 5_000,
            "{" * 5_000,
            "1-",
            "0-99999999",
            "\x00",
        ]
    ),
    st.sampled_from([{}, [], [None], {"": None}]),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below the metadata's name, namespace, uid: those an object always has."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        if path == ("metadata",) and name in {"name", "namespace", "uid"}:
            continue
        here = (*path, name)
        if here not in {("metadata",), ("metadata", "labels")}:
            yield here
        yield from _paths(inner, here)


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An object with a few values that are of no use, or of another type than the API server lets through."""
    kind = draw(st.sampled_from(sorted(BASES)))
    body = copy.deepcopy(BASES[kind])
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(sorted(_paths(body), key=str)))
        place = body
        for each in way:
            place = place[each]
        place[last] = draw(LEAVES)
    return kind, body


@example([("Secret", {**a_secret(), "data": "text"})])
@example([("HorizontalPodAutoscaler", {**an_autoscaler(), "spec": None})])
@given(st.lists(broken(), min_size=1, max_size=4))
def test_what_a_neighbour_writes_changes_nothing_for_anybody_else(
    written: list[tuple[str, dict[str, Any]]],
) -> None:
    calm, plane = ControlPlane(), ControlPlane()
    for kind, body in written:
        for store in plane.stores_of(kind):
            plane.takes(store, body)
    # A node of theirs and a pod on the pool's node are real: only who gets what of the pool may differ then.
    named, _, views = plane.of_neighbour()
    assert (named, views) == (calm.of_neighbour()[0], calm.of_neighbour()[2])
    assert not plane.faults()


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Pod", ("spec", "containers", 0, "resources", "requests", "cpu"), "1e90"),
        ("Pod", ("spec", "containers", 0, "resources", "requests", "cpu"), "1e300"),
        ("Deployment", ("metadata", "annotations", LAST_READY_ANNOTATION), "[" * 5_000),
        ("Deployment", ("metadata", "annotations", ROLLED_BACK_ANNOTATION), "[" * 5_000),
        ("Secret", ("data", "caller"), "[" * 5_000),
        ("Secret", ("data", "caller"), ""),
        ("HorizontalPodAutoscaler", ("metadata", "labels", MAX_REPLICAS_LABEL), "9" * 63),
        ("HorizontalPodAutoscaler", ("metadata", "annotations", BOUNDED_ANNOTATION), "[" * 5_000),
    ],
)
def test_what_the_api_server_stores_is_read(kind: str, path: tuple[Any, ...], value: str) -> None:
    plane, body = ControlPlane(), copy.deepcopy(BASES[kind])
    place: Any = body
    for each in path[:-1]:
        place = place[each]
    place[path[-1]] = value
    for store in plane.stores_of(kind):
        plane.takes(store, body)
        assert not store.left_out
    plane.of_neighbour()
    assert not plane.faults()


def test_an_exception_about_one_access_leaves_all_others_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: nobody has foreseen it."""
    plane = ControlPlane()
    before = plane.of_neighbour()[0]
    original = RoutingInputs._build_backend

    def failing(feed: RoutingInputs, key: Any, group: Any) -> Any:
        if key.name == VICTIM:
            raise ArithmeticError
        return original(feed, key, group)

    monkeypatch.setattr(RoutingInputs, "_build_backend", failing)
    plane.takes(plane.feed.pods, a_pod())
    plane.takes(plane.feed.pods, a_pod("good-2", inference=GOOD, ip="10.0.0.2"))
    after = plane.of_neighbour()[0]
    assert after != before
    assert [each.split(" ")[0] for each in plane.faults().values()] == ["ArithmeticError"]
    assert plane.feed.own_stores[0].kind == INFERENCE
