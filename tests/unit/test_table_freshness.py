"""Tables with refresh in the plan and in the status of a FeatureCompute, by the reports of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.feature_pods import NOW, plan_for_reports
from builders.live_features import live_features_spec
from builders.pods import a_report
from tidegate.api.feature_compute import FeatureCompute
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.plan import ReconcilePlan
from tidegate.reports.status import RelatedObjects
from tidegate.reports.status_feature import report_features
from tidegate_dataplane.contract import (
    AgentReport,
    EventStreamReport,
    FeaturePlan,
    StreamProblem,
    TableProblem,
    TableRefresh,
    TableReport,
)

LOADED_S = NOW.timestamp()
TABLE = {"uri": "file:///models/tables/users.parquet", "refresh": "10m"}
PROFILES = {"name": "profiles", "entity": "user", "table": TABLE}
REFRESHED = a_feature_compute(sources=[PROFILES], replicas=2)
FEW_KEYS = "table 'profiles' has 4 keys and the loaded one 10"


def plan_of(*reports: AgentReport, features: FeatureCompute = REFRESHED) -> ReconcilePlan:
    """The plan of a FeatureCompute whose pods report these."""
    return plan_for_reports(features, *reports)


def serving(*, serves: bool = True, **fields: Any) -> AgentReport:
    """A pod's report about table profiles."""
    report = TableReport(**{"source": "profiles", "keys": 10, "loaded_s": LOADED_S, **fields})
    return a_report(1 if serves else None, target=1, tables=(report,))


def refusing(problem: TableProblem = TableProblem.TABLE_REFUSED, **fields: Any) -> AgentReport:
    return serving(problem=problem, **{"message": FEW_KEYS, **fields})


def condition_of(plan: ReconcilePlan, kind: str = "Fresh") -> tuple[str, str, str]:
    conditions: Any = plan.status["conditions"]
    return next(
        (item["status"], item["reason"], item["message"]) for item in conditions if item["type"] == kind
    )


def test_the_plan_has_the_interval_and_the_bound() -> None:
    table = {**TABLE, "minKeysPercent": 80}
    plan = compile_plan(a_feature_compute(sources=[{**PROFILES, "table": table}]))

    assert plan.tables[0].refresh == TableRefresh(interval_ms=600_000, min_keys_percent=80)


def test_the_plan_has_the_most_keys_only_if_they_are_bounded() -> None:
    def plan_of_table(**table: int) -> FeaturePlan:
        return compile_plan(a_feature_compute(sources=[{**PROFILES, "table": {**TABLE, **table}}]))

    bounded = plan_of_table(maxKeysPercent=150)
    assert bounded.tables[0].refresh == TableRefresh(
        interval_ms=600_000, min_keys_percent=50, max_keys_percent=150
    )
    assert bounded.hash != plan_of_table().hash
    assert "max_keys_percent" not in plan_of_table().tables[0].model_dump(mode="json")["refresh"]
    assert "maxKeysPercent" not in plan_of_table().to_json()


def test_without_refresh_the_plan_is_as_it_was() -> None:
    bound = {"uri": TABLE["uri"], "minKeysPercent": 80}
    plan = compile_plan(a_feature_compute(sources=[{**PROFILES, "table": bound}]))

    assert plan.tables[0].refresh is None
    assert plan.hash == compile_plan(a_feature_compute()).hash


def test_fresh_while_no_pod_refuses_a_table() -> None:
    plan = plan_of(serving(), serving())

    assert condition_of(plan) == (
        "True",
        "TablesCurrent",
        "every replica that reports has the newest tables, as of its last check",
    )
    assert plan.requeue_after is not None


def test_a_refused_table_is_named_with_its_numbers_and_ready_stays() -> None:
    plan = plan_of(refusing(), refusing())

    assert condition_of(plan) == (
        "False",
        "TableRefused",
        f"on 2 of 2 replicas: {FEW_KEYS}; features come from the table that was loaded before",
    )
    assert condition_of(plan, "Ready")[:2] == ("True", "AllReplicasReady")
    assert condition_of(plan, "SourcesReady")[:2] == ("True", "SourcesReady")
    assert [(event.reason, event.type.value) for event in plan.events] == [("TableRefused", "Warning")]


def test_a_refusal_that_stays_changes_no_status_and_is_one_event() -> None:
    before = plan_of(refusing())
    features = a_feature_compute(sources=[PROFILES], replicas=2, status=dict(before.status))
    plan = plan_of(refusing(), features=features)

    assert plan.status == before.status
    assert plan.events == ()


def test_a_table_that_is_taken_after_all_is_one_event() -> None:
    status = dict(plan_of(refusing()).status)
    features = a_feature_compute(sources=[PROFILES], replicas=2, status=status)
    plan = plan_of(serving(), features=features)

    assert [event.reason for event in plan.events] == ["TablesCurrent"]


def test_a_source_that_does_not_answer_is_named_with_its_own_text() -> None:
    plan = plan_of(serving(), refusing(TableProblem.TABLE_UNREACHABLE, message="there is no s3://t/users"))

    assert condition_of(plan)[1] == "TableUnreachable"
    assert condition_of(plan)[2].startswith("on 1 of 2 replicas: there is no s3://t/users")


def test_a_pod_that_does_not_serve_yet_counts_only_if_none_does() -> None:
    starting = refusing(serves=False)

    assert condition_of(plan_of(serving(), starting))[1] == "TablesCurrent"
    assert condition_of(plan_of(starting))[1] == "TableRefused"


def test_the_status_has_the_oldest_table_that_a_pod_serves_from() -> None:
    plan = plan_of(serving(keys=12, loaded_s=LOADED_S + 60), serving(loaded_s=LOADED_S + 0.7))

    assert plan.status["tables"] == [{"source": "profiles", "keys": 10, "loadedAt": "2026-01-01T00:00:00Z"}]


@pytest.mark.parametrize("reports", [(), (a_report(1),)])
def test_unknown_until_a_pod_has_reported_its_tables(reports: tuple[AgentReport, ...]) -> None:
    plan = plan_of(*reports)

    assert condition_of(plan) == (
        "Unknown",
        "SourcesLoading",
        "no replica has reported the table of source profiles yet",
    )
    assert plan.status["tables"] == []


def test_a_table_and_a_stream_share_the_condition() -> None:
    spec = live_features_spec(replicas=2)
    spec["sources"] = [PROFILES, spec["sources"][1]]
    features = a_feature_compute(**spec)
    stream = EventStreamReport(source="clicks", caught_up=True, lag_s=1)
    silent = stream.model_copy(
        update={"problem": StreamProblem.STREAM_UNREACHABLE, "failing_s": 90, "message": "no servers"}
    )

    def condition_with(report: AgentReport, events: EventStreamReport) -> str:
        reported = report.model_copy(update={"events": (events,)})
        return condition_of(plan_of(reported, features=features))[1]

    assert condition_with(serving(), stream) == "EventsCurrent"
    assert condition_with(refusing(), stream) == "TableRefused"
    assert condition_with(refusing(), silent) == "StreamUnreachable"


def test_without_refresh_the_condition_and_the_tables_go() -> None:
    features = a_feature_compute(replicas=2, status=dict(plan_of(refusing()).status))
    plan = plan_of(a_report(1), features=features)

    assert "Fresh" not in {item["type"] for item in plan.status["conditions"]}
    assert plan.status["tables"] == []


def test_status_has_a_line_for_each_table_and_the_reason() -> None:
    features = a_feature_compute(sources=[PROFILES], status=dict(plan_of(refusing(keys=20_000)).status))
    report = report_features(features, RelatedObjects(NOW))

    lines = list(report.summary_lines(wide=False))
    assert "  table       profiles loaded at 2026-01-01T00:00:00Z, 20,000 keys" in lines
    assert any(FEW_KEYS in condition.message for condition in report.conditions)
