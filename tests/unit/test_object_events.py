"""Events about objects whose reconcile crashes: on the object itself, once for each kind of exception, without its message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from tidegate.api.meta import ObjectKey
from tidegate.kube.events import EventRecorder
from tidegate.kube.kinds import COMPUTE_POOL, INFERENCE
from tidegate.kube.port import EventNote
from tidegate.kube.store import ObjectStore
from tidegate_controllers.object_events import report_crash

CTR = ObjectKey("ads", "ctr")


class Cluster:
    """Keeps the Events that an API server would get."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._recorder = EventRecorder(
            component="tidegate-controllers",
            monotonic=lambda: 0.0,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    async def create_event(self, note: EventNote) -> None:
        event = self._recorder.render_event(note)
        if event is not None:
            self.events.append(event)


async def report(cluster: Cluster, store: ObjectStore, key: ObjectKey, error: Exception) -> None:
    await report_crash(cast(Any, cluster), store, "inference", key, error)


def a_store() -> ObjectStore:
    store, body = ObjectStore(INFERENCE), inference_body("ctr", "ads")
    body["metadata"]["uid"] = "uid-1"
    store.observe("ADDED", body)
    return store


async def test_the_owner_of_an_object_reads_that_its_reconcile_crashes_and_is_tried_again() -> None:
    cluster = Cluster()

    await report(cluster, a_store(), CTR, KeyError("password"))

    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "ReconcileCrashed")
    assert (event["involvedObject"]["name"], event["involvedObject"]["uid"]) == ("ctr", "uid-1")
    assert event["message"] == (
        "Queue inference cannot reconcile this Inference because of an unexpected KeyError, a bug in Tidegate. It tries again at "
        "growing intervals; the log of the controllers has the traceback (reconcile_crashed)."
    )


async def test_a_reconcile_that_crashes_again_and_again_gets_one_event_for_each_type_of_exception() -> None:
    cluster, store = Cluster(), a_store()

    for attempt in range(3):
        await report(cluster, store, CTR, KeyError(f"attempt {attempt}"))
    await report(cluster, store, CTR, ArithmeticError())

    assert len(cluster.events) == 2


async def test_an_object_that_is_deleted_gets_no_event() -> None:
    cluster = Cluster()

    await report(cluster, a_store(), ObjectKey("ads", "deleted"), KeyError())

    assert cluster.events == []


async def test_the_event_of_a_pool_is_in_the_default_namespace() -> None:
    cluster, store = Cluster(), ObjectStore(COMPUTE_POOL)
    store.observe("ADDED", compute_pool_body("cpu-a", nodeSelector={"pool": "a"}))

    await report(cluster, store, ObjectKey("", "cpu-a"), KeyError())

    assert [event["metadata"]["namespace"] for event in cluster.events] == ["default"]
