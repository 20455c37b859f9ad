"""The sweep's own parts: requests are told apart, watches are bent as asked, ends are compared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from faults.injections import WatchDeed, WatchFault
from faults.traffic import Call, Traffic
from faults.watches import ArmedWatch, CutError, WatchPump
from faults.world import World, _plain

BASE = "/apis/tidegate.io/v1alpha1/namespaces/ads"


@pytest.mark.parametrize(
    ("method", "path", "query", "traffic"),
    [
        ("PATCH", f"{BASE}/inferences/ctr/status", {}, Traffic.WRITE),
        ("DELETE", "/api/v1/namespaces/ads/configmaps/c", {}, Traffic.WRITE),
        ("POST", "/api/v1/namespaces/ads/events", {}, Traffic.EVENT),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/s/leases/l", {}, Traffic.LEASE),
        ("GET", "/api/v1/pods", {"watch": "true"}, Traffic.WATCH),
        ("GET", "/api/v1/pods", {}, Traffic.READ),
        ("GET", "/api/v1/namespaces/ads", {}, Traffic.READ),
    ],
)
def test_only_writes_that_matter_are_counted(
    method: str, path: str, query: dict[str, str], traffic: Traffic
) -> None:
    assert Call.parse(method, path, query).traffic is traffic


def test_address_says_what_is_written() -> None:
    call = Call.parse("PATCH", f"{BASE}/inferences/ctr/status", {})
    assert (call.namespace, call.resource, call.name, call.subresource) == (
        "ads",
        "inferences",
        "ctr",
        "status",
    )


def an_event(number: int) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": {"n": number}}).encode() + b"\n"


def a_bookmark() -> bytes:
    return b'{"type":"BOOKMARK","object":{}}\n'


async def bent(deed: WatchDeed, *, resource: str = "pods", at: int = 2) -> tuple[list[str], bool]:
    """What arrives of events 1 to 3, a bookmark between them, and whether the connection was cut."""
    arrived: list[str] = []
    armed = ArmedWatch(WatchFault(deed, resource, at=at, hold_s=0.01))

    async def send(line: bytes) -> None:
        body = json.loads(line) if line.endswith(b"\n") else {"type": "HALF"}
        number = body.get("object", {}).get("n")
        arrived.append(str(number) if number else body["type"])

    async def lines() -> AsyncIterator[bytes]:
        for line in (an_event(1), a_bookmark(), an_event(2), an_event(3)):
            yield line

    try:
        await WatchPump("pods", send, lambda: armed).run(lines())
    except CutError:
        return arrived, True
    return arrived, False


@pytest.mark.parametrize(
    ("deed", "arrives", "cut"),
    [
        (WatchDeed.DROP, ["1", "BOOKMARK", "3", "ERROR"], True),
        (WatchDeed.DELAY, ["1", "BOOKMARK", "2", "3"], False),
        (WatchDeed.DUPLICATE, ["1", "BOOKMARK", "2", "2", "3"], False),
        (WatchDeed.REORDER, ["1", "BOOKMARK", "3", "2"], False),
        (WatchDeed.CUT, ["1", "BOOKMARK", "HALF"], True),
        (WatchDeed.GONE, ["1", "BOOKMARK", "ERROR"], True),
        (WatchDeed.STALL, ["1", "BOOKMARK"], True),
        (WatchDeed.BLIND, ["1", "BOOKMARK", "ERROR"], True),
    ],
)
async def test_watch_is_bent_at_the_event_that_was_named(
    deed: WatchDeed, arrives: list[str], cut: bool
) -> None:
    assert await bent(deed) == (arrives, cut)


async def test_watch_of_another_kind_is_left_alone() -> None:
    assert await bent(WatchDeed.GONE, resource="deployments") == (["1", "BOOKMARK", "2", "3"], False)


def test_end_that_differs_says_where() -> None:
    reference = World({"children": {"Service": [{"port": 1}]}, "pods": []})
    assert reference.differences(reference) == ()
    other = World({"children": {"Service": [{"port": 2}]}, "pods": ["p"]})
    assert other.differences(reference) == (
        ".children.Service[0].port is 2, without a fault 1",
        '.pods is ["p"], without a fault []',
    )


def test_what_is_another_in_each_run_is_taken_out_and_the_rest_is_kept() -> None:
    body = {
        "uid": "1f",
        "epoch": 3,
        "time": "2026-01-01T00:00:00Z",
        "message": "pod inf-ctr-5db848f7fc-x2x4z: no",
    }
    assert _plain(body) == {"time": "TIME", "message": "pod inf-ctr-GENERATED: no"}
    assert _plain({"desired.json": '{"epoch": 4, "version": 2}'}) == {"desired.json": {"version": 2}}
