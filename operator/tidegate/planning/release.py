"""The release of a ModelAccess as a pure state machine: spec, status and measurements in, the next status out.

Everything that it goes on from is in the status, so each pass could be the first of a new process.
A pass that changes nothing gives the very status that it was given, and costs no write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.api.release import (
    RELEASE_ANNOTATION,
    CheckStatus,
    CheckVerdict,
    GatewayCounts,
    OnFailure,
    Release,
    ReleaseCommand,
    ReleasePhase,
    ReleaseStatus,
)
from tidegate.planning.plan import Event, EventType
from tidegate.planning.release_checks import Evidence, judge
from tidegate.planning.sample import GatewayReading, Sample, Tally, bases_of, counted_since
from tidegate.routing.release import release_key, release_status

_LOOKS: Final = 10
_OFTENEST: Final = timedelta(seconds=1)
_SELDOMEST: Final = timedelta(seconds=10)
_NONE: Final[Mapping[str, float | None]] = MappingProxyType({})
_UNDER_WAY: Final = frozenset({ReleasePhase.PROGRESSING, ReleasePhase.PAUSED})
_ALL: Final = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """What the gateways, and Prometheus for its queries, said just now. A query without a number has None."""

    gateways: Sequence[GatewayReading] = ()
    silent: Sequence[str] = ()
    answers: Mapping[str, float | None] = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """How the release goes on; None as status: the spec asks for none."""

    status: ReleaseStatus | None
    events: tuple[Event, ...] = ()
    look_again: timedelta | None = None


NO_RELEASE: Final = ReleasePlan(None)


def under_way(access: ModelAccess) -> bool:
    """Whether the release needs measurements now."""
    status = release_status(access)
    return status is not None and status.phase in _UNDER_WAY


def queries_due(access: ModelAccess, now: datetime) -> tuple[str, ...]:
    """The queries that Prometheus is to be asked now: those of all checks, at the end of an interval."""
    release, status = access.spec.release, release_status(access)
    if release is None or status is None or not under_way(access) or now < _due(release, status):
        return ()
    return tuple(check.prometheus for check in release.checks if check.prometheus is not None)


def plan_release(access: ModelAccess, measured: Measured, now: datetime) -> ReleasePlan:
    """The next status of the release that the spec asks for."""
    release = access.spec.release
    if release is None or access.spec.released_route is None:
        return NO_RELEASE
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    status = release_status(access)
    said = access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()[:256]
    if status is None:
        return _begin(access, release, said, now)
    pass_ = _Pass(release, status, said, now)
    commanded = pass_.obey()
    if commanded is not None:
        return commanded
    if status.phase not in _UNDER_WAY:
        return ReleasePlan(pass_.noted())
    return pass_.look(measured)


def _begin(access: ModelAccess, release: Release, said: str, now: datetime) -> ReleasePlan:
    """The first step. A command that is there already was meant for an earlier release, but for pause, which is safe."""
    paused = said == ReleaseCommand.PAUSE
    status = ReleaseStatus(
        key=release_key(access),
        phase=ReleasePhase.PAUSED if paused else ReleasePhase.PROGRESSING,
        step=1,
        weight=release.steps[0],
        since=now,
        reason=Reason.PAUSED if paused else Reason.STEPPING,
        message=f"step 1 of {len(release.steps)}: {release.target} takes {release.steps[0]} %",
        command=said,
        window=1,
        window_began=now,
        checked=now,
    )
    event = Event(EventType.NORMAL, "ReleaseStarted", _told(release, status.message))
    return ReleasePlan(status, (event,), _OFTENEST)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One look at a release that has begun."""

    release: Release
    status: ReleaseStatus
    said: str
    now: datetime

    def obey(self) -> ReleasePlan | None:
        """What the annotation changes. Each value is acted on once: when it is another one than was last seen."""
        if self.said == self.status.command:
            return None
        ongoing = self.status.phase in _UNDER_WAY
        match self.said:
            case ReleaseCommand.PROMOTE if ongoing:
                return self._end(ReleasePhase.PROMOTED, Reason.PROMOTED, "promoted by annotation")
            case ReleaseCommand.ABORT if self.status.phase is not ReleasePhase.ROLLED_BACK:
                return self._end(ReleasePhase.ROLLED_BACK, Reason.ABORTED, "aborted by annotation")
            case ReleaseCommand.PAUSE if self.status.phase is ReleasePhase.PROGRESSING:
                return self._turn(ReleasePhase.PAUSED, Reason.PAUSED, "ReleasePaused")
            case ReleaseCommand.RESTART:
                return self._step(1, "ReleaseRestarted")
            case "" | ReleaseCommand.RESUME if self.status.phase is ReleasePhase.PAUSED:
                return self._turn(ReleasePhase.PROGRESSING, Reason.STEPPING, "ReleaseResumed")
            case _:
                return None

    def noted(self) -> ReleaseStatus:
        """The status as it is, with the annotation seen."""
        return self._with(command=self.said)

    def look(self, measured: Measured) -> ReleasePlan:
        """Judges what was measured, and moves on, holds or ends."""
        status = self.status
        fresh = counted_since(measured.gateways, status.gateways, self.now)
        sample = Sample(Tally.parse(status.target), Tally.parse(status.stable)) + fresh
        due = self.now >= _due(self.release, status)
        evidence = Evidence(sample, status.window, measured.answers, asked=due)
        checks = judge(self.release.checks, evidence, status.checks)
        failed = [check for check in checks if check.verdict is CheckVerdict.FAILED]
        if failed and status.reason != Reason.CHECK_FAILED:
            return self._fail(failed, checks)
        if not due:
            return ReleasePlan(self._joined(measured), look_again=self._next_look(status))
        unmeasured = _unmeasured(measured)
        if not unmeasured and all(check.verdict is CheckVerdict.PASSING for check in checks):
            return self._pass(checks, measured)
        return self._hold(unmeasured, checks, sample, measured)

    def _fail(self, failed: Sequence[CheckStatus], checks: tuple[CheckStatus, ...]) -> ReleasePlan:
        message = "; ".join(f"{check.check}: {check.message}" for check in failed)
        if self.release.on_failure is OnFailure.ROLLBACK:
            return self._end(ReleasePhase.ROLLED_BACK, Reason.CHECK_FAILED, message, checks)
        status = self._with(
            phase=ReleasePhase.PAUSED, reason=Reason.CHECK_FAILED, message=message, checks=checks
        )
        event = Event(EventType.WARNING, "ReleaseCheckFailed", _told(self.release, message))
        return ReleasePlan(status, (event,), self._next_look(status))

    def _pass(self, checks: tuple[CheckStatus, ...], measured: Measured) -> ReleasePlan:
        """All checks passed at the end of an interval."""
        if self.status.phase is ReleasePhase.PAUSED:
            status = self._another_window(self.status, checks, measured)
            return ReleasePlan(status, look_again=self._next_look(status))
        if self.status.step >= len(self.release.steps):
            return self._end(ReleasePhase.PROMOTED, Reason.PROMOTED, "every step passed", checks)
        return self._step(self.status.step + 1, "ReleaseStep", checks, measured)

    def _hold(
        self, unmeasured: str, checks: tuple[CheckStatus, ...], sample: Sample, measured: Measured
    ) -> ReleasePlan:
        """Another interval with the same weight; what was counted is put by."""
        why = _why_held(unmeasured, checks)
        if self.status.phase is ReleasePhase.PAUSED:
            why = self.status.reason, self.status.message
        reason, message = why
        status = self._with(
            reason=reason,
            message=message,
            checks=checks,
            checked=self.now,
            target=sample.target.render(),
            stable=sample.stable.render(),
            gateways=self._bases(measured),
        )
        return ReleasePlan(status, look_again=self._next_look(status))

    def _step(
        self,
        number: int,
        event: str,
        checks: tuple[CheckStatus, ...] = (),
        measured: Measured | None = None,
    ) -> ReleasePlan:
        weight = self.release.steps[number - 1]
        message = f"step {number} of {len(self.release.steps)}: {self.release.target} takes {weight} %"
        status = self._with(
            phase=ReleasePhase.PROGRESSING,
            step=number,
            weight=weight,
            since=self.now,
            reason=Reason.STEPPING,
            message=message,
        )
        status = self._another_window(status, checks, measured or Measured())
        told = Event(EventType.NORMAL, event, _told(self.release, message))
        return ReleasePlan(status, (told,), self._next_look(status))

    def _turn(self, phase: ReleasePhase, reason: Reason, event: str) -> ReleasePlan:
        """Pauses, or goes on; then what a person may have looked at and found harmless no longer counts."""
        message = (
            f"step {self.status.step} of {len(self.release.steps)}: "
            f"{self.release.target} takes {self.status.weight} %"
        )
        status = self._with(phase=phase, reason=reason, message=message)
        if phase is ReleasePhase.PROGRESSING:
            status = self._another_window(status, self.status.checks, Measured())
        told = Event(EventType.NORMAL, event, _told(self.release, message))
        return ReleasePlan(status, (told,), _OFTENEST)

    def _end(
        self,
        phase: ReleasePhase,
        reason: Reason,
        message: str,
        checks: tuple[CheckStatus, ...] | None = None,
    ) -> ReleasePlan:
        promoted = phase is ReleasePhase.PROMOTED
        status = self._with(
            phase=phase,
            weight=_ALL if promoted else 0,
            since=self.now,
            reason=reason,
            message=message,
            checks=self.status.checks if checks is None else checks,
            checked=self.now,
            target="",
            stable="",
            gateways=(),
        )
        at = f"at step {self.status.step} of {len(self.release.steps)} ({self.status.weight} %)"
        event = Event(
            EventType.NORMAL if promoted else EventType.WARNING,
            "ReleasePromoted" if promoted else "ReleaseRolledBack",
            _told(self.release, f"{at}: {message}"),
        )
        return ReleasePlan(status, (event,))

    def _another_window(
        self, status: ReleaseStatus, checks: tuple[CheckStatus, ...], measured: Measured
    ) -> ReleaseStatus:
        """The next sample begins, and is judged by itself: a long good past excuses nothing."""
        return status.model_copy(
            update={
                "checks": checks,
                "checked": self.now,
                "window": status.window + 1,
                "window_began": self.now,
                "target": "",
                "stable": "",
                "gateways": bases_of(measured.gateways, (), self.now),
            }
        )

    def _joined(self, measured: Measured) -> ReleaseStatus:
        """The status as it is, but for gateways that were not there yet."""
        known = {base.gateway for base in self.status.gateways}
        new = [reading for reading in measured.gateways if reading.gateway not in known]
        return self._with(gateways=bases_of(new, self.status.gateways, self.now)) if new else self.noted()

    def _bases(self, measured: Measured) -> tuple[GatewayCounts, ...]:
        silent = [base for base in self.status.gateways if base.gateway in measured.silent]
        return bases_of(measured.gateways, silent, self.now)

    def _with(self, **fields: object) -> ReleaseStatus:
        return self.status.model_copy(update={"command": self.said, **fields})

    def _next_look(self, status: ReleaseStatus) -> timedelta:
        """About ten looks in each interval, the last of them at its end."""
        interval = parse_duration(self.release.interval)
        pause = min(max(interval / _LOOKS, _OFTENEST), _SELDOMEST)
        return max(min(pause, _due(self.release, status) - self.now), timedelta(milliseconds=50))


def _due(release: Release, status: ReleaseStatus) -> datetime:
    return status.checked + parse_duration(release.interval)


def _unmeasured(measured: Measured) -> str:
    """Why what was measured is not all that there is to measure; empty when it is."""
    if measured.silent:
        return f"gateway {min(measured.silent)} does not tell its counters"
    return "" if measured.gateways else "no gateway is ready, so nothing is measured"


def _why_held(unmeasured: str, checks: Sequence[CheckStatus]) -> tuple[str, str]:
    if unmeasured:
        return Reason.WAITING_FOR_MEASUREMENTS, unmeasured
    first = next(check for check in checks if check.verdict is not CheckVerdict.PASSING)
    message = f"{first.check}: {first.message}"
    if first.verdict is CheckVerdict.UNDECIDED:
        return Reason.UNDECIDED, message
    if first.check.startswith("prometheus: "):
        return Reason.WAITING_FOR_MEASUREMENTS, message
    return Reason.WAITING_FOR_REQUESTS, message


def _told(release: Release, message: str) -> str:
    return f"release of {release.target} on route {release.route}: {message}"
