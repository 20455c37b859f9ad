"""Report how far the release of a ModelAccess is, and the result of a command about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Self

from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import CheckVerdict
from tidegate.api.release_commands import RELEASE_COMMANDS, ReleaseCommand, ReleasePhase
from tidegate.reports.report import Report, align_columns, format_count, format_name


class ReleaseCommandResult(StrEnum):
    """The result of a command about a release."""

    DONE = "Done"
    """The controllers have acted on it."""
    WITHOUT_EFFECT = "WithoutEffect"
    """The controllers have observed it, and it has no effect in the present phase."""
    ALREADY = "Already"
    """The release was in this phase already, and nothing was written."""
    ASKED = "Asked"
    """It was written, and the controllers have not acted on it yet."""
    NOTHING_ASKED = "NothingAsked"
    """The release was only read."""


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
    """Absent until the controllers begin the release."""
    step: int | None
    weight: int | None
    """The target's effective share, in percent."""
    since: datetime | None
    reason: str
    message: str
    checks: tuple[CheckReport, ...]
    command: ReleaseCommand | None
    """The command of this call."""
    acted: ReleaseCommandResult
    dry_run: bool
    """Whether nothing was written, and `acted` is what the command would do in the present phase."""

    @classmethod
    def from_access(
        cls,
        access: ModelAccess,
        acted: ReleaseCommandResult,
        command: ReleaseCommand | None = None,
        *,
        dry_run: bool = False,
    ) -> Self:
        """Return the report of an access's release. Raises ValueError if it has none."""
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
                CheckReport(check=check.check, verdict=check.verdict, message=check.message)
                for check in (status.checks if status is not None else ())
            ),
            command=command,
            acted=acted,
            dry_run=dry_run,
        )

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the state and the checks that fail; `wide` adds those that pass."""
        yield f"ModelAccess {self.access}, route {self.route}: Inference {self.target} {self._describe_progress()}"
        if self.message:
            yield f"  {self.reason or 'says':12}{self.message}"
        for check in self.checks:
            if wide or check.verdict is not CheckVerdict.PASSING:
                yield f"  {check.verdict:12}{check.check}: {check.message}"
        if self.acted is ReleaseCommandResult.ALREADY:
            yield f"  {'already':12}it was so before: nothing was written"
        elif self.acted is ReleaseCommandResult.WITHOUT_EFFECT:
            yield f"  {'without':12}effect: {self.command} changes nothing of a release that is {self.phase}; restart begins anew"
        elif self.acted is ReleaseCommandResult.ASKED:
            yield f"  {'asked':12}{self.command} is written, and the controllers have not acted on it yet"
        elif self.dry_run and self.command is not None:
            yield f"  {'dry run':12}{self.command} would be written. {RELEASE_COMMANDS[self.command].summary}"

    def object_names(self) -> Iterator[str]:
        """Yield the access."""
        yield format_name(ModelAccess.KIND, self.access.rpartition("/")[2])

    def format_cells(self) -> tuple[str, ...]:
        """Return the cells of a row in a list of releases."""
        since = "-" if self.since is None else format_timestamp(self.since)
        step = f"{format_count(self.step)}/{len(self.steps)}"
        return (self.access, self.target, step, format_count(self.weight), str(self.phase or "-"), since)

    def _describe_progress(self) -> str:
        if self.phase is None or self.since is None:
            return "is not begun yet"
        return f"has {self.weight} %, {self.phase} at step {self.step} of {len(self.steps)} since {format_timestamp(self.since)}"


class ReleaseListReport(Report):
    """The releases of several ModelAccesses."""

    releases: tuple[ReleaseReport, ...]
    skipped: tuple[str, ...]
    """What could not be read, and why."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a row for each release; `wide` adds its reason and message."""
        if self.releases:
            head = ("MODELACCESS", "TARGET", "STEP", "WEIGHT", "PHASE", "SINCE")
            rows = [
                (*release.format_cells(), *((release.reason or "-", release.message or "-") if wide else ()))
                for release in self.releases
            ]
            yield from align_columns([(*head, *(("REASON", "MESSAGE") if wide else ())), *rows])
        yield from (f"skipped: {reason}" for reason in self.skipped)

    def empty_message(self) -> str:
        """Return that there is no release, if that is so."""
        return "" if self.releases else "no ModelAccess with a release found"

    def object_names(self) -> Iterator[str]:
        """Yield the accesses."""
        return (name for release in self.releases for name in release.object_names())
