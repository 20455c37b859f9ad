"""Every field of a ModelAccess before real Tritons: what they counted, and what they did not, beside each its control.

Edges of each field are in tests/component, on an Envoy before test servers.
"""

from __future__ import annotations

from typing import Any

import pytest

from builders.waiting import wait_until
from fixtures.standing import VERSIONS, Fleet, to

GATEWAY_THREADS = 2
"""Of one gateway, as the chart's `gateway.concurrency` has it."""


def on(header: str, **comparison: str) -> dict[str, Any]:
    return {"match": {"headers": [{"name": header, **comparison}]}}


def test_exact_prefix_and_regex_pick_the_route(standing: Fleet) -> None:
    standing.access(
        "matches",
        to("a", **on("x-user-segment", exact="vip")),
        to("b", **on("x-scene", prefix="home-")),
        to("slow", **on("x-scene", regex="feed-[0-9]+")),
        to("fragile"),
    )
    before = standing.counts(*VERSIONS)
    asked = [
        ({"x-user-segment": "vip"}, "1"),
        ({"x-user-segment": "vip", "x-scene": "home-top"}, "1"),  # the first route that fits
        ({"x-scene": "home-top"}, "2"),
        ({"x-scene": "feed-17"}, "3"),
        ({"x-scene": "feed-17b"}, "4"),  # the whole value has to fit
        ({"x-user-segment": "VIP"}, "4"),
        ({"x-scene": "at-home-"}, "4"),
        ({}, "4"),
    ]

    assert [standing.outcome("matches", **headers) for headers, _ in asked] == [
        version for _, version in asked
    ]
    standing.ran(before, a=2, b=1, slow=1, fragile=4)


@pytest.mark.parametrize("by", ["header", "cookie"])
def test_sticky_keeps_each_user_on_one_triton_and_moves_them_one_way(standing: Fleet, by: str) -> None:
    name = f"sticky-{by}"
    sticky = {"header": "x-user-id"} if by == "header" else {"cookie": "user"}

    def shares(a: int, b: int) -> dict[str, Any]:
        return {"targets": [{"inference": "a", "weight": a}, {"inference": "b", "weight": b}]}

    def seen() -> list[str]:
        users = [f"user-{number}" for number in range(60)]
        headers = [{"x-user-id": user} if by == "header" else {"cookie": f"user={user}"} for user in users]
        return [standing.outcome(name, **each) for each in headers]

    standing.access(name, {**shares(70, 30), "sticky": sticky})
    first, again = seen(), seen()
    assert first == again
    assert set(first) == {"1", "2"}

    standing.access(name, {**shares(40, 60), "sticky": sticky})
    wait_until(lambda: seen() != first, "users move with the weight")
    moved = {(then, now) for then, now in zip(first, seen(), strict=True) if then != now}
    assert moved == {("1", "2")}

    # The control: without sticky the same user is answered by both.
    standing.access(name, shares(50, 50))
    wait_until(
        lambda: len({standing.outcome(name, **{"x-user-id": "user-1"}) for _ in range(20)}) == 2, "by chance"
    )


def test_a_mirror_is_asked_as_often_and_answers_nobody(standing: Fleet) -> None:
    standing.access("mirrored", to("a", mirror=[{"inference": "b", "percent": 100}]))
    standing.access("plain", to("a"))
    before = standing.counts("a", "b")

    assert standing.outcomes("mirrored", 20) == {"1": 20}
    standing.ran(before, a=20, b=20)
    assert standing.outcomes("plain", 10) == {"1": 10}
    standing.ran(before, a=30, b=20)


def test_a_route_ends_requests_at_its_timeout(standing: Fleet) -> None:
    standing.access("hasty", to("slow", timeout="1s"))
    standing.access("patient", to("slow", timeout="60s"))

    assert standing.outcome("hasty", x=130.0) == "DEADLINE_EXCEEDED"
    assert standing.outcome("patient", x=130.0) == "3"
    wait_until(lambda: standing.outcome("hasty") == "3", "a quick one is answered in its time")


def test_the_fallback_answers_for_pods_that_fail_and_nobody_else_does(standing: Fleet) -> None:
    outlier = {"outlier": {"consecutiveFailures": 3, "ejectFor": "60s"}}
    standing.access("rescued", to("fragile", fallback={"inference": "b"}), protection=outlier)
    standing.access("alone", to("fragile"), protection=outlier)
    before = standing.counts("b")

    assert standing.outcomes("rescued", 3, rows=2).keys().isdisjoint(VERSIONS.values())
    wait_until(lambda: standing.outcome("rescued", rows=2) == "2", "the fallback answers", timeout_s=60)
    standing.ran(before, b=1)
    # Another access to the same pods has not given them up, and has nobody to turn to.
    assert standing.outcome("alone") == "4"
    assert standing.outcome("alone", rows=2) not in VERSIONS.values()
    assert standing.space.counted_at_rest("b") == before[0] + 1


def test_the_rate_that_is_over_never_reaches_a_triton(standing: Fleet) -> None:
    standing.access("limited", to("a"), protection={"rateLimit": {"requests": 5, "per": "1m"}})
    standing.access("unlimited", to("a"))
    before = standing.counts("a")

    # Each gateway has a limit of its own, and requests go to either.
    seen = standing.outcomes("limited", 16)
    assert 5 <= seen["1"] <= 5 * standing.gateways
    assert seen["1"] + seen["RESOURCE_EXHAUSTED"] == 16
    assert standing.outcomes("unlimited", 16) == {"1": 16}
    standing.ran(before, a=seen["1"] + 16)


def test_more_at_once_than_allowed_never_reaches_a_triton(standing: Fleet) -> None:
    standing.access("narrow", to("slow", timeout="60s"), protection={"maxConcurrent": 2})
    standing.access("wide", to("slow", timeout="60s"))
    before = standing.counts("slow")

    # Each gateway has a limit of its own, and each of its threads may let one more in that comes at the same moment.
    seen = standing.at_once("narrow", 8, x=130.0)
    assert 2 <= seen["3"] <= (2 + GATEWAY_THREADS - 1) * standing.gateways, seen
    assert seen["3"] + seen["RESOURCE_EXHAUSTED"] == 8, seen
    standing.ran(before, slow=seen["3"])
    assert standing.at_once("wide", 8, x=16.0) == {"3": 8}
