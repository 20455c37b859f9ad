"""Report what `tidegate features compute` computed: the plan, what it read, and each file."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, align_columns


class FeatureInputReport(ApiModel):
    """A table or a stream of events that the features were computed from."""

    name: str
    path: str
    count: int
    """The number of keys of a table, or of events of a stream."""


class FeatureFileReport(ApiModel):
    """A file of rows, and the file of the same rows with their features."""

    rows: str
    output: str
    row_count: int
    state: str
    """Written, Skipped if an earlier run has written it, or Pending after a dry run."""


class OfflineFeaturesReport(Report):
    """One run over the files of a shard."""

    name: str
    """The name of the FeatureCompute."""
    plan_hash: str
    """Also in the metadata of each file, under tidegate.planHash, and in status.planHash of the object."""
    time_column: str | None
    shard: int
    """Counted from 0."""
    shards: int
    dry_run: bool
    tables: tuple[FeatureInputReport, ...]
    events: tuple[FeatureInputReport, ...]
    files: tuple[FeatureFileReport, ...]

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the plan and a line for each file, with `wide` also what they were computed from."""
        yield f"featurecompute/{self.name}: plan {self.plan_hash}"
        if wide:
            yield from (f"table {item.name}: {item.count} keys from {item.path}" for item in self.tables)
            yield from (f"stream {item.name}: {item.count} events from {item.path}" for item in self.events)
        yield ""
        if not self.files:
            yield f"shard {self.shard} of {self.shards} has no files"
            return
        rows = [("ROWS", "COUNT", "STATE", "FEATURES")]
        rows += [(file.rows, str(file.row_count), file.state, file.output) for file in self.files]
        yield from align_columns(rows)

    def object_names(self) -> Iterator[str]:
        """Yield the files with features."""
        for file in self.files:
            yield file.output
