"""How current the events of a FeatureCompute are, by the reports of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.feature_pods import NOW, plan_for_reports
from builders.live_features import live_features_spec
from builders.pods import a_report
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.reasons import Reason
from tidegate.planning.plan import ReconcilePlan
from tidegate.reports.status import RelatedObjects
from tidegate.reports.status_feature import report_features
from tidegate_dataplane.contract import (
    AgentReport,
    DeadLetterReport,
    EventStreamReport,
    RefusalReason,
    StreamProblem,
)

LIVE = a_feature_compute(**live_features_spec(replicas=2))


def plan_of(*reports: AgentReport, features: FeatureCompute = LIVE) -> ReconcilePlan:
    """The plan of a FeatureCompute whose pods report these."""
    return plan_for_reports(features, *reports)


def reading(*, serves: bool = True, **fields: Any) -> AgentReport:
    """A pod's report about stream clicks, current unless told otherwise."""
    report = EventStreamReport(**{"source": "clicks", "caught_up": True, "lag_s": 0.4, **fields})
    return a_report(1 if serves else None, target=1, events=(report,))


def condition_of(plan: ReconcilePlan, kind: str = "Fresh") -> tuple[str, str, str]:
    conditions: Any = plan.status["conditions"]
    return next(
        (item["status"], item["reason"], item["message"]) for item in conditions if item["type"] == kind
    )


def test_fresh_when_every_pod_has_the_events_of_the_last_minute() -> None:
    plan = plan_of(reading(), reading(lag_s=14))

    assert condition_of(plan)[:2] == ("True", "EventsCurrent")
    assert plan.status["watermarks"] == [{"source": "clicks", "lagSeconds": 15, "refusedEvents": 0}]
    assert plan.requeue_after is not None


def test_a_pod_that_lags_is_named_with_its_lag_and_ready_stays() -> None:
    plan = plan_of(reading(), reading(lag_s=400, pending=42_345))

    assert condition_of(plan) == (
        "False",
        "EventsBehind",
        "source clicks: 1 of 2 replicas lag by at most 15m, with about 40,000 events pending",
    )
    assert condition_of(plan, "Ready")[:2] == ("True", "AllReplicasReady")


def test_a_silent_ingester_is_named_by_the_agents_words() -> None:
    plan = plan_of(reading(lag_s=90, message="the container ingester has reported nothing for 1 min"))

    assert condition_of(plan)[1] == "EventsBehind"
    assert condition_of(plan)[2].endswith("; the container ingester has reported nothing for 1 min")


@pytest.mark.parametrize(("lag_s", "step"), [(0, 5), (5, 5), (61, 300), (86_400, 86_400), (86_401, 604_800)])
def test_the_watermark_changes_in_steps(lag_s: float, step: int) -> None:
    assert plan_of(reading(lag_s=lag_s)).status["watermarks"][0]["lagSeconds"] == step


def test_refused_events_are_counted_with_one_digit() -> None:
    refused = {RefusalReason.TOO_LATE: 1_200, RefusalReason.MALFORMED: 99}
    plan = plan_of(reading(), reading(refused=refused))

    assert plan.status["watermarks"][0]["refusedEvents"] == 1_000


def test_a_broker_that_does_not_answer_is_named_with_its_own_text() -> None:
    plan = plan_of(
        reading(), reading(failing_s=90, problem=StreamProblem.STREAM_UNREACHABLE, message="nats: no servers")
    )

    assert condition_of(plan) == (
        "False",
        "StreamUnreachable",
        "source clicks: on 1 of 2 replicas: nats: no servers",
    )
    assert [event.reason for event in plan.events] == ["StreamUnreachable"]


def test_a_problem_that_just_began_is_not_shown() -> None:
    plan = plan_of(
        reading(failing_s=14, problem=StreamProblem.STREAM_UNREACHABLE, message="nats: no servers")
    )

    assert condition_of(plan)[:2] == ("True", "EventsCurrent")


def test_a_problem_of_a_pod_that_does_not_serve_yet_is_not_shown_while_others_do() -> None:
    problem = {"problem": StreamProblem.STREAM_UNREACHABLE, "message": "nats: no servers"}
    plan = plan_of(reading(), reading(serves=False, caught_up=False, failing_s=90, **problem))

    assert condition_of(plan)[:2] == ("True", "EventsCurrent")


def test_a_stream_that_recovers_is_one_event() -> None:
    broken = plan_of(reading(failing_s=90, problem=StreamProblem.STREAM_REFUSED, message="no permission"))
    features = a_feature_compute(**live_features_spec(replicas=2), status=dict(broken.status))
    plan = plan_of(reading(), features=features)

    assert [event.reason for event in plan.events] == ["EventsCurrent"]


def test_unknown_until_a_pod_has_reported() -> None:
    assert condition_of(plan_of())[:2] == ("Unknown", "EventsUnknown")
    assert condition_of(plan_of(a_report(None, target=1)))[:2] == ("Unknown", "EventsUnknown")
    assert plan_of().status["watermarks"] == []


def test_scaled_to_zero_reads_no_stream() -> None:
    features = a_feature_compute(**live_features_spec(replicas=0))
    assert condition_of(plan_of(features=features))[:2] == ("False", "ScaledToZero")


def test_a_new_pod_says_how_far_it_has_read() -> None:
    plan = plan_of(reading(serves=False, caught_up=False, lag_s=9e5, stored=123_456, pending=40_321))

    assert condition_of(plan, "SourcesReady") == (
        "False",
        "SourcesLoading",
        "0 of 1 replicas have read their sources; pod p0: source clicks: 120,000 events read, 40,000 pending",
    )
    assert condition_of(plan)[1] == "EventsBehind"
    assert plan.status["watermarks"] == []


def test_without_streams_the_condition_goes() -> None:
    features = a_feature_compute(replicas=2, status=dict(plan_of(reading()).status))
    plan = plan_of(features=features)

    assert "Fresh" not in {item["type"] for item in plan.status["conditions"]}


def test_status_has_a_line_for_each_stream() -> None:
    refused = {RefusalReason.TOO_LATE: 34}
    status = dict(plan_of(reading(lag_s=3, refused=refused)).status)
    report = report_features(a_feature_compute(**live_features_spec(), status=status), RelatedObjects(NOW))

    assert "  events      clicks lags by at most 5s, 30 or more events refused" in report.summary_lines(
        wide=False
    )


@pytest.mark.produces(Reason.DEAD_LETTERS_FAILING)
def test_dead_letters_that_fail_are_named_and_the_events_are_fresh_all_the_same() -> None:
    letters = DeadLetterReport(
        written=20, failed=1_234, failing_s=60, message="no stream takes the subject dead.clicks"
    )
    plan = plan_of(reading(), reading(dead_letters=letters))

    assert condition_of(plan) == (
        "True",
        "DeadLettersFailing",
        "source clicks: its dead letters cannot be written, 1,000 or more refused events are not in them: "
        "no stream takes the subject dead.clicks",
    )
    assert [(event.reason, event.message) for event in plan.events] == [
        ("DeadLettersFailing", condition_of(plan)[2])
    ]
    (mark,) = plan.status["watermarks"]
    assert (mark["deadLetters"], mark["failedDeadLetters"]) == (20, 1_000)


def test_dead_letters_that_just_failed_or_are_written_change_no_condition() -> None:
    brief = DeadLetterReport(failing_s=14, message="it is away")
    plan = plan_of(reading(dead_letters=brief), reading(dead_letters=DeadLetterReport(written=3)))

    assert condition_of(plan)[1] == "EventsCurrent"
    assert plan.status["watermarks"][0]["failedDeadLetters"] == 0
