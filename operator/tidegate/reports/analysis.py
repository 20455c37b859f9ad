"""Report the findings of `tidegate analyze` and `tidegate doctor`, and count them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Self

from tidegate.api.messages.message import MessageLevel
from tidegate.api.meta import GROUP, ApiModel
from tidegate.planning.diagnosis.findings import Finding
from tidegate.reports.report import Report

_SEVERITIES: Final = (MessageLevel.INFO, MessageLevel.WARNING, MessageLevel.ERROR)


class FindingReport(ApiModel):
    """One finding, with its code and what to do."""

    code: str
    level: MessageLevel
    name: str
    """The condition's reason, or the name of the problem."""
    kind: str
    object: str
    """Namespace and name, with a slash between; the name alone where the kind has no namespace."""
    message: str
    meaning: str
    """What every finding with this code means."""
    what_to_do: str

    @classmethod
    def from_finding(cls, finding: Finding) -> Self:
        """Return the report of a finding."""
        return cls(
            code=finding.text.code,
            level=finding.text.level,
            name=finding.name,
            kind=finding.kind,
            object=str(finding.key),
            message=finding.message,
            meaning=finding.text.meaning,
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
    docs: str | None = None
    """Where the pages of the messages are, below reference/messages: a URL, or the folder of the checkout; None if unknown."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield two lines per finding; `wide` adds the meaning, and the page of the message if there is one."""
        for finding in self.findings:
            yield f"{finding.level:8} {finding.code} {finding.kind} {finding.object}: {finding.message}"
            yield f"{'':8} {finding.name}: {finding.what_to_do}"
            if wide:
                yield f"{'':8} {finding.meaning}"
            if wide and self.docs:
                yield f"{'':8} {self.docs}/reference/messages/{finding.code}.md"
        for reason in self.skipped:
            yield f"{'Skipped':8} {reason}"
        yield self._summary_line()

    def object_names(self) -> Iterator[str]:
        """Yield each object that has a finding once."""
        objects = dict.fromkeys((finding.kind, finding.object) for finding in self.findings)
        return (f"{kind.lower()}.{GROUP}/{name.rpartition('/')[2]}" for kind, name in objects)

    def reaches_threshold(self, threshold: MessageLevel | None) -> bool:
        """Return whether a finding has this level or a worse one; for None, none has."""
        if threshold is None:
            return False
        threshold_index = _SEVERITIES.index(threshold)
        return any(_SEVERITIES.index(finding.level) >= threshold_index for finding in self.findings)

    def _summary_line(self) -> str:
        counts = [
            (level, sum(finding.level is level for finding in self.findings))
            for level in reversed(_SEVERITIES)
        ]
        counts_text = ", ".join(f"{count} {_count_noun(level, count)}" for level, count in counts if count)
        objects = "object" if self.looked_at == 1 else "objects"
        suppressed = f"; {self.suppressed} suppressed" if self.suppressed else ""
        return f"{counts_text or 'nothing is wrong'} in {self.looked_at} {objects}{suppressed}"


def report_findings(
    findings: Sequence[Finding],
    checked: int,
    *,
    suppressed: Collection[str] = (),
    skipped: Sequence[str] = (),
) -> AnalysisReport:
    """Report findings without the suppressed ones.

    `suppressed` holds codes, for all objects (`TG5006`) or for one (`TG5006=ads/ctr`).
    """
    reported = [
        finding
        for finding in findings
        if finding.text.code not in suppressed and f"{finding.text.code}={finding.key}" not in suppressed
    ]
    return AnalysisReport(
        looked_at=checked,
        findings=tuple(FindingReport.from_finding(finding) for finding in reported),
        suppressed=len(findings) - len(reported),
        skipped=tuple(skipped),
    )


def _count_noun(level: MessageLevel, count: int) -> str:
    return f"{level.value.lower()}{'' if count == 1 or level is MessageLevel.INFO else 's'}"
