"""Events: said once, shortened to what the API server takes, said again when nobody heard."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.meta import ObjectKey
from tidegate.kube.events import EventRecorder
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.port import EventNote
from tidegate.planning.plan import EventType


def a_note(message: str = "version 4 did not load") -> EventNote:
    return EventNote(INFERENCE, ObjectKey("ads", "ctr"), "uid-1", EventType.WARNING, "LoadFailed", message)


class Time:
    """Seconds that a test sets."""

    seconds = 0.0


def a_recorder(time: Time) -> EventRecorder:
    return EventRecorder(
        component="tidegate-inference",
        monotonic=lambda: time.seconds,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_an_event_says_what_happened_to_which_object() -> None:
    event = a_recorder(Time()).render_event(a_note())
    assert event is not None
    assert event["involvedObject"] == {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "name": "ctr",
        "namespace": "ads",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "LoadFailed",
        "version 4 did not load",
    )


def test_the_same_is_said_again_only_after_a_while() -> None:
    time = Time()
    recorder = a_recorder(time)
    assert recorder.render_event(a_note()) is not None
    time.seconds = 599
    assert recorder.render_event(a_note()) is None
    assert recorder.render_event(a_note("something else")) is not None
    time.seconds = 600
    assert recorder.render_event(a_note()) is not None


def test_what_did_not_get_through_is_said_again() -> None:
    recorder = a_recorder(Time())
    recorder.render_event(a_note())
    recorder.forget(a_note())
    assert recorder.render_event(a_note()) is not None


def test_a_long_message_is_cut_to_what_the_api_server_takes() -> None:
    event = a_recorder(Time()).render_event(a_note("x" * 5_000))
    assert event is not None
    assert len(event["message"]) == 1_024
