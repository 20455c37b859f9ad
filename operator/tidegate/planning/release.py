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
    MAX_GATEWAYS,
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
    """What the gateways, and Prometheus for its queries, said just now. A query without a number has None.

    `pods` is how many of the target are ready; without one nothing passes.
    """

    gateways: Sequence[GatewayReading] = ()
    silent: Sequence[str] = ()
    answers: Mapping[str, float | None] = field(default_factory=lambda: _NONE)
    pods: int = 0


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """How the release goes on; None as status: the spec asks for none."""

    status: ReleaseStatus | None
    events: tuple[Event, ...] = ()
    look_again: timedelta | None = None


NO_RELEASE: Final = ReleasePlan(None)


def under_way(access: ModelAccess) -> bool:
    """Whether the release has begun and not ended."""
    status = release_status(access)
    return status is not None and status.phase in _UNDER_WAY


def to_measure(access: ModelAccess) -> bool:
    """Whether the release needs measurements now: it is under way, and no command comes first."""
    status = release_status(access)
    return status is not None and under_way(access) and status.command == _said(access)


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
    said = _said(access)
    if status is None:
        return _begin(access, release, said, now)
    status = status.model_copy(update={"key": release_key(access)})
    pass_ = _Pass(release, status, said, now)
    if said != status.command:
        # Obeyed before anything is measured; each value is acted on once.
        return pass_.obey() or ReleasePlan(pass_.noted(), look_again=_OFTENEST if under_way(access) else None)
    if status.phase not in _UNDER_WAY:
        return ReleasePlan(status)
    return pass_.look(measured)


def _said(access: ModelAccess) -> str:
    return access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()[:256]


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
        """What the annotation changes, now that it is another one than was last seen; None: nothing."""
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
            case ReleaseCommand.RESUME if self.status.phase is ReleasePhase.PAUSED:
                return self._turn(ReleasePhase.PROGRESSING, Reason.STEPPING, "ReleaseResumed")
            case "" if self._paused_by_annotation():
                return self._turn(ReleasePhase.PROGRESSING, Reason.STEPPING, "ReleaseResumed")
            case _:
                return None

    def _paused_by_annotation(self) -> bool:
        """Only then does taking the annotation away say anything: what a check has stopped, a person resumes by name."""
        status = self.status
        return status.phase is ReleasePhase.PAUSED and (status.command, status.reason) == (
            ReleaseCommand.PAUSE,
            Reason.PAUSED,
        )

    def noted(self) -> ReleaseStatus:
        """The status as it is, with the annotation seen."""
        return self._with(command=self.said)

    def look(self, measured: Measured) -> ReleasePlan:
        """Judges what was measured, and moves on, holds or ends."""
        status = self.status
        fresh = counted_since(measured.gateways, status.gateways)
        sample = Sample(Tally.parse(status.target), Tally.parse(status.stable)) + fresh
        due = self.now >= _due(self.release, status)
        evidence = Evidence(sample, status.window, measured.answers, asked=due)
        checks = judge(self.release.checks, evidence, status.checks)
        failed = [check for check in checks if check.verdict is CheckVerdict.FAILED]
        if failed and status.reason != Reason.CHECK_FAILED:
            return self._fail(failed, checks)
        if not due:
            return ReleasePlan(self._joined(measured), look_again=self._next_look(status))
        held = self._why_held(measured, checks)
        if held is None and status.phase is ReleasePhase.PROGRESSING:
            return self._pass(checks, measured)
        if held is None or status.phase is ReleasePhase.PAUSED:
            held = status.reason, status.message
        return self._hold(held, checks, sample, measured)

    def _why_held(self, measured: Measured, checks: Sequence[CheckStatus]) -> tuple[str, str] | None:
        """Why the step stands, as reason and message; None when all checks pass."""
        if not measured.pods:
            return Reason.TARGET_NOT_READY, f"Inference {self.release.target} has no ready endpoint"
        if measured.silent:
            message = f"gateway {min(measured.silent)} does not tell its counters"
            return Reason.WAITING_FOR_MEASUREMENTS, message
        if not measured.gateways:
            return Reason.WAITING_FOR_MEASUREMENTS, "no gateway is ready, so nothing is measured"
        return _why_not_passing(checks)

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
        if self.status.step >= len(self.release.steps):
            return self._end(ReleasePhase.PROMOTED, Reason.PROMOTED, "every step passed", checks)
        return self._step(self.status.step + 1, "ReleaseStep", checks, measured)

    def _hold(
        self, why: tuple[str, str], checks: tuple[CheckStatus, ...], sample: Sample, measured: Measured
    ) -> ReleasePlan:
        """Another interval with the same weight: a sample that is large enough is done with, any other put by."""
        reason, message = why
        status = self._with(reason=reason, message=message)
        if self._enough(checks):
            status = self._another_window(status, checks, measured)
        else:
            put_by: dict[str, object] = {
                "checks": checks,
                "target": sample.target.render(),
                "stable": sample.stable.render(),
                "gateways": self._bases(measured),
            }
            status = status.model_copy(update=put_by)
            if _same_but_for_age(status, self.status):
                status = self.status
            else:
                status = status.model_copy(update={"checked": self.now})
        return ReleasePlan(status, look_again=self._next_look(status))

    def _enough(self, checks: Sequence[CheckStatus]) -> bool:
        """Whether every check that counts requests passes; what is counted from now on is judged by itself."""
        counting = {check.title for check in self.release.checks if check.metric is not None}
        return bool(counting) and all(
            check.verdict is CheckVerdict.PASSING for check in checks if check.check in counting
        )

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
                "gateways": self._bases(measured),
            }
        )

    def _joined(self, measured: Measured) -> ReleaseStatus:
        """The status as it is, but for gateways that came or went."""
        before = {base.gateway: base for base in self.status.gateways}
        new = bases_of(reading for reading in measured.gateways if reading.gateway not in before)
        there = {reading.gateway for reading in measured.gateways} | set(measured.silent)
        kept = tuple(base for name, base in before.items() if name in there)
        if len(kept) == len(before) and not (new and len(before) < MAX_GATEWAYS):
            return self.status
        room = MAX_GATEWAYS - len(kept)
        return self._with(gateways=tuple(sorted((*kept, *new[:room]), key=lambda base: base.gateway)))

    def _bases(self, measured: Measured) -> tuple[GatewayCounts, ...]:
        silent = [base for base in self.status.gateways if base.gateway in measured.silent]
        return bases_of(measured.gateways, silent)

    def _with(self, **fields: object) -> ReleaseStatus:
        return self.status.model_copy(update={"command": self.said, **fields})

    def _next_look(self, status: ReleaseStatus) -> timedelta:
        """About ten looks in each interval, the last of them at its end."""
        interval = parse_duration(self.release.interval)
        pause = min(max(interval / _LOOKS, _OFTENEST), _SELDOMEST)
        left = _due(self.release, status) - self.now
        if left <= timedelta(0):
            return pause
        return max(min(pause, left), timedelta(milliseconds=50))


def _due(release: Release, status: ReleaseStatus) -> datetime:
    return status.checked + parse_duration(release.interval)


def _why_not_passing(checks: Sequence[CheckStatus]) -> tuple[str, str] | None:
    first = next((check for check in checks if check.verdict is not CheckVerdict.PASSING), None)
    if first is None:
        return None
    message = f"{first.check}: {first.message}"
    if first.verdict is CheckVerdict.UNDECIDED:
        return Reason.UNDECIDED, message
    if first.check.startswith("prometheus: "):
        return Reason.WAITING_FOR_MEASUREMENTS, message
    return Reason.WAITING_FOR_REQUESTS, message


def _same_but_for_age(one: ReleaseStatus, other: ReleaseStatus) -> bool:
    """Whether they say the same; how long the gateways run is no news."""
    ageless = [
        status.model_copy(
            update={"gateways": tuple(base.model_copy(update={"uptime": 0}) for base in status.gateways)}
        )
        for status in (one, other)
    ]
    return ageless[0] == ageless[1]


def _told(release: Release, message: str) -> str:
    return f"release of {release.target} on route {release.route}: {message}"
