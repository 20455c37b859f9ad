"""What becomes of an object that a newer version wrote: read without what is unknown, else as it was, and never silently."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import ParseResult, TypedCache

Body = dict[str, Any]
NEWER_MATCH = {"headers": [{"name": "country", "exact": "de"}], "country": "de"}


class Cluster:
    """The ModelAccess `a`, as a watch tells of it."""

    def __init__(self) -> None:
        self.store = ObjectStore(kinds.MODEL_ACCESS)
        self.parsed = TypedCache(ModelAccess, self.store)
        self._version = 0

    def has(self, body: Body, uid: str = "u1", **metadata: Any) -> None:
        self._version += 1
        of = {"name": "a", "namespace": "ads", "uid": uid, "resourceVersion": str(self._version), **metadata}
        self.store.observe("MODIFIED", {**body, "metadata": of})

    def loses(self) -> None:
        self._version += 1
        body = {"metadata": {"name": "a", "namespace": "ads", "resourceVersion": str(self._version)}}
        self.store.observe("DELETED", body)

    @property
    def access(self) -> ModelAccess | None:
        return self.parsed.get(ObjectKey("ads", "a"))

    @property
    def reading(self) -> list[ParseResult]:
        return [*self.parsed.count_by_result()]


def an_access(*targets: str, **route: Any) -> Body:
    body = model_access_body()
    return {
        **body,
        "spec": {"routes": [{**a_route(), "targets": [{"inference": t} for t in targets], **route}]},
    }


def targets(access: ModelAccess | None) -> list[str]:
    assert access is not None
    return [target.inference for route in access.spec.routes for target in route.targets]


def test_fields_of_a_newer_version_are_left_out_wherever_they_are_and_named() -> None:
    body = an_access("one", laterField={"deep": 1})
    body["spec"]["later"] = [1]
    body["spec"]["routes"][0]["targets"][0]["soon"] = True
    access, unknown = ModelAccess.parse_known_fields({**body, "metadata": {"name": "a"}})
    assert targets(access) == ["one"]
    assert sorted(unknown) == ["spec.later", "spec.routes[0].laterField", "spec.routes[0].targets[0].soon"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(an_access("one", match=NEWER_MATCH), id="in-match"),
        pytest.param(
            {**an_access("one"), "spec": {**an_access("one")["spec"], "auth": {"passkeys": {}}}}, id="in-auth"
        ),
        pytest.param(an_access("one", targets=[{"inference": "one", "weight": "much"}]), id="no-number"),
        pytest.param(an_access("one", targets=[{"inference": "Not A Name"}]), id="no-name"),
        pytest.param(
            an_access("one", later=1, targets=[{"inference": "Not A Name"}]), id="later-and-no-name"
        ),
        pytest.param({**an_access("one"), "spec": {"later": 1}}, id="nothing-else"),
    ],
)
def test_what_is_wrong_otherwise_or_might_let_somebody_in_is_not_left_out(body: Body) -> None:
    with pytest.raises(InvalidSpecError):
        ModelAccess.parse_known_fields({**body, "metadata": {"name": "a"}})


def test_a_value_that_an_enum_does_not_have_is_not_guessed() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.tier"):
        Inference.parse_known_fields(
            {**inference_body(), "spec": {**inference_body()["spec"], "tier": "later"}}
        )


def test_people_who_write_are_told_of_an_unknown_field() -> None:
    with pytest.raises(InvalidSpecError, match="laterField"):
        Inference.parse(inference_body(laterField="x"))


def test_every_replica_reads_the_same_of_an_object_with_a_newer_field() -> None:
    warm, cold = Cluster(), Cluster()
    warm.has(an_access("one"))
    assert targets(warm.access) == ["one"]
    for each in (warm, cold):
        each.has(an_access("two", laterField=1))
        assert targets(each.access) == ["two"]
        assert each.reading == [ParseResult.PARTIAL]


def test_what_cannot_be_read_at_all_stays_as_it_was_with_its_metadata_of_now() -> None:
    cluster = Cluster()
    cluster.has(an_access("one"))
    assert cluster.reading == []
    assert targets(cluster.access) == ["one"]
    with capture_logs() as logs:
        broken = an_access("two", match=NEWER_MATCH)
        cluster.has(broken, labels={"team": "ads"})
        assert targets(cluster.access) == ["one"]
        assert targets(cluster.access) == ["one"]
    assert cluster.access is not None
    assert cluster.access.metadata.labels == {"team": "ads"}
    assert cluster.reading == [ParseResult.LAST_KNOWN_GOOD]
    ((said),) = [line for line in logs if line["event"] == "object_not_understood"]
    assert (said["key"], said["read"]) == ("ads/a", "as_before")
    assert "country" in said["why"]

    # Again and again, for as long as the process lives; whoever deletes it ends it all the same.
    cluster.has(an_access("three", targets=[{"inference": "three", "weight": "much"}]))
    assert targets(cluster.access) == ["one"]
    cluster.has(broken, deletionTimestamp="2026-11-23T00:00:00Z")
    assert cluster.access.metadata.deletion_timestamp is not None
    cluster.has(an_access("four"))
    assert targets(cluster.access) == ["four"]
    assert cluster.reading == []


def test_what_never_could_be_read_is_not_there_and_is_said() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        cluster.has(an_access("one", match=NEWER_MATCH))
        assert cluster.access is None
    assert cluster.reading == [ParseResult.LEFT_OUT]
    assert [line["read"] for line in logs] == ["not_at_all"]


def test_what_bounds_others_is_read_in_whole_or_not_at_all() -> None:
    store = ObjectStore(kinds.COMPUTE_POOL)
    strict, lenient = TypedCache(ComputePool, store, strict=True), TypedCache(ComputePool, store)
    key = ObjectKey("", "cpu-a")
    store.observe("ADDED", compute_pool_body("cpu-a", metadata={"resourceVersion": "1"}))
    assert strict.get(key) is not None
    store.observe("MODIFIED", compute_pool_body("cpu-a", metadata={"resourceVersion": "2"}, laterField=1))
    assert strict.get(key) is None
    assert lenient.get(key) is not None
    assert [*strict.count_by_result()] == [ParseResult.LEFT_OUT]


def test_what_is_not_understood_is_said_once_and_again_when_it_is_something_else() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        for labels in ({}, {"a": "b"}):
            cluster.has(an_access("one", laterField=1), labels=labels)
            assert cluster.access is not None
        cluster.has(an_access("one", evenLater=1))
        assert cluster.access is not None
    assert [line["why"] for line in logs] == [
        f"unknown here: spec.routes[0].{field}" for field in ("laterField", "evenLater")
    ]


@pytest.mark.parametrize("seen", [True, False], ids=["seen-to-go", "replaced"])
def test_another_object_of_the_name_inherits_nothing(seen: bool) -> None:
    cluster = Cluster()
    cluster.has(an_access("one"))
    assert targets(cluster.access) == ["one"]
    if seen:
        cluster.loses()
        assert cluster.access is None
    cluster.has(an_access("two", match=NEWER_MATCH), uid="u2")
    assert cluster.access is None


def test_what_two_objects_have_alike_is_in_memory_once_and_each_is_what_it_was() -> None:
    store, (a, b) = ObjectStore(kinds.INFERENCE), (ObjectKey("ads", "a"), ObjectKey("ads", "b"))
    parsed = TypedCache(Inference, store)
    for key, replicas in ((a, 1), (b, 2)):
        body = inference_body(key.name, replicas=replicas, rollout={"keepVersions": 3})
        store.observe("ADDED", {**body, "status": {"observedGeneration": 1, "replicas": replicas}})
    one, other = parsed.get(a), parsed.get(b)
    assert one is not None
    assert other is not None
    assert one.spec.rollout is other.spec.rollout
    assert (one.spec.replicas, other.spec.replicas) == (1, 2)
    assert (one.status.replicas, other.status.replicas) == (1, 2)
    for key, found in ((a, one), (b, other)):
        assert found == Inference.parse(store.get(key) or {})
