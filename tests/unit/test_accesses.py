"""The index of ModelAccesses: who uses an Inference, whose a host is, and who must look again."""

from __future__ import annotations

from typing import Any

import pytest

from builders.batch import batch_spec
from builders.inference import inference_body
from builders.live_features import live_features_spec, stream_source
from builders.model_access import a_model_access, a_route, model_access_body
from builders.overlay import overlaid
from builders.shared_features import a_user, an_origin, shared
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.kinds import FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.features.feature_jobs import list_used_features
from tidegate.planning.features.shared_features import list_shared_keys
from tidegate_controllers.queues import make_sharing_wake
from tidegate_controllers.typed_caches import FeatureUsersIndex, IndexedAccesses

ONE, OTHER = ObjectKey("ads", "one"), ObjectKey("ads", "other")


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(MODEL_ACCESS)


@pytest.fixture
def accesses(store: ObjectStore) -> IndexedAccesses:
    return IndexedAccesses(store)


def stored(store: ObjectStore, name: str, *, version: int = 1, **spec: Any) -> None:
    metadata = {"resourceVersion": str(version), "creationTimestamp": f"2026-01-0{len(name)}T00:00:00Z"}
    store.observe("MODIFIED", model_access_body(name, metadata=metadata, **spec))


def test_an_inference_finds_those_who_use_it_and_no_longer_those_who_did(
    store: ObjectStore, accesses: IndexedAccesses
) -> None:
    stored(store, "one", routes=[a_route("default", "ctr", "cvr")])
    stored(store, "other", routes=[a_route("default", "ctr")])
    assert accesses.find_by_inference(ObjectKey("ads", "ctr")) == (ONE, OTHER)
    assert accesses.find_by_inference(ObjectKey("ads", "cvr")) == (ONE,)
    assert accesses.find_by_inference(ObjectKey("shop", "ctr")) == ()

    stored(store, "one", version=2, routes=[a_route("default", "cvr")])
    assert accesses.find_by_inference(ObjectKey("ads", "ctr")) == (OTHER,)

    store.observe("DELETED", model_access_body("other", metadata={"resourceVersion": "3"}))
    assert accesses.find_by_inference(ObjectKey("ads", "ctr")) == ()


def test_an_index_made_late_knows_what_was_there(store: ObjectStore) -> None:
    stored(store, "one", routes=[a_route("default", "ctr")])

    assert IndexedAccesses(store).find_by_inference(ObjectKey("ads", "ctr")) == (ONE,)


def test_a_host_leads_to_the_older_until_that_gives_it_up(
    store: ObjectStore, accesses: IndexedAccesses
) -> None:
    stored(store, "one", hosts=["x.com"])
    stored(store, "other", hosts=["x.com", "y.com"])
    newer = a_model_access(
        "other", hosts=["x.com", "y.com"], metadata={"creationTimestamp": "2026-01-05T00:00:00Z"}
    )
    assert accesses.claim_hosts(newer) == {"x.com": ONE, "y.com": OTHER}

    stored(store, "one", version=2, hosts=["z.com"])
    assert accesses.claim_hosts(newer) == {"x.com": OTHER, "y.com": OTHER}


def test_rivals_for_a_host_are_woken_and_nobody_else(store: ObjectStore, accesses: IndexedAccesses) -> None:
    woken: list[ObjectKey] = []
    accesses.subscribe_rivals(woken.append)
    stored(store, "one", hosts=["x.com"])
    stored(store, "third", hosts=["y.com"])
    assert woken == []

    stored(store, "other", hosts=["x.com"])
    assert woken == [ONE]

    stored(store, "other", version=2, hosts=["z.com"])
    assert woken == [ONE, ONE]


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"spec": {"features": live_features_spec()["features"][:2]}}, True),
        ({"spec": {"sources": live_features_spec(sources=[stream_source()])["sources"]}}, True),
        ({"metadata": {"annotations": {"tidegate.io/shared-with": "ops"}}}, True),
        ({"metadata": {"uid": "made-again"}}, True),
        ({"spec": {"replicas": 7}}, False),
        ({"spec": {"resources": {"memory": "3Gi"}}}, False),
        ({"metadata": {"annotations": {"note": "x"}}}, False),
        ({"status": {"readyReplicas": 1}}, False),
    ],
)
def test_a_change_of_what_a_shared_feature_is_made_of_wakes_its_users_and_no_other_does(
    change: dict[str, Any], wakes: bool
) -> None:
    features, woken = ObjectStore(FEATURE_COMPUTE), list[ObjectKey]()
    sharers = FeatureUsersIndex(TypedCache(FeatureCompute, features), list_shared_keys)
    features.subscribe(make_sharing_wake(features, sharers, woken.append))

    def store_one(item: FeatureCompute, version: int, event: str = "MODIFIED", **changes: Any) -> None:
        body = overlaid(item.dump(), {"metadata": {"resourceVersion": str(version)}})
        features.observe(event, {"kind": "FeatureCompute", **overlaid(body, changes)})

    store_one(a_user(shared("idle")), 1)
    store_one(an_origin(), 2)
    home = ObjectKey("feed", "home")
    assert woken == [home]

    store_one(an_origin(), 3, **change)

    assert woken == ([home, home] if wakes else [home])
    woken.clear()
    store_one(an_origin(), 4, "DELETED")
    assert woken == [home]


def test_a_feature_compute_finds_the_batches_that_compute_its_features_and_no_others() -> None:
    inferences = ObjectStore(INFERENCE)
    index = FeatureUsersIndex(TypedCache(Inference, inferences), list_used_features)

    def store_batch(name: str, version: int, **batch: Any) -> None:
        metadata = {"resourceVersion": str(version)}
        body = inference_body(name, metadata=metadata, tier="offline", batch=batch_spec(**batch))
        inferences.observe("MODIFIED", body)

    store_batch("scores", 1, features={"name": "live"})
    store_batch("vectors", 1)
    live, other = ObjectKey("ads", "live"), ObjectKey("ads", "other")
    assert index.find_users(live) == (ObjectKey("ads", "scores"),)
    assert index.find_users(ObjectKey("shop", "live")) == ()
    late = FeatureUsersIndex(TypedCache(Inference, inferences), list_used_features)
    assert late.find_users(live) == (ObjectKey("ads", "scores"),)

    store_batch("scores", 2, features={"name": "other"})
    assert (index.find_users(live), index.find_users(other)) == ((), (ObjectKey("ads", "scores"),))

    inferences.observe("DELETED", inference_body("scores", metadata={"resourceVersion": "3"}))
    assert index.find_users(other) == ()
