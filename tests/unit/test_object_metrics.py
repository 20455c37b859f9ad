"""Metrics of objects: what alerts see of a Ready, a stalled and a scaled one, and who says it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tidegate.exporters.objects import ObjectMetrics
from tidegate.kube.kinds import COMPUTE_OVERRIDE, COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS, Kind
from tidegate.kube.store import ObjectStore

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


def a_body(kind: Kind, body: dict[str, Any], **metadata: str) -> ObjectStore:
    store = ObjectStore(kind)
    store.observe("ADDED", {"metadata": {**CTR, "uid": "1", "resourceVersion": "1", **metadata}, **body})
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
        for state in ("desired", "existing", "ready")
    }
    assert wanted == {"desired": 4, "existing": 3, "ready": 2}


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


def test_an_objective_is_told_as_shares_of_the_gateways_buckets() -> None:
    registry = a_registry(a_store(INFERENCE, slo={"latencyP99": "30ms"}))

    whose = {"namespace": "ads", "inference": "ctr"}
    assert registry.get_sample_value("tidegate_inference_slo_latency_seconds", whose) == 0.03
    assert registry.get_sample_value("tidegate_inference_slo_objective_ratio", whose) == 0.99
    shares = {
        sample.labels["le"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if family.name == "tidegate_inference_slo_bucket_share"
    }
    assert shares == {"25": pytest.approx(0.8), "50": pytest.approx(0.2)}


def test_what_promises_nothing_has_no_objective() -> None:
    registry = a_registry(a_store(INFERENCE))

    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert not [name for name in names if "slo" in name]


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ({"target": "4", "serving": "3"}, {"target": 4, "serving": 3}),
        ({"target": "4"}, {"target": 4, "serving": 0}),
        ({}, {}),
    ],
    ids=["behind", "none-serves", "unknown"],
)
def test_versions_show_what_is_asked_for_and_what_answers(
    versions: dict[str, str], shown: dict[str, float]
) -> None:
    registry = a_registry(a_body(INFERENCE, {"spec": {}, "status": {"versions": versions}}))

    found = {
        sample.labels["state"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if family.name == "tidegate_inference_version"
    }
    assert found == shown


def test_an_override_says_whose_it_is_since_when_and_until_when() -> None:
    spec = {"target": {"kind": "Inference", **CTR}, "expiresAt": "2026-11-22T18:00:00Z"}
    registry = a_registry(
        a_body(COMPUTE_OVERRIDE, {"spec": spec}, name="pin-ctr", creationTimestamp="2026-11-22T17:00:00Z")
    )

    labels = {"override": "pin-ctr", "kind": "Inference", **CTR}
    created = registry.get_sample_value("tidegate_override_created_timestamp_seconds", labels)
    expires = registry.get_sample_value("tidegate_override_expires_timestamp_seconds", labels)
    assert created is not None
    assert expires == created + 3600


def test_a_pool_shows_its_slices_their_tiers_and_faulty_nodes() -> None:
    status = {
        "slices": {"total": 8, "healthy": 4, "free": 1},
        "tiers": [{"name": "realtime", "slices": 3}],
        "faultyNodes": [{"node": "gpu-0", "state": "Quarantined"}],
        "imbalancePercent": 25,
        "sharedSpares": {
            "slices": 3,
            "spares": [{"name": "a"}, {"name": "b"}, {"name": "c", "problem": "it has no pod yet"}],
            "uncovered": [{"inference": "ads/ctr", "reason": "no room"}],
        },
    }
    plain = a_body(COMPUTE_POOL, {"spec": {}}, name="gpu-b")
    registry = a_registry(a_body(COMPUTE_POOL, {"spec": {}, "status": status}, name="gpu-a"), plain)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(metric, {"pool": "gpu-a", **labels})

    assert value("tidegate_pool_slices", state="healthy") == 4
    assert value("tidegate_pool_tier_slices", tier="realtime") == 3
    assert value("tidegate_pool_imbalance_ratio") == 1.25
    assert value("tidegate_pool_faulty_nodes", state="Quarantined") == 1
    assert value("tidegate_pool_faulty_nodes", state="Restarting") == 0
    assert value("tidegate_pool_shared_spare_slices") == 3
    assert value("tidegate_pool_shared_spares", state="ready") == 2
    assert value("tidegate_pool_shared_spares", state="incomplete") == 1
    assert value("tidegate_pool_uncovered_inferences") == 1
    assert registry.get_sample_value("tidegate_pool_shared_spare_slices", {"pool": "gpu-b"}) == 0
