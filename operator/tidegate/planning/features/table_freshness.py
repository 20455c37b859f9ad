"""Judge whether the pods of a FeatureCompute serve the newest tables of sources with refresh, from their reports."""

from collections.abc import Sequence
from datetime import UTC, datetime

from tidegate.api.conditions import format_timestamp
from tidegate.api.feature_status import LoadedTable
from tidegate.planning.inference.reported_problems import judge_reports
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate_dataplane.contract import TableReport


def list_table_reports(source: str, replicas: Sequence[ObservedReplica]) -> list[TableReport]:
    """Return the reports about a source's table of pods that answer requests, of all pods if none does."""
    reports = [
        (replica.pod.ready, report)
        for replica in replicas
        if replica.report is not None
        for report in replica.report.tables
        if report.source == source
    ]
    return [report for ready, report in reports if ready] or [report for _, report in reports]


def find_table_problem(sources: Sequence[str], replicas: Sequence[ObservedReplica]) -> Verdict | None:
    """Return why the newest table of the first source with a problem is not served, in the agents' words."""
    for source in sources:
        reports = list_table_reports(source, replicas)
        verdict = judge_reports(reports, lambda report: report.problem, lambda report: report.message)
        if verdict is not None:
            message = f"{verdict.message}; features come from the table that was loaded before"
            return Verdict(False, verdict.reason, message)
    return None


def make_loaded_tables(
    sources: Sequence[str], replicas: Sequence[ObservedReplica]
) -> tuple[LoadedTable, ...]:
    """Return the oldest table of each source that a pod serves from; nothing about a source without reports."""
    return tuple(
        LoadedTable(
            source=source,
            keys=oldest.keys,
            loaded_at=datetime.fromtimestamp(int(oldest.loaded_s), UTC),
        )
        for source in sources
        if (reports := list_table_reports(source, replicas))
        for oldest in [min(reports, key=lambda report: report.loaded_s)]
    )


def format_loaded_table(loaded_at: datetime, keys: int | None) -> str:
    """Return when a table was loaded, and the number of its keys if it is known."""
    counted = "" if keys is None else f", {keys:,} keys"
    return f"loaded at {format_timestamp(loaded_at)}{counted}"
