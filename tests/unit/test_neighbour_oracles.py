"""The oracles of bench/neighbours.py see what they are there for."""

from __future__ import annotations

import random

import pytest
from harness.arbitrary_objects import hostile_kinds, iter_paths, mutate_body
from neighbours import Verdict, iter_differences, list_unready, parse_health_metrics
from prometheus_client import CollectorRegistry, generate_latest

from tidegate.runtime.event_loop import BLOCKED
from tidegate.runtime.queue_metrics import QueueMetrics, ReconcileResult


def test_a_page_of_metrics_says_how_often_a_loop_was_held_and_what_crashed() -> None:
    registry = CollectorRegistry()
    held, results = BLOCKED.register(registry), QueueMetrics(registry).results
    for seconds in (0.001, 0.2, 0.3, 20.0):
        held.observe(seconds)
    results.labels("inference", ReconcileResult.CRASHED.value).inc()
    results.labels("inference", ReconcileResult.DONE.value).inc()

    buckets, crashed = parse_health_metrics(generate_latest(registry).decode())

    assert (buckets["0.25"], buckets["all"], crashed) == (2, 4, 1)


def test_what_differs_is_named_with_its_place() -> None:
    was = {"conditions": [{"type": "Ready", "status": "True"}], "replicas": 1}
    now = {"conditions": [{"type": "Ready", "status": "False"}]}
    assert list(iter_differences(was, was)) == []
    assert list(iter_differences(was, now)) == [
        ".conditions[0].status was True and is False",
        ".replicas was 1 and is None",
    ]


@pytest.mark.parametrize("status", [None, {"conditions": [{"type": "Ready", "status": "False"}]}])
def test_a_stable_object_that_is_gone_or_not_ready_is_named(status: object) -> None:
    assert any(line.startswith("inferences/s0: ") for line in list_unready({"inferences/s0": status}))


def test_an_http_status_in_place_of_resources_is_named() -> None:
    assert any(line.startswith("routed/s0: 404") for line in list_unready({"routed/s0": 404}))


def test_what_does_not_hold_is_a_violation_and_what_does_is_counted() -> None:
    verdict = Verdict()
    verdict.record_check("lives", True, lambda: "no")
    assert verdict.violations == []
    verdict.record_check("lives", False, lambda: "xds answers 503")
    assert [line.partition(": ")[2] for line in verdict.violations] == ["lives: xds answers 503"]
    assert verdict.checks["lives"] == 2


def test_every_kind_keeps_its_name_and_place_whatever_else_is_changed() -> None:
    choice = random.Random(7)
    for kind, hostile in hostile_kinds("odd", "s0", "shop").items():
        body = hostile.body("x")
        changed = [mutate_body(body, choice) for _ in range(50)]
        assert {(each["kind"], each["metadata"]["name"]) for each in changed} == {(kind, "x")}
        assert {each["metadata"].get("namespace") for each in changed} == {body["metadata"].get("namespace")}
        assert any(each != body for each in changed)
        assert ("metadata", "name") not in set(iter_paths(body))
