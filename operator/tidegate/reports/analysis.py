"""Report the findings of `tidegate analyze` and `tidegate doctor`, and count them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Self

from tidegate.api.messages.message import Level
from tidegate.api.meta import GROUP, ApiModel
from tidegate.planning.findings import Finding
from tidegate.reports.report import Report

_ORDER: Final = (Level.INFO, Level.WARNING, Level.ERROR)


class FindingReport(ApiModel):
    """One finding, with its code and what to do."""

    code: str
    level: Level
    name: str
    """The condition's reason, or the name of the problem."""
    kind: str
    object: str
    """Namespace and name, with a slash between; the name alone where the kind has no namespace."""
    message: str
    what_to_do: str

    @classmethod
    def of(cls, finding: Finding) -> Self:
        """Return the report of a finding."""
        return cls(
            code=finding.text.code,
            level=finding.text.level,
            name=finding.name,
            kind=finding.kind,
            object=str(finding.key),
            message=finding.message,
            what_to_do=finding.text.what_to_do,
        )


class AnalysisReport(Report):
    """All findings, the worst first."""

    looked_at: int
    """The number of objects, or of parts of the installation, that were checked."""
    findings: tuple[FindingReport, ...]
    suppressed: int
    skipped: tuple[str, ...]
    """What could not be checked or read, and why."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield two lines per finding; `wide` adds the page of its message."""
        for finding in self.findings:
            yield f"{finding.level:8} {finding.code} {finding.kind} {finding.object}: {finding.message}"
            yield f"{'':8} {finding.name}: {finding.what_to_do}"
            if wide:
                yield f"{'':8} docs/reference/messages/{finding.code}.md"
        for reason in self.skipped:
            yield f"{'Skipped':8} {reason}"
        yield self._total()

    def names(self) -> Iterator[str]:
        """Yield each object that has a finding once."""
        objects = dict.fromkeys((finding.kind, finding.object) for finding in self.findings)
        return (f"{kind.lower()}.{GROUP}/{name.rpartition('/')[2]}" for kind, name in objects)

    def fails(self, threshold: Level | None) -> bool:
        """Return whether a finding has this level or a worse one; for None, none has."""
        if threshold is None:
            return False
        threshold_index = _ORDER.index(threshold)
        return any(_ORDER.index(finding.level) >= threshold_index for finding in self.findings)

    def _total(self) -> str:
        counts = [
            (level, sum(finding.level is level for finding in self.findings)) for level in reversed(_ORDER)
        ]
        counts_text = ", ".join(f"{count} {_named(level, count)}" for level, count in counts if count)
        suppressed = f"; {self.suppressed} suppressed" if self.suppressed else ""
        return f"{counts_text or 'nothing is wrong'} in {self.looked_at} looked at{suppressed}"


def analysis(
    found: Sequence[Finding],
    looked_at: int,
    *,
    suppressed: Collection[str] = (),
    skipped: Sequence[str] = (),
) -> AnalysisReport:
    """Report findings without the suppressed ones.

    `suppressed` holds codes, for all objects (`TG5006`) or for one (`TG5006=ads/ctr`).
    """
    reported = [
        finding
        for finding in found
        if finding.text.code not in suppressed and f"{finding.text.code}={finding.key}" not in suppressed
    ]
    return AnalysisReport(
        looked_at=looked_at,
        findings=tuple(FindingReport.of(finding) for finding in reported),
        suppressed=len(found) - len(reported),
        skipped=tuple(skipped),
    )


def _named(level: Level, count: int) -> str:
    return f"{level.value.lower()}{'' if count == 1 or level is Level.INFO else 's'}"
