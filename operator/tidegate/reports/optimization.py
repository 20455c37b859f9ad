"""Report what `tidegate optimize` did to a model: which passes it applied, what they gained, and why it left out the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, align_columns


class PassReport(ApiModel):
    """What became of one pass."""

    name: str
    applied: bool
    reason: str
    """Why it was left out; empty if it was applied."""
    changes: int
    """Places of the graph that it changed, such as columns fused."""
    nodes_before: int
    nodes_after: int
    max_error: float | None
    """Largest difference of an answer, as a share of the output's largest number; absent if an answer is missing."""
    speedups: Mapping[int, float]
    """Time before over time after, by rows of the request."""


class OptimizationReport(Report):
    """One model, before and after all passes."""

    model: str
    output: str | None
    """File of the optimized model; absent if it was not to be written or is the same as before."""
    nodes_before: int
    nodes_after: int
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    shared_inputs: tuple[str, ...]
    """Inputs that the optimized model takes with one row for each request."""
    logged_requests: int
    """Requests of a file on which answers were compared, beside random ones."""
    passes: tuple[PassReport, ...]
    speedups: Mapping[int, float]

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a table of passes, the speed-up of the whole, and with `wide` the operators before and after."""
        rows: list[tuple[str, ...]] = [
            ("PASS", "APPLIED", "CHANGES", "NODES", "MAX ERROR", "SPEED-UP BY ROWS", "REASON")
        ]
        rows += [_format_pass(report) for report in self.passes]
        yield from align_columns(rows)
        yield ""
        yield f"nodes: {self.nodes_before} before, {self.nodes_after} after"
        if self.speedups:
            yield f"speed-up by rows: {_format_speedups(self.speedups)}"
        if self.shared_inputs:
            yield f"inputs that may have one row: {', '.join(self.shared_inputs)}"
        if self.logged_requests:
            yield f"logged requests compared: {self.logged_requests}"
        if wide:
            yield ""
            yield from align_columns([("OPERATOR", "BEFORE", "AFTER"), *self._count_operators()])
        if self.output is not None:
            yield f"written to {self.output}"

    def object_names(self) -> Iterator[str]:
        """Yield the file of the optimized model, if there is one."""
        if self.output is not None:
            yield self.output

    def _count_operators(self) -> Iterator[tuple[str, str, str]]:
        before, after = self.operators_before, self.operators_after
        for operator in dict.fromkeys((*before, *after)):
            yield operator, str(before.get(operator, 0)), str(after.get(operator, 0))


def _format_pass(report: PassReport) -> tuple[str, ...]:
    return (
        report.name,
        "yes" if report.applied else "no",
        str(report.changes),
        f"{report.nodes_before} -> {report.nodes_after}" if report.applied else str(report.nodes_before),
        "-" if report.max_error is None or not report.changes else f"{report.max_error:.1e}",
        _format_speedups(report.speedups) or "-",
        report.reason or "-",
    )


def _format_speedups(speedups: Mapping[int, float]) -> str:
    return ", ".join(f"{rows}: {ratio:.2f}x" for rows, ratio in speedups.items())
