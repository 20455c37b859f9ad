"""The routing that follows a fleet ends where a plan of the whole fleet does, byte for byte, whatever happened in between."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.any_fleet import any_fleet
from builders.fleet import a_backend, a_feature_compute, a_fleet
from builders.model_access import a_model_access, a_route
from builders.tokens import Issuer
from stages.examples import examples
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.credentials import KeyFetchFailed, SecretData
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.fleet import Backend, FleetState
from tidegate.routing.hosts import HostKey
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.routing.planner import plan_routing
from tidegate.xds.resources import Snapshot, TypeUrl
from tidegate.xds.snapshot_builder import SnapshotBuilder


class Replica:
    """What one xDS server has of the routing."""

    def __init__(self) -> None:
        self.routing = IncrementalTranslator()
        self.builder = SnapshotBuilder(ListenerSettings())

    def snapshot(self) -> Snapshot:
        """The newest."""
        return self.builder.apply_change(self.routing.take_change())

    def becomes(self, fleet: FleetState) -> Snapshot:
        """The snapshot of a fleet in place of the one before."""
        self.routing.replace_fleet(fleet)
        return self.snapshot()

    def put_secret(self, name: str, entries: dict[str, bytes] | None) -> Snapshot:
        """The snapshot with this Secret in place of the one before."""
        self.routing.put_secret(ObjectKey("ads", name), None if entries is None else SecretData(entries))
        return self.snapshot()

    def put(self, *parts: ModelAccess | Backend) -> Snapshot:
        """The snapshot with these new or changed."""
        for part in parts:
            if isinstance(part, Backend):
                self.routing.put_backend(part.key, part)
            else:
                self.routing.put_access(part.key, part)
        return self.snapshot()


def planned(fleet: FleetState) -> Snapshot:
    """The snapshot of a whole plan."""
    return SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(fleet))


def same(one: Snapshot, other: Snapshot) -> bool:
    """Whether proxies and reports cannot tell them apart."""
    return (one.revision, one.resources, one.hosts, one.refusals) == (
        other.revision,
        other.resources,
        other.hosts,
        other.refusals,
    )


def changed(one: Snapshot, other: Snapshot) -> set[HostKey]:
    """The hosts whose state differs."""
    return {key for key in {*one.hosts, *other.hosts} if one.hosts.get(key) != other.hosts.get(key)}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(any_fleet(), min_size=1, max_size=5))
def test_a_followed_fleet_is_routed_as_a_planned_one(fleets: list[FleetState]) -> None:
    replica = Replica()
    for fleet in fleets:
        assert same(replica.becomes(fleet), planned(fleet))


@settings(max_examples=examples(60))
@given(any_fleet(), any_fleet(), st.randoms())
def test_replicas_that_learn_in_another_order_serve_the_same_bytes(
    before: FleetState, fleet: FleetState, random: Any
) -> None:
    one, other = Replica(), Replica()
    one.becomes(before)
    one.routing.replace_fleet(FleetState([], {}))
    one.routing.replace_fleet(a_fleet(fleet.credentials))
    other.routing.replace_fleet(a_fleet(fleet.credentials))
    parts = [*fleet.accesses, *fleet.backends.values()]
    for replica in (one, other):
        random.shuffle(parts)
        for part in parts:
            replica.put(part)
    assert same(one.snapshot(), other.snapshot())


def test_a_change_of_one_access_leaves_the_resources_of_all_others_as_they_are() -> None:
    replica = Replica()
    accesses = [
        a_model_access(name, hosts=[f"{name}.com"], routes=[a_route("r", name)]) for name in ("a", "b", "c")
    ]
    before = replica.put(*accesses, *(a_backend(name, "10.0.0.1") for name in ("a", "b", "c")))
    after = replica.put(a_model_access("b", routes=[a_route("r", "c")], metadata={"generation": 2}))
    for type_url in (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER):
        assert after.resources[type_url] is before.resources[type_url]
    assert {str(key) for key in changed(before, after)} == {"access/ads/b"}


def keyed(name: str, secret: str) -> ModelAccess:
    return a_model_access(name, auth={"apiKeys": {"secret": secret}})


def test_a_secret_concerns_the_accesses_that_name_it_alone() -> None:
    replica = Replica()
    replica.routing = IncrementalTranslator(secret_namespaces=["ads"])
    before = replica.put(
        keyed("a", "one"), keyed("b", "two"), a_model_access("c"), a_backend("ctr", "10.0.0.1")
    )
    assert {refusal.access.name for refusal in before.refusals} == {"a", "b"}

    replica.routing.put_secret(ObjectKey("ads", "one"), SecretData({"alice": b"k" * 20}))
    change = replica.routing.take_change()
    assert {str(key) for key in change.hosts} == {"access/ads/a"}
    after = replica.builder.apply_change(change)
    assert {str(key) for key in changed(before, after)} == {"access/ads/a"}
    assert {refusal.access.name for refusal in after.refusals} == {"b"}

    assert same(replica.put_secret("one", {"alice": b"k" * 20}), after)
    assert replica.put_secret("one", {"bob": b"k" * 20}).revision != after.revision
    assert same(replica.put_secret("one", None), before)
    # Nobody names it any more.
    replica.put(a_model_access("a"))
    replica.routing.put_secret(ObjectKey("ads", "one"), SecretData({}))
    assert not replica.routing.take_change().hosts


def test_a_pod_more_changes_its_endpoints_alone() -> None:
    replica = Replica()
    before = replica.put(a_model_access(), a_backend("ctr", "10.0.0.1"), a_backend("cvr", "10.0.0.2"))
    after = replica.put(a_backend("ctr", "10.0.0.1", "10.0.0.3"))
    differing = [
        type_url
        for type_url in TypeUrl
        if before.resources[type_url].version != after.resources[type_url].version
    ]
    assert differing == [TypeUrl.ENDPOINT]
    endpoints = (before.resources[TypeUrl.ENDPOINT], after.resources[TypeUrl.ENDPOINT])
    assert endpoints[0]["inference/ads/cvr/grpc"] is endpoints[1]["inference/ads/cvr/grpc"]


def test_what_changes_nothing_is_the_same_snapshot() -> None:
    replica = Replica()
    before = replica.put(a_model_access(), a_backend("ctr", "10.0.0.1"))
    after = replica.put(a_model_access(status={"observedGeneration": 1}))
    assert same(before, after)
    assert after.resources[TypeUrl.SCOPE] is before.resources[TypeUrl.SCOPE]


def test_an_older_snapshot_stays_as_it_was() -> None:
    replica = Replica()
    fleet = a_fleet(a_model_access(), a_backend("ctr", "10.0.0.1"), a_feature_compute("user", "10.0.0.9"))
    before = replica.becomes(fleet)
    replica.becomes(FleetState([], {}))
    assert same(before, planned(fleet))


def test_keys_from_an_address_concern_the_accesses_that_name_it_alone() -> None:
    def tokened(name: str, path: str) -> ModelAccess:
        jwt = {"issuer": "i", "audiences": ["ads"], "jwksUri": f"https://login.example.com/{path}"}
        return a_model_access(name, auth={"jwt": jwt})

    replica, keys = Replica(), Issuer.key_set(Issuer("i", "EdDSA")).decode()
    replica.routing = IncrementalTranslator(key_hosts=["login.example.com"])
    before = replica.put(
        tokened("a", "one"), tokened("b", "two"), a_model_access("c"), a_backend("ctr", "10.0.0.1")
    )
    assert {refusal.access.name for refusal in before.refusals} == {"a", "b"}

    replica.routing.put_keys("https://login.example.com/one", keys)
    after = replica.snapshot()
    assert {str(key) for key in changed(before, after)} == {"access/ads/a"}
    assert {refusal.access.name for refusal in after.refusals} == {"b"}
    replica.routing.put_keys("https://login.example.com/one", KeyFetchFailed("it answers HTTP 500"))
    (refusal, _) = replica.snapshot().refusals
    assert "(it answers HTTP 500)" in refusal.message
    replica.routing.put_keys("https://login.example.com/one", None)
    assert same(replica.snapshot(), before)
