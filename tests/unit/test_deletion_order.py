"""Which pods end first when a model scales down: those whose end keeps the others spread over nodes, and nothing is written twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.allocator import nodes
from builders.inference import an_inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.deletion_order import (
    COST_ANNOTATION,
    FIRST_COST,
    EndingCandidate,
    choose_first_to_end,
    find_lower_replicas,
    plan_deletion_costs,
    read_candidates,
)
from tidegate.planning.inference.deployments import DeploymentView
from tidegate.planning.pools.pool_slices import NodeSlices, PoolSlices, sum_nodes

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def a_candidate(number: int, node: str, *, ready: bool = True, **more: Any) -> EndingCandidate:
    """The pod of this number, ready since so many seconds after the beginning."""
    since = BEGIN + timedelta(seconds=number) if ready else None
    made = EndingCandidate(ObjectKey("ads", f"pod-{number}"), f"uid-{number}", node, "t1", since, None)
    return replace(made, **more)


def candidates(*placed: str) -> list[EndingCandidate]:
    """A ready pod on each of the nodes named."""
    return [a_candidate(number, node) for number, node in enumerate(placed)]


def ending(pods: list[EndingCandidate], count: int, **fullness: float) -> list[str]:
    return sorted(key.name for key in choose_first_to_end(pods, count, fullness))


@given(placed=st.lists(st.sampled_from("abcd"), max_size=9), count=st.integers(0, 9))
def test_those_that_stay_are_spread_as_evenly_as_any_choice_leaves_them(
    placed: list[str], count: int
) -> None:
    pods = candidates(*placed)
    chosen = choose_first_to_end(pods, count, {})
    assert len(chosen) == min(count, len(pods))

    def sort_counts(ended: set[ObjectKey]) -> list[int]:
        left = Counter(pod.node for pod in pods if pod.key not in ended)
        return sorted(left.values(), reverse=True)

    choices = combinations([pod.key for pod in pods], len(chosen))
    assert sort_counts(set(chosen)) == min(sort_counts(set(choice)) for choice in choices)


def test_the_last_to_be_ready_ends_of_those_on_one_node() -> None:
    assert ending(candidates("a", "b", "a", "b"), 2) == ["pod-2", "pod-3"]
    assert ending(candidates("a", "a", "a", "b"), 2) == ["pod-1", "pod-2"]


def test_the_fuller_node_is_relieved_where_the_spread_does_not_decide() -> None:
    assert ending(candidates("a", "b"), 1, a=0.9, b=0.5) == ["pod-0"]
    assert ending(candidates("a", "b"), 1, a=0.5, b=0.9) == ["pod-1"]
    # The spread comes first.
    assert ending(candidates("a", "b", "b"), 1, a=0.9, b=0.1) == ["pod-2"]
    # A node that takes no pods is left first.
    assert ending(candidates("a", "gone"), 1, a=0.9) == ["pod-1"]


def test_pods_that_are_not_ready_end_anyway() -> None:
    pods = [*candidates("a", "a", "b"), a_candidate(3, "b", ready=False), a_candidate(4, "", ready=False)]
    assert ending(pods, 2) == []
    assert ending(pods, 3) == ["pod-1"]


def test_nobody_ends_where_none_has_to() -> None:
    assert ending(candidates("a"), 0) == ending(candidates("a"), -1) == ending([], 3) == []


POOL = nodes(4, 4)


def costs(pods: list[EndingCandidate], replicas: int, slices: PoolSlices = POOL) -> dict[str, str | None]:
    return {cost.key.name: cost.cost for cost in plan_deletion_costs(replicas, pods, slices)}


def test_a_cost_is_written_once_and_removed_when_another_pod_is_to_end() -> None:
    pods = candidates("a", "a", "b")
    assert costs(pods, 2) == {"pod-1": FIRST_COST}
    written = [pods[0], replace(pods[1], cost=FIRST_COST), pods[2]]
    assert costs(written, 2) == {}
    # It was scaled up again, on the other node, and scales down once more.
    more = [*written, a_candidate(3, "b"), a_candidate(4, "b")]
    assert costs(more, 4) == {"pod-1": None, "pod-4": FIRST_COST}


def test_the_cost_of_somebody_else_stays() -> None:
    pods = [a_candidate(0, "a", cost="100"), a_candidate(1, "a", cost="7"), a_candidate(2, "b")]
    assert costs(pods, 1) == {"pod-2": FIRST_COST}


def test_a_rollout_is_left_alone() -> None:
    pods = [*candidates("a", "a", "b"), a_candidate(3, "b", template="t2")]
    assert costs(pods, 2) == {}


def test_the_fullest_node_is_that_of_all_pods_of_the_pool() -> None:
    slices = sum_nodes([NodeSlices("a", 4, {"offline": 1}, ""), NodeSlices("b", 4, {"offline": 3}, "")])
    assert costs(candidates("a", "b"), 1, slices) == {"pod-1": FIRST_COST}


@pytest.mark.parametrize(
    ("tier", "live", "planned", "lower"),
    [
        ("realtime", 4, 2, {"gpu": 2}),
        ("realtime", 2, 2, {}),
        ("realtime", 2, 4, {}),
        ("realtime", None, 2, {}),
        ("realtime", 4, None, {}),
        ("offline", 4, 2, {}),
    ],
)
def test_only_a_real_time_model_that_scales_down_has_an_order(
    tier: str, live: int | None, planned: int | None, lower: Mapping[str, int]
) -> None:
    deployment = {"kind": "Deployment", "metadata": {"name": "inf-ctr"}, "spec": {"replicas": planned}}
    objects = [{"kind": "ConfigMap"}, *([] if planned is None else [deployment])]
    deployments = [] if live is None else [a_deployment("inf-ctr", "gpu", live)]
    assert find_lower_replicas(an_inference("ctr", tier=tier), deployments, objects) == lower


def test_of_several_deployments_those_that_scale_down_have_an_order() -> None:
    objects = [
        {"kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": replicas}}
        for name, replicas in {"inf-ctr": 2, "inf-ctr.b": 1, "inf-ctr.c": 5}.items()
    ]
    deployments = [
        a_deployment("inf-ctr", "a", 2),
        a_deployment("inf-ctr.b", "b", 3),
        a_deployment("inf-ctr.c", "c", 4),
        a_deployment("inf-ctr.old", "old", 4),
    ]
    assert find_lower_replicas(an_inference("ctr"), deployments, objects) == {"b": 1}


def a_deployment(name: str, pool: str, replicas: int) -> DeploymentView:
    return DeploymentView({}, complete=True, deadline_exceeded=False, replicas=replicas, pool=pool, name=name)


def test_pods_are_read_as_the_api_server_has_them() -> None:
    def body(name: str, **metadata: Any) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        return {
            "metadata": {"name": name, "namespace": "ads", "uid": name, **metadata},
            "spec": {"nodeName": "a"},
            "status": {"phase": "Running", "conditions": [ready]},
        }

    leaving = body("leaving", deletionTimestamp="2026-01-01T00:00:00Z")
    failed = {**body("failed"), "status": {"phase": "Failed"}}
    pending = {"metadata": {"name": "pending", "namespace": "ads", "uid": "p"}}
    marked = body("marked", annotations={COST_ANNOTATION: FIRST_COST, "tidegate.io/template": "t1"})
    found = read_candidates([leaving, failed, pending, marked])
    assert [(pod.key.name, pod.node, pod.ready_since, pod.cost) for pod in found] == [
        ("pending", "", None, None),
        ("marked", "a", BEGIN, FIRST_COST),
    ]


@pytest.mark.parametrize("answers", [True, False])
def test_a_pod_with_a_compiler_that_ended_keeps_its_place(answers: bool) -> None:
    body = {
        "metadata": {"name": "p", "namespace": "ads", "uid": "p"},
        "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": "ContainersNotReady",
                    "lastTransitionTime": "2026-01-02T00:00:00Z",
                }
            ],
            "containerStatuses": [
                {"name": "triton", "ready": answers},
                {"name": "compiler", "ready": False},
            ],
        },
    }
    assert [pod.ready_since for pod in read_candidates([body])] == [BEGIN if answers else None]
