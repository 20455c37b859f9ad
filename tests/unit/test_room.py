"""Room on nodes: what the scheduler finds lacking, what a pod asks for, and the node with the most of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from builders.fake_clock import FakeClock
from builders.pods import a_pod
from tidegate.errors import ApiUnavailableError
from tidegate.kube.kinds import NODE, POD, Kind
from tidegate.planning.inference.node_resources import (
    compute_node_resources,
    compute_pod_requests,
    find_insufficient_resources,
    format_shortages,
    list_schedulable_nodes,
)
from tidegate_controllers.node_capacity import NodeCapacityReader

GIB = 1 << 30


def a_node(name: str, memory: str = "16Gi", cpu: str = "4", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
    }


def a_pod_that_asks(memory: str, cpu: str = "1", phase: str = "Running") -> dict[str, Any]:
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    return {"spec": {"containers": [{"resources": requests}]}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("0/1 nodes are available: 1 Insufficient memory.", ("memory",)),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.shared.", ("nvidia.com/gpu.shared",)),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 2 node(s) had untolerated taint(s). "
            "preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod.",
            ("cpu", "memory"),
        ),
        ("0/1 nodes are available: 1 Too many pods.", ("pods",)),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", ()),
        ('0/3 nodes are available: persistentvolumeclaim "models" not found.', ()),
        ("no nodes available to schedule pods", ()),
        # What preemption says is about other pods.
        (
            "0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are available: "
            "1 Insufficient memory.",
            (),
        ),
    ],
)
def test_scheduler_is_understood(words: str, lacks: tuple[str, ...]) -> None:
    assert find_insufficient_resources(words) == lacks


def test_pod_asks_for_its_containers_and_sidecars_or_its_largest_start() -> None:
    def container(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    pod = {
        "spec": {
            "initContainers": [container("50m", restartPolicy="Always"), container("3")],
            "containers": [container("1"), container("500m")],
            "overhead": {"memory": "1Mi"},
        }
    }
    assert compute_pod_requests(pod) == {"cpu": Decimal("3.05"), "memory": 1 << 20, "pods": 1}


def test_what_a_pod_asks_for_as_a_whole_stands_instead_of_its_containers() -> None:
    pod = a_pod_that_asks("1Gi", cpu="1")
    pod["spec"] |= {"resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}}
    assert compute_pod_requests(pod) == {"cpu": 5, "memory": GIB, "pods": 1}


def test_most_free_is_what_no_running_pod_has_asked_for() -> None:
    pods = [a_pod_that_asks("5Gi"), a_pod_that_asks("5Gi"), a_pod_that_asks("9Gi", phase="Succeeded")]
    room = compute_node_resources(a_node("a"), pods)

    assert room.free["memory"] == 6 * GIB
    assert format_shortages(
        {"memory": Decimal(8 << 40)}, ["memory"], [room, compute_node_resources(a_node("b", "2Gi"), [])]
    ) == ("it asks for memory 8Ti, the most free is 6Gi of 16Gi on node a")


@pytest.mark.parametrize(
    ("memory", "said"),
    [("16384Mi", "16Gi of 16Gi"), ("3359Mi", "3.2Gi of 3.2Gi"), ("0", "0 of 0"), ("1000Ki", "1000Ki")],
)
def test_figures_are_short_and_never_too_good(memory: str, said: str) -> None:
    assert said in format_shortages({}, ["memory"], [compute_node_resources(a_node("a", memory), [])])


def test_nobody_knows_the_free_room_of_slices_that_no_node_has() -> None:
    asks = {"tidegate.io/slice": Decimal(2)}
    assert format_shortages(asks, ["tidegate.io/slice"], []) == "it asks for tidegate.io/slice 2"
    assert "the most free is 0 of 0 on node a" in format_shortages(
        asks, ["tidegate.io/slice"], [compute_node_resources(a_node("a"), [])]
    )


def test_nodes_that_take_no_pods_have_no_room() -> None:
    tainted = a_node("gpu", "1Ti", taints=[{"key": "kwok", "effect": "NoSchedule"}])
    wished = a_node("b", "8Gi", taints=[{"key": "spare", "effect": "PreferNoSchedule"}])
    nodes = [tainted, a_node("cordoned", "1Ti", unschedulable=True), wished, a_node("a")]

    assert [node["metadata"]["name"] for node in list_schedulable_nodes(nodes, "memory")] == ["a", "b"]


class Nodes:
    """An API server with eight nodes, of which number n has n GiB, in pages of three; counts what it is asked."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.asked: list[str] = []

    async def list(
        self, kind: Kind, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        assert (kind, namespace, selector) == (POD, "", "")
        self.asked.append(fields)
        return []

    async def list_pages(self, kind: Kind) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        assert kind is NODE
        self.asked.append(kind.plural)
        if not self.up:
            raise ApiUnavailableError("no")
        # The largest node is on none of the ends of a page.
        for sizes in ((1, 7, 2), (3, 8, 5), (6, 4)):
            yield [a_node(f"n{size}", f"{size}Gi") for size in sizes], "7"


WAITING = a_pod(source="abc", ready=False, unschedulable="0/8 nodes are available: 8 Insufficient memory.")


async def test_largest_nodes_are_asked_once_in_a_while_and_only_when_a_pod_waits() -> None:
    clock, api = FakeClock(), Nodes()
    room = NodeCapacityReader(api, clock)  # type: ignore[arg-type]

    assert await room.find_rooms([a_pod(source="abc")]) == ()
    assert api.asked == []

    found = await room.find_rooms([WAITING])
    assert [each.name for each in found] == ["n8", "n7", "n6", "n5", "n4"]
    assert api.asked == ["nodes", *(f"spec.nodeName={each.name}" for each in found)]

    assert await room.find_rooms([WAITING, WAITING]) == found
    assert len(api.asked) == 6
    await clock.advance(11)
    await room.find_rooms([WAITING])
    assert len(api.asked) == 12


async def test_api_that_does_not_answer_leaves_the_schedulers_words() -> None:
    assert await NodeCapacityReader(Nodes(up=False), FakeClock()).find_rooms([WAITING]) == ()  # type: ignore[arg-type]
