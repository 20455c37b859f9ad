"""How far the release of a ModelAccess is, and what a command did about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Self

from tidegate.api.conditions import timestamp
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import CheckVerdict, ReleaseCommand, ReleasePhase
from tidegate.reports.report import Report, named


class Acted(StrEnum):
    """What came of a command."""

    DONE = "Done"
    """The controllers have acted on it."""
    WITHOUT_EFFECT = "WithoutEffect"
    """The controllers have seen it, and it changes nothing where the release is now."""
    ALREADY = "Already"
    """It was so already, and nothing was written."""
    ASKED = "Asked"
    """It was written, and nobody has acted on it yet."""
    NOTHING_ASKED = "NothingAsked"
    """It was only looked at."""


class CheckReport(ApiModel):
    """One check, and its figures."""

    check: str
    verdict: CheckVerdict
    message: str


class ReleaseReport(Report):
    """One release as it is now."""

    access: str
    route: str
    target: str
    steps: tuple[int, ...]
    phase: ReleasePhase | None
    """Absent while the controllers have not begun it."""
    step: int | None
    weight: int | None
    """The target's share in effect, in percent."""
    since: datetime | None
    reason: str
    message: str
    checks: tuple[CheckReport, ...]
    command: ReleaseCommand | None
    """What was asked for here."""
    acted: Acted

    @classmethod
    def of(cls, access: ModelAccess, acted: Acted, command: ReleaseCommand | None = None) -> Self:
        """The release of an access that has one. Raises ValueError where it has none."""
        release, status = access.spec.release, access.status.release
        if release is None:
            message = f"ModelAccess {access.key} has no spec.release: nothing is released there"
            raise ValueError(message)
        return cls(
            access=str(access.key),
            route=release.route,
            target=release.target,
            steps=release.steps,
            phase=status.phase if status is not None else None,
            step=status.step if status is not None else None,
            weight=status.weight if status is not None else None,
            since=status.since if status is not None else None,
            reason=status.reason if status is not None else "",
            message=status.message if status is not None else "",
            checks=tuple(
                CheckReport(check=each.check, verdict=each.verdict, message=each.message)
                for each in (status.checks if status is not None else ())
            ),
            command=command,
            acted=acted,
        )

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has the checks that pass as well."""
        yield f"ModelAccess {self.access}, route {self.route}: Inference {self.target} {self._stands()}"
        if self.message:
            yield f"  {self.reason or 'says':12}{self.message}"
        for each in self.checks:
            if wide or each.verdict is not CheckVerdict.PASSING:
                yield f"  {each.verdict:12}{each.check}: {each.message}"
        if self.acted is Acted.ALREADY:
            yield f"  {'already':12}it was so before: nothing was written"
        elif self.acted is Acted.WITHOUT_EFFECT:
            yield f"  {'without':12}effect: {self.command} changes nothing of a release that is {self.phase}; restart begins anew"
        elif self.acted is Acted.ASKED:
            yield f"  {'asked':12}{self.command} is written, and the controllers have not acted on it yet"

    def names(self) -> Iterator[str]:
        """The access."""
        yield named(ModelAccess.KIND, self.access.rpartition("/")[2])

    def _stands(self) -> str:
        if self.phase is None or self.since is None:
            return "is not begun yet"
        return f"has {self.weight} %, {self.phase} at step {self.step} of {len(self.steps)} since {timestamp(self.since)}"
