"""Report a recorded day: what was recorded of each Inference, what is missing, and the command that simulates it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, align_columns, format_name


class RecordedInference(ApiModel):
    """The recorded demand of one Inference."""

    inference: str
    tier: Tier
    load_seconds: float | None
    """The median time from free slices until a new replica served; absent if no decision and no ready pod shows it."""
    drain_seconds: float | None
    """The median time from a decision until the slices that it took were free; absent if no decision shows it."""
    missing: int
    """Steps without a rate, which continue the rate before them."""
    gaps: int
    """Times without a rate, each of one or several steps."""
    peak: float
    """The highest rate, in requests per second."""


class SkippedInference(ApiModel):
    """An Inference of the pool that cannot be simulated."""

    inference: str
    reason: str


class RecordingReport(Report):
    """A recorded time of one pool, in two files that `tidegate simulate` reads."""

    pool: str
    slices: int
    """Healthy slices of the pool, without those of skipped Inferences."""
    nodes: int
    begin: datetime
    end: datetime
    step: str
    steps: int
    inferences: tuple[RecordedInference, ...]
    offline: int
    """Number of offline Inferences, whose demand needs no record."""
    skipped: tuple[SkippedInference, ...]
    notes: tuple[str, ...]
    """What could not be read, if anything."""
    manifest: str
    trace: str
    command: str
    """The command that simulates the recorded time."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line for each Inference, and the next command."""
        del wide
        yield (
            f"computepool/{self.pool}: {self.slices} slices on {self.nodes} nodes, {format_timestamp(self.begin)} to "
            f"{format_timestamp(self.end)} every {self.step}"
        )
        yield ""
        rows = [["INFERENCE", "TIER", "LOAD", "DRAIN", "PEAK", "MISSING", "GAPS"]]
        for item in self.inferences:
            times = (
                "-" if seconds is None else f"{seconds:.0f}s"
                for seconds in (item.load_seconds, item.drain_seconds)
            )
            missing = f"{item.missing} of {self.steps}"
            rows.append(
                [item.inference, item.tier.value, *times, f"{item.peak:,.1f}/s", missing, str(item.gaps)]
            )
        yield from align_columns(rows)
        yield ""
        if self.offline:
            yield f"offline Inferences, which use what is left: {self.offline}"
        for skipped in self.skipped:
            yield f"skipped {skipped.inference}: {skipped.reason}"
        yield from self.notes
        yield f"wrote {self.trace} and {self.manifest}; simulate them with"
        yield f"  {self.command}"

    def object_names(self) -> Iterator[str]:
        """Yield the pool."""
        yield format_name("ComputePool", self.pool)
