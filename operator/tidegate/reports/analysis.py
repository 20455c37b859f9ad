"""What `tidegate analyze` and `tidegate doctor` found, and how much of it there is."""

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
        """What a finding says."""
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
    """Objects, or parts of the installation."""
    findings: tuple[FindingReport, ...]
    suppressed: int
    skipped: tuple[str, ...]
    """What could not be looked at, and why."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has the page of each message as well."""
        for each in self.findings:
            yield f"{each.level:8} {each.code} {each.kind} {each.object}: {each.message}"
            yield f"{'':8} {each.name}: {each.what_to_do}"
            if wide:
                yield f"{'':8} docs/reference/messages/{each.code}.md"
        for said in self.skipped:
            yield f"{'Skipped':8} {said}"
        yield self._total()

    def names(self) -> Iterator[str]:
        """The objects, each once."""
        seen = dict.fromkeys((each.kind, each.object) for each in self.findings)
        return (f"{kind.lower()}.{GROUP}/{name.rpartition('/')[2]}" for kind, name in seen)

    def fails(self, threshold: Level | None) -> bool:
        """Whether one of them is of this level or worse; None: none ever is."""
        if threshold is None:
            return False
        least = _ORDER.index(threshold)
        return any(_ORDER.index(each.level) >= least for each in self.findings)

    def _total(self) -> str:
        counts = [(level, sum(each.level is level for each in self.findings)) for level in reversed(_ORDER)]
        said = ", ".join(f"{count} {_named(level, count)}" for level, count in counts if count)
        left = f"; {self.suppressed} suppressed" if self.suppressed else ""
        return f"{said or 'nothing is wrong'} in {self.looked_at} looked at{left}"


def analysis(
    found: Sequence[Finding],
    looked_at: int,
    *,
    suppressed: Collection[str] = (),
    skipped: Sequence[str] = (),
) -> AnalysisReport:
    """`suppressed` names codes, everywhere (`TG5006`) or about one object (`TG5006=ads/ctr`)."""
    kept = [
        each
        for each in found
        if each.text.code not in suppressed and f"{each.text.code}={each.key}" not in suppressed
    ]
    return AnalysisReport(
        looked_at=looked_at,
        findings=tuple(FindingReport.of(each) for each in kept),
        suppressed=len(found) - len(kept),
        skipped=tuple(skipped),
    )


def _named(level: Level, count: int) -> str:
    return f"{level.value.lower()}{'' if count == 1 or level is Level.INFO else 's'}"
