"""Report the status of one FeatureCompute: its plan and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ApiModel
from tidegate.planning.features.freshness import format_lag
from tidegate.planning.features.table_freshness import format_loaded_table
from tidegate.reports.status import RelatedObjects, StatusReport, common_fields, format_field


class WatermarkReport(ApiModel):
    """How current the events of one stream are, in the replica that lags most."""

    source: str
    lag_s: int
    """An upper bound in steps, from 1 to 86,400; 604,800 stands for anything longer."""
    refused_events: int
    """Rounded down to one digit, as the dead letters."""
    dead_letters: int | None = None
    """Absent without spec.sources[].stream.deadLetters."""
    failed_dead_letters: int | None = None

    def format_line(self) -> str:
        """Return the lag, and the refused events and the dead letters if there are any."""
        counts = (
            (self.refused_events, "events refused"),
            (self.dead_letters, "dead letters written"),
            (self.failed_dead_letters, "dead letters failed"),
        )
        texts = [f", {count:,} or more {events}" for count, events in counts if count]
        return f"{self.source} lags by {format_lag(self.lag_s)}{''.join(texts)}"


class TableStatusReport(ApiModel):
    """The table of one source with refresh, in the replica that loaded its table first."""

    source: str
    keys: int | None
    loaded_at: datetime

    def format_line(self) -> str:
        """Return when it was loaded, and the number of its keys."""
        return f"{self.source} {format_loaded_table(self.loaded_at, self.keys)}"


class BackfillStatusReport(ApiModel):
    """The run of spec.backfill."""

    run: str
    shards: int
    done: int
    failed: int

    def format_line(self) -> str:
        """Return the shards that are done, those that failed if there are any, and the run."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.shards} shards{failed}, run {self.run}"


class FeatureStatusReport(StatusReport):
    """One FeatureCompute."""

    kind: Literal["FeatureCompute"] = "FeatureCompute"
    plan_hash: str | None
    outputs: tuple[str, ...]
    replicas: int
    existing: int
    ready: int
    watermarks: tuple[WatermarkReport, ...] = ()
    """Of the streams that replicas serve from."""
    tables: tuple[TableStatusReport, ...] = ()
    """Of the sources with refresh."""
    backfill: BackfillStatusReport | None = None
    """Absent without spec.backfill."""

    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield plan, outputs, replicas, and a line for each stream of events, each table with refresh and the backfill."""
        plan = self.plan_hash or "none"
        yield format_field("plan", plan if wide else plan[:12])
        yield format_field("outputs", ", ".join(self.outputs) or "-")
        yield format_field("replicas", f"{self.ready} ready of {self.replicas}, {self.existing} exist")
        for watermark in self.watermarks:
            yield format_field("events", watermark.format_line())
        for table in self.tables:
            yield format_field("table", table.format_line())
        if self.backfill is not None:
            yield format_field("backfill", self.backfill.format_line())


def report_features(features: FeatureCompute, related: RelatedObjects) -> FeatureStatusReport:
    """Report a FeatureCompute from the object and what was read with it."""
    status = features.status
    return FeatureStatusReport(
        **common_fields(features, related),
        plan_hash=status.plan_hash,
        outputs=tuple(output.name for output in status.outputs),
        replicas=features.spec.replicas,
        existing=status.replicas,
        ready=status.ready_replicas,
        watermarks=tuple(
            WatermarkReport(
                source=item.source,
                lag_s=item.lag_seconds,
                refused_events=item.refused_events,
                dead_letters=item.dead_letters,
                failed_dead_letters=item.failed_dead_letters,
            )
            for item in status.watermarks
        ),
        tables=tuple(
            TableStatusReport(source=item.source, keys=item.keys, loaded_at=item.loaded_at)
            for item in status.tables
        ),
        backfill=None
        if (run := status.backfill) is None
        else BackfillStatusReport(run=run.run, shards=run.shards, done=run.done, failed=run.failed),
    )
