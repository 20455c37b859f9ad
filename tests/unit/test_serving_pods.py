"""Which pods get requests where there are warm spares: who serves goes on, and a spare is there at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.inference import an_inference
from builders.pods import a_pod
from stages.examples import examples
from tidegate.api.inference import Inference
from tidegate.kube.port import Manifest
from tidegate.kube.transforms import trim_pod
from tidegate.planning.inference.replicas import select_serving_pods
from tidegate.planning.pods import PodView, parse_pod

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCALED: dict[str, Any] = {"placement": {"pool": "cpu-a"}, "scaling": {"minReplicas": 1, "maxReplicas": 4}}


def model(replicas: int, spares: int, **spec: Any) -> Inference:
    allocation = {"replicas": replicas, "spares": spares, "decision": "d", "epoch": 1}
    return an_inference(status={"allocation": allocation}, **{**SCALED, **spec})


def pod(name: str, ready_s: int, **more: Any) -> PodView:
    """One that is ready since so many seconds after noon."""
    return replace(a_pod(name, source="s", **more), ready_since=NOON + timedelta(seconds=ready_s))


def names(inference: Inference, *pods: PodView) -> set[str]:
    return {each.key.name for each in select_serving_pods(inference, pods)}


def test_the_oldest_serve_and_the_rest_are_spares() -> None:
    assert names(model(2, 1), pod("c", 3), pod("a", 9), pod("b", 1)) == {"b", "c"}


def test_without_spares_every_pod_that_answers_serves() -> None:
    assert names(model(1, 0), pod("a", 1), pod("b", 2)) == {"a", "b"}
    nothing_decided = an_inference(**SCALED)
    assert names(nothing_decided, pod("a", 1), pod("b", 2)) == {"a", "b"}
    fixed = an_inference(replicas=1, status={"allocation": {"replicas": 1, "spares": 1}})
    assert names(fixed, pod("a", 1), pod("b", 2)) == {"a", "b"}


def test_a_spare_takes_the_place_of_a_pod_that_fails_or_leaves() -> None:
    assert names(model(2, 1), pod("a", 1, ready=False), pod("b", 2), pod("c", 3)) == {"b", "c"}
    assert names(model(2, 1), pod("a", 1), pod("b", 2, terminating=True), pod("c", 3)) == {"a", "c"}


def test_a_pod_that_comes_back_is_the_spare_then() -> None:
    assert names(model(2, 1), pod("a", 9), pod("b", 2), pod("c", 3)) == {"b", "c"}


def test_the_same_second_is_no_reason_to_change() -> None:
    pods = pod("a", 1), pod("b", 1), pod("c", 1)
    assert names(model(2, 1), *pods) == names(model(2, 1), *reversed(pods)) == {"a", "b"}


def test_a_promotion_adds_and_takes_nobody_away() -> None:
    pods = pod("a", 1), pod("b", 2), pod("c", 3)
    before = names(model(2, 1), *pods)
    assert before < names(model(3, 0), *pods)


def test_where_the_range_was_lowered_there_are_fewer_spares() -> None:
    lowered = model(3, 1, scaling={"minReplicas": 1, "maxReplicas": 3})
    assert (lowered.decided_replicas, lowered.decided_spares) == (3, 0)
    assert names(lowered, *(pod(name, 1) for name in "abcd")) == set("abcd")  # none of them is asked to stay


@pytest.mark.parametrize("tier", ["nearline", "offline"])
def test_spares_are_for_real_time_alone(tier: str) -> None:
    assert model(1, 1, tier=tier).decided_spares == 0


def test_since_when_a_pod_is_ready_is_read_from_its_condition() -> None:
    def body(status: str) -> dict[str, Any]:
        condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T12:00:07Z"}
        metadata = {"name": "p", "namespace": "ads", "uid": "u"}
        return {"metadata": metadata, "spec": {}, "status": {"podIP": "10.0.0.1", "conditions": [condition]}}

    assert parse_pod(body("True")).ready_since == NOON + timedelta(seconds=7)
    assert parse_pod(body("False")).ready_since is None


@pytest.mark.parametrize(
    ("status", "containers", "since_s"),
    [
        ("True", ["agent", "triton"], None),
        ("False", ["agent", "triton"], 7),
        ("Unknown", ["agent", "triton"], 7),
        # The compiler may have ended first: nothing shows when the others did.
        ("False", ["agent", "triton", "compiler"], None),
    ],
)
def test_since_when_a_pod_takes_no_traffic_is_read_from_its_condition(
    status: str, containers: Sequence[str], since_s: int | None
) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T12:00:07Z"}
    states = [{"name": name, "ready": False} for name in containers]
    body = {
        "metadata": {"name": "p", "namespace": "ads", "uid": "u"},
        "spec": {},
        "status": {"podIP": "10.0.0.1", "conditions": [condition], "containerStatuses": states},
    }
    expected = None if since_s is None else NOON + timedelta(seconds=since_s)

    assert parse_pod(trim_pod(body)).unready_since == expected


@pytest.mark.parametrize(
    ("unready", "reason", "is_serving"),
    [
        ({"compiler"}, "ContainersNotReady", True),
        ({"compiler", "triton"}, "ContainersNotReady", False),
        ({"compiler", "agent"}, "ContainersNotReady", False),
        ({"compiler"}, "ReadinessGatesNotReady", False),
        (set[str](), "", False),
    ],
)
def test_a_pod_serves_without_its_compiler_of_graphs(
    unready: set[str], reason: str, is_serving: bool
) -> None:
    states = {name: {"name": name, "ready": name not in unready} for name in ("agent", "triton", "compiler")}
    body = {
        "metadata": {"name": "p", "namespace": "ads", "uid": "u"},
        "spec": {},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "False", "reason": reason}],
            "initContainerStatuses": [states.pop("agent")],
            "containerStatuses": list(states.values()),
        },
    }

    assert parse_pod(body).ready == is_serving


def compiling_pod(name: str, started: str, **status: Any) -> Manifest:
    """A ready pod with a compiler, as a cache keeps it; `status` lays over its status."""
    containers = [{"name": "triton", "ready": True}, {"name": "compiler", "ready": True}]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T12:30:00Z"}
    return trim_pod(
        {
            "metadata": {"name": name, "namespace": "ads", "uid": name},
            "status": {
                "podIP": "10.0.0.1",
                "startTime": started,
                "conditions": [ready],
                "containerStatuses": containers,
                **status,
            },
        }
    )


def ready_condition(status: str) -> list[dict[str, Any]]:
    reason = {} if status == "True" else {"reason": "ContainersNotReady"}
    return [{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T13:00:00Z", **reason}]


@pytest.mark.parametrize("whose", ["serves", "spare"])
def test_neither_the_end_nor_the_restart_of_a_compiler_changes_who_serves(whose: str) -> None:
    started = {"serves": "2026-01-01T12:00:00Z", "spare": "2026-01-01T12:01:00Z"}

    def serving(**changed: Any) -> set[str]:
        bodies = [
            compiling_pod(name, at, **(changed if name == whose else {})) for name, at in started.items()
        ]
        return names(model(1, 1), *map(parse_pod, bodies))

    assert serving() == {"serves"}
    ended = [{"name": "triton", "ready": True}, {"name": "compiler", "ready": False}]
    assert serving(conditions=ready_condition("False"), containerStatuses=ended) == {"serves"}
    assert serving(conditions=ready_condition("True")) == {"serves"}


def test_a_pod_with_a_compiler_is_the_spare_once_its_server_has_restarted() -> None:
    end = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T13:00:00Z"}}
    triton, compiler = {"name": "triton", "ready": True}, {"name": "compiler", "ready": True}
    first = compiling_pod(
        "a", "2026-01-01T12:00:00Z", containerStatuses=[triton | {"lastState": end}, compiler]
    )
    second = parse_pod(compiling_pod("b", "2026-01-01T12:01:00Z"))
    assert names(model(1, 1), parse_pod(first), second) == {"b"}
    first = compiling_pod(
        "a", "2026-01-01T12:00:00Z", containerStatuses=[triton, compiler | {"lastState": end}]
    )
    assert names(model(1, 1), parse_pod(first), second) == {"a"}


@settings(deadline=None, max_examples=examples(200))
@given(
    events=st.lists(
        st.tuples(st.sampled_from(["ready", "fails", "leaves", "comes"]), st.integers(0, 5)), max_size=40
    ),
    replicas=st.integers(1, 3),
)
def test_whatever_pods_do_nobody_who_serves_well_is_replaced(
    events: list[tuple[str, int]], replicas: int
) -> None:
    """There are as many as there can be, and whoever served and still answers still serves."""
    inference, pods, now = model(replicas, 1, scaling={"minReplicas": 1, "maxReplicas": 9}), {}, NOON
    serving: set[str] = set()
    for what, number in events:
        now += timedelta(seconds=1)
        name = f"p{number}"
        if what == "comes":
            pods.setdefault(name, a_pod(name, source="s", ready=False))
        elif name in pods:
            pods[name] = {
                "ready": lambda one, at=now: one if one.ready else replace(one, ready=True, ready_since=at),
                "fails": lambda one: replace(one, ready=False, ready_since=None),
                "leaves": lambda one: replace(one, terminating=True),
            }[what](pods[name])
        able = {name for name, one in pods.items() if one.ready and not one.terminating}
        found = names(inference, *pods.values())
        assert len(found) == min(replicas, len(able))
        assert serving & able <= found
        serving = found
