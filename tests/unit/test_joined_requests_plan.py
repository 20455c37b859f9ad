"""Plan adaptive batching: what agents are told and report, and what the condition says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.desired import a_desired_state
from builders.inference import an_inference
from builders.pods import a_pod, a_report
from tidegate.api.conditions import ConditionStatus, ObservedCondition
from tidegate.planning.inference.joined_requests import judge_joins
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.resources.inference import make_desired_state
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.agent.report import make_batching_report
from tidegate_dataplane.contract import BatchingMode, BatchingReport, JoinLimit, ModelFormat

SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1")
ADAPTIVE = {"batching": {"mode": "Adaptive"}}


def verdict(*limits: JoinLimit | None, **changes: Any) -> Verdict | None:
    reports = [
        None
        if limit is None
        else make_batching_report(
            a_desired_state(batching=BatchingMode.ADAPTIVE), 1, limit, native=False, batched=True
        )
        for limit in limits
    ]
    replicas = [
        ObservedReplica(a_pod(f"p{number}", source=""), a_report(1, batching=report))
        for number, report in enumerate(reports)
    ]
    return judge_joins(an_inference(**{**ADAPTIVE, **changes}), replicas)


@pytest.mark.parametrize(
    ("batching", "mode", "delay_us"),
    [
        ({}, BatchingMode.OFF, 0),
        ({"mode": "Adaptive"}, BatchingMode.ADAPTIVE, 0),
        ({"mode": "Fixed"}, BatchingMode.FIXED, 0),
        ({"mode": "Fixed", "maxQueueDelay": "2ms"}, BatchingMode.FIXED, 2000),
    ],
)
def test_agents_are_told_the_mode_and_wait_only_where_the_spec_says_so(
    batching: dict[str, str], mode: BatchingMode, delay_us: int
) -> None:
    order = make_desired_state(an_inference(batching=batching), SETTINGS, epoch=1)
    assert (order.batching, order.max_queue_delay_us) == (mode, delay_us)


def test_without_adaptive_batching_there_is_no_condition_and_no_report() -> None:
    assert verdict(JoinLimit.ANY_SHAPE, batching={"mode": "Fixed"}) is None
    assert make_batching_report(a_desired_state(), 1, None, native=False, batched=True) is None


def test_the_strictest_replica_decides() -> None:
    joined = verdict(JoinLimit.ANY_SHAPE, JoinLimit.ANY_SHAPE)
    assert joined is not None
    assert (joined.holds, joined.reason) == (True, "RequestsJoined")
    assert joined.message == "requests of version 1 that arrive together share executions"
    same = verdict(JoinLimit.ANY_SHAPE, JoinLimit.SAME_SHAPE)
    assert same is not None
    assert same.holds
    assert "requests of some shapes are not joined" in same.message
    alone = verdict(JoinLimit.ALONE, JoinLimit.SAME_SHAPE)
    assert alone is not None
    assert (alone.holds, alone.reason) == (False, "RequestsAlone")
    assert "changes with the other rows of its execution" in alone.message


def test_without_replicas_that_serve_nothing_is_claimed() -> None:
    waiting, scaled = verdict(None), verdict(tier="offline", replicas=0)
    assert waiting is not None
    assert scaled is not None
    assert (waiting.reason, scaled.reason) == ("WaitingForReplicas", "ScaledToZero")


def test_before_a_runner_has_reported_nothing_is_claimed() -> None:
    order = a_desired_state(batching=BatchingMode.ADAPTIVE)
    assert make_batching_report(order, 1, None, native=False, batched=True) is None
    assert make_batching_report(order, None, None, native=True, batched=True) is None


@pytest.mark.parametrize(
    ("native", "model_format", "way_out"),
    [
        (True, ModelFormat.ONNX, "set batching.mode to Fixed"),
        (False, ModelFormat.TENSORRT, "set batching.mode to Fixed"),
        (False, ModelFormat.ONNX, "export the model with one"),
    ],
)
def test_what_no_runner_checks_is_alone_with_a_way_out(
    native: bool, model_format: ModelFormat, way_out: str
) -> None:
    order = a_desired_state(batching=BatchingMode.ADAPTIVE, format=model_format)
    report = make_batching_report(order, 1, None, native=native, batched=native)
    assert isinstance(report, BatchingReport)
    assert report.limit is JoinLimit.ALONE
    assert way_out in report.message


def test_a_model_whose_requests_are_alone_is_healthy() -> None:
    condition = ObservedCondition(
        type="Batched",
        status=ConditionStatus.FALSE,
        reason="RequestsAlone",
        last_transition_time=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert condition.is_healthy
