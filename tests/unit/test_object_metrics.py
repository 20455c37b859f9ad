"""Metrics of objects: what alerts see of a Ready, a stalled and a scaled one, and who says it."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from tidegate.kube.kinds import FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS, Kind
from tidegate.kube.store import ObjectStore
from tidegate_controllers.object_metrics import ObjectMetrics

CTR = {"namespace": "ads", "name": "ctr"}


def a_store(kind: Kind, *conditions: tuple[str, str, str], **spec: Any) -> ObjectStore:
    """One object, `ads/ctr`, with these conditions: type, status, reason."""
    store = ObjectStore(kind)
    items = [{"type": name, "status": status, "reason": reason} for name, status, reason in conditions]
    status = {"conditions": items, "replicas": 3, "readyReplicas": 2} if items else {}
    store.observe(
        "ADDED", {"metadata": {**CTR, "uid": "1", "resourceVersion": "1"}, "spec": spec, "status": status}
    )
    return store


def a_registry(*stores: ObjectStore, leading: bool = True) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ObjectMetrics(stores, lambda: leading))
    return registry


def test_a_stalled_object_shows_with_its_reason() -> None:
    conditions = [("Ready", "False", "LoadFailed"), ("Stalled", "True", "LoadFailed")]
    registry = a_registry(a_store(INFERENCE, *conditions, replicas=4))

    labels = {"kind": "Inference", **CTR}
    assert registry.get_sample_value("tidegate_object_ready", {**labels, "reason": "LoadFailed"}) == 0
    assert registry.get_sample_value("tidegate_object_stalled", {**labels, "reason": "LoadFailed"}) == 1
    wanted = {
        state: registry.get_sample_value("tidegate_object_replicas", {**labels, "state": state})
        for state in ("wanted", "existing", "ready")
    }
    assert wanted == {"wanted": 4, "existing": 3, "ready": 2}


def test_warm_spares_are_counted_where_there_are_to_be_any() -> None:
    body = a_store(INFERENCE, replicas=4)
    labels = {"kind": "Inference", **CTR, "state": "spare"}
    assert a_registry(body).get_sample_value("tidegate_object_replicas", labels) is None
    [key] = body.keys()
    found = body.get(key) or {}
    body.observe("MODIFIED", {**found, "status": {**found["status"], "spareReplicas": 1}})
    assert a_registry(body).get_sample_value("tidegate_object_replicas", labels) == 1


def test_every_kind_has_its_own_series_and_an_access_has_no_replicas() -> None:
    ready = ("Ready", "True", "Programmed")
    registry = a_registry(a_store(MODEL_ACCESS, ready), a_store(FEATURE_COMPUTE, ready))

    for kind in ("ModelAccess", "FeatureCompute"):
        labels = {"kind": kind, **CTR, "reason": "Programmed"}
        assert registry.get_sample_value("tidegate_object_ready", labels) == 1
    scaled = {
        sample.labels["kind"]
        for family in registry.collect()
        for sample in family.samples
        if family.name == "tidegate_object_replicas"
    }
    assert scaled == {"FeatureCompute"}


def test_an_object_without_a_status_yet_has_no_verdict() -> None:
    registry = a_registry(a_store(INFERENCE))

    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {"tidegate_object_replicas"}


def test_a_follower_says_nothing() -> None:
    registry = a_registry(a_store(INFERENCE, ("Ready", "True", "AllReplicasReady")), leading=False)

    assert [sample for family in registry.collect() for sample in family.samples] == []
