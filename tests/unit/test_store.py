"""The cache: what it holds, what it says changed, and what it does not believe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.pods import a_pod_body
from tidegate.api.meta import ObjectKey
from tidegate.errors import WrongThreadError
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.kube.store import ObjectStore
from tidegate.kube.transforms import share_equal_parts, trim_pod
from tidegate.kube.typed_cache import ViewCache

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0]) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)

A, B = ObjectKey("ads", "a"), ObjectKey("ads", "b")


def a_pod(
    name: str = "a", version: int = 1, *, namespace: str = "ads", owner: str = "", **labels: str
) -> dict[str, Any]:
    owners = [{"uid": owner}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
            "ownerReferences": owners,
            "managedFields": [{"manager": "somebody"}],
        }
    }


def a_store(*labels: str) -> tuple[ObjectStore, list[ObjectKey]]:
    store, told = ObjectStore(POD, labels=labels), []
    store.subscribe(told.append)
    return store, told


def version_of(store: ObjectStore, key: ObjectKey) -> str | None:
    body = store.get(key)
    return None if body is None else body["metadata"]["resourceVersion"]


def test_events_arrive_change_and_go() -> None:
    store, told = a_store()
    store.observe("ADDED", a_pod(version=1))
    store.observe("MODIFIED", a_pod(version=2, owner="other"))
    assert version_of(store, A) == "2"
    store.observe("DELETED", a_pod(version=3))
    assert store.get(A) is None
    assert told == [A, A, A]


def test_an_object_that_says_what_it_said_before_is_no_news_but_its_version_is_kept() -> None:
    store, told = a_store()
    store.observe("ADDED", a_pod(version=1))
    store.observe("MODIFIED", a_pod(version=2))
    assert version_of(store, A) == "2"
    assert told == [A]
    store.observe("MODIFIED", a_pod(version=3, model="another"))
    assert told == [A, A]


def test_an_object_that_is_as_it_was_before_it_could_not_be_read_is_no_longer_left_out() -> None:
    def refuse(body: Any) -> Any:
        if body["metadata"]["labels"]:
            raise ValueError
        return body

    store = ObjectStore(POD, transform=refuse)
    store.observe("ADDED", a_pod(version=1))
    store.observe("MODIFIED", a_pod(version=2, model="odd"))
    assert set(store.left_out) == {A}
    store.observe("MODIFIED", a_pod(version=3))
    assert (store.left_out, version_of(store, A)) == ({}, "3")


def test_what_nobody_reads_is_no_news() -> None:
    store, told = ObjectStore(POD, transform=trim_pod), list[ObjectKey]()
    store.subscribe(told.append)
    body = a_pod_body("ctr-1")
    body["metadata"]["resourceVersion"] = "6"
    store.observe("ADDED", body)
    metadata = {**body["metadata"], "resourceVersion": "7"}
    store.observe(
        "MODIFIED", {**body, "metadata": metadata, "status": {**body["status"], "hostIP": "10.0.0.1"}}
    )
    assert len(told) == 1
    store.observe("MODIFIED", {**body, "metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert len(told) == 2


def test_objects_of_one_template_are_kept_as_one_but_for_what_differs() -> None:
    store, _ = a_store()
    spec = {"containers": [{"name": "triton", "args": ["--a", "--b"], "ports": [{"containerPort": 8443}]}]}
    for name in ("a", "b"):
        body = json.loads(json.dumps({**a_pod(name), "spec": {**spec, "nodeName": f"node-{name}"}}))
        store.observe("ADDED", body)
    one, other = store.get(A) or {}, store.get(B) or {}
    assert one["spec"]["containers"] is other["spec"]["containers"]
    assert (one["spec"]["nodeName"], other["spec"]["nodeName"]) == ("node-a", "node-b")


@given(JSON, JSON)
def test_what_is_shared_is_what_was_given(value: Any, like: Any) -> None:
    made = share_equal_parts(value, like)
    assert json.dumps(made, sort_keys=True) == json.dumps(value, sort_keys=True), (
        "by value and type: 1, 1.0 and true differ"
    )


def test_an_object_that_somebody_cannot_read_stays_as_it_was_for_all() -> None:
    store, told = a_store("app")
    views = ViewCache(store, lambda body: int(body["metadata"]["labels"]["app"]))
    store.subscribe(told.append)
    store.observe("ADDED", a_pod(version=1, app="1"))
    store.observe("MODIFIED", a_pod(version=2, app="one"))
    store.observe("ADDED", a_pod("b", 3, app="two"))
    store.observe("ADDED", a_pod("c", 4, app="3"))
    assert [(key.name, views.get(key)) for key in sorted(store.keys())] == [("a", 1), ("c", 3)]
    assert views.by_label("app", "1") == (1,)
    assert not store.by_label("app", "one")
    assert {key.name: (each.uid, each.problem.split(" ")[0]) for key, each in store.left_out.items()} == {
        "a": ("uid-a", "ValueError"),
        "b": ("uid-b", "ValueError"),
    }
    store.observe("MODIFIED", a_pod(version=5, app="5"))
    store.observe("DELETED", a_pod("b", 6, app="two"))
    assert views.list_all() == (5, 3)
    assert not store.left_out


def test_of_another_object_of_its_name_nothing_stays() -> None:
    store, _ = a_store()
    views = ViewCache(store, lambda body: int(body["metadata"]["labels"]["app"]))
    store.observe("ADDED", a_pod(version=1, app="1"))
    again = a_pod(version=2, app="one")
    again["metadata"]["uid"] = "another"
    store.observe("MODIFIED", again)
    assert store.get(A) is None
    assert views.get(A) is None


def test_a_listing_takes_all_but_what_cannot_be_read_and_forgets_ghosts() -> None:
    def transform(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**body, "data": body["data"]["x"]}

    store = ObjectStore(POD, transform=transform)
    store.replace([a_pod("a", 1), {**a_pod("b", 2), "data": {"x": 1}}])
    assert [key.name for key in store.keys()] == ["b"]  # noqa: SIM118 - a store, not a dict
    assert [key.name for key in store.left_out] == ["a"]
    assert store.synced.is_set()
    store.replace([{**a_pod("b", 2), "data": {"x": 1}}])
    assert not store.left_out


def test_why_an_object_is_left_out_does_not_say_what_it_holds() -> None:
    store, _ = a_store()
    store.subscribe(lambda key: int(store.get(key)["metadata"]["labels"]["token"]))  # type: ignore[index]
    store.observe("ADDED", a_pod(token="s3cret"))
    assert "s3cret" not in store.left_out[A].problem
    assert "test_store.py" in store.left_out[A].problem


async def test_a_change_in_another_thread_is_refused() -> None:
    store, told = a_store()
    for change in (lambda: store.observe("ADDED", a_pod()), lambda: store.replace([a_pod()])):
        with pytest.raises(WrongThreadError, match="event loop"):
            await asyncio.to_thread(change)
    assert not told


def test_an_object_that_was_there_at_the_start_counts_as_added() -> None:
    """kopf passes no event type for those."""
    store, told = a_store()
    store.observe(None, a_pod())
    assert told == [A]


@pytest.mark.parametrize(
    ("event", "body"),
    [("MODIFIED", a_pod(version=4)), ("ADDED", a_pod(version=1)), ("DELETED", a_pod(version=4))],
)
def test_a_late_event_is_not_believed(event: str, body: Mapping[str, Any]) -> None:
    store, told = a_store()
    store.observe("ADDED", a_pod(version=5))
    store.observe(event, body)
    assert version_of(store, A) == "5"
    assert told == [A]


def test_a_repeated_event_says_nothing() -> None:
    store, told = a_store()
    store.observe("ADDED", a_pod())
    store.observe("ADDED", a_pod())
    assert told == [A]


def test_the_end_of_what_was_not_known_says_nothing() -> None:
    store, told = a_store()
    store.observe("DELETED", a_pod())
    assert told == []


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    store, _ = a_store()
    body = a_pod()
    for version in ("b", "a"):
        store.observe("MODIFIED", {"metadata": {**body["metadata"], "resourceVersion": version}})
    assert version_of(store, A) == "a"


def test_a_listing_drops_ghosts_and_says_only_what_changed() -> None:
    store, told = a_store()
    store.replace([a_pod("a"), a_pod("b")])
    assert store.synced.is_set()
    told.clear()
    store.replace([a_pod("a"), a_pod("c", version=9)])
    assert sorted(told) == [B, ObjectKey("ads", "c")]
    assert store.keys() == (A, ObjectKey("ads", "c"))


def test_listings_of_single_namespaces_leave_those_of_others_alone_and_are_all_waited_for() -> None:
    store, told = a_store()
    store.expect_listings(["ads", "shop"])
    store.replace([a_pod("a"), a_pod("b")], namespace="ads")
    assert not store.synced.is_set()
    store.replace([a_pod("a", namespace="shop")], namespace="shop")
    assert store.synced.is_set()
    told.clear()
    store.replace([a_pod("a")], namespace="ads")
    assert told == [B]
    assert set(store.keys()) == {A, ObjectKey("shop", "a")}


def test_a_namespace_that_may_not_be_listed_is_waited_for_until_another_was() -> None:
    store, told = a_store()
    store.expect_listings(["ads", "shop"])
    store.skip_namespace("shop")
    assert not store.synced.is_set(), "nothing is known yet"
    store.replace([a_pod("a")], namespace="ads")
    assert not store.synced.is_set()
    store.skip_namespace("shop")
    assert store.synced.is_set()
    told.clear()
    store.skip_namespace("ads")
    assert (told, set(store.keys())) == ([], {A})


def test_a_resync_of_some_namespaces_leaves_those_of_others() -> None:
    store, _ = a_store()
    store.observe("ADDED", a_pod("a", version=5))
    store.observe("ADDED", a_pod("ghost", version=5))
    store.observe("ADDED", a_pod("a", namespace="shop", version=5))
    store.prune_absent([A], "10", within=["ads"])
    assert set(store.keys()) == {A, ObjectKey("shop", "a")}


def test_a_listing_from_a_restored_etcd_is_believed() -> None:
    store, _ = a_store()
    store.observe("ADDED", a_pod(version=900))
    store.replace([a_pod(version=500)])
    assert version_of(store, A) == "500"


def test_a_resync_beside_another_feeder_keeps_what_is_newer_than_the_listing() -> None:
    store, told = a_store()
    store.observe("ADDED", a_pod("a", version=5))
    store.observe("ADDED", a_pod("ghost", version=6))
    store.observe("ADDED", a_pod("b", version=12))
    told.clear()
    store.observe("MODIFIED", a_pod("a", version=4))
    store.prune_absent([A], resource_version="10")
    assert version_of(store, A) == "5"
    assert version_of(store, B) == "12"
    assert told == [ObjectKey("ads", "ghost")]
    assert store.synced.is_set()


def test_objects_are_found_by_label_and_owner_as_these_change() -> None:
    store, _ = a_store("tidegate.io/inference")
    label = {"tidegate.io/inference": "ctr"}
    store.observe("ADDED", a_pod("b", 1, owner="uid-1", **label))
    store.observe("ADDED", a_pod("a", 2, owner="uid-1", **label))
    store.observe("ADDED", a_pod("a", 3, namespace="video", **label))
    assert [body["metadata"]["name"] for body in store.by_label("tidegate.io/inference", "ctr")] == [
        "a",
        "b",
        "a",
    ]
    assert len(store.by_label("tidegate.io/inference", "ctr", namespace="video")) == 1
    assert len(store.by_owner("uid-1")) == 2
    store.observe("MODIFIED", a_pod("b", 4, **{"tidegate.io/inference": "cvr"}))
    assert len(store.by_label("tidegate.io/inference", "ctr", namespace="ads")) == 1
    assert len(store.by_owner("uid-1")) == 1
    store.observe("DELETED", a_pod("a", 5))
    assert store.by_label("tidegate.io/inference", "ctr", namespace="ads") == ()
    assert store.by_owner("uid-1") == ()


def test_a_label_that_is_not_indexed_is_a_mistake() -> None:
    store, _ = a_store()
    with pytest.raises(KeyError):
        store.by_label("app", "x")


def test_managed_fields_are_not_kept() -> None:
    store, _ = a_store()
    store.observe("ADDED", a_pod())
    assert "managedFields" not in store.list()[0]["metadata"]


def test_a_list_is_ordered_and_may_be_of_one_namespace() -> None:
    store = ObjectStore(INFERENCE)
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        store.observe("ADDED", a_pod(name, namespace=namespace))
    assert [body["metadata"]["name"] for body in store.list()] == ["y", "z", "x"]
    assert len(store.list("a")) == len([*store]) - 1 == 2


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
        st.sampled_from(["a", "b"]),
        st.integers(1, 9),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["", "uid-1", "uid-2"]),
    )
)


@given(EVENTS)
def test_the_indexes_agree_with_the_objects_whatever_comes(
    events: list[tuple[str, str, int, str, str]],
) -> None:
    store, _ = a_store("app")
    for event, name, version, label, owner in events:
        store.observe(event, a_pod(name, version, owner=owner, app=label))
    for label in ("x", "y"):
        expected = [body for body in store.list() if body["metadata"]["labels"]["app"] == label]
        assert list(store.by_label("app", label)) == expected
    for owner in ("uid-1", "uid-2"):
        expected = [body for body in store.list() if {"uid": owner} in body["metadata"]["ownerReferences"]]
        assert list(store.by_owner(owner)) == expected


@given(st.permutations([a_pod(version=number) for number in range(1, 6)]))
def test_in_whatever_order_events_come_the_newest_stays(bodies: list[dict[str, Any]]) -> None:
    store, _ = a_store()
    for body in bodies:
        store.observe("MODIFIED", body)
    assert version_of(store, A) == "5"
