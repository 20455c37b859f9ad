"""Plan the release of a ModelAccess: a pure state machine from spec, status and measurements to the next status.

All state is in the status, so each pass could be the first of a new process.
A pass that changes nothing returns the status that it got, and costs no write.
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

_PASSES_PER_INTERVAL: Final = 10
_MIN_REQUEUE: Final = timedelta(seconds=1)
_MAX_REQUEUE: Final = timedelta(seconds=10)
_NO_RESULTS: Final[Mapping[str, float | None]] = MappingProxyType({})
_UNDER_WAY: Final = frozenset({ReleasePhase.PROGRESSING, ReleasePhase.PAUSED})
_FULL_WEIGHT: Final = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the gateways, and results of Prometheus by query; a query without a number has None.

    `ready_pods` counts those of the target; without one no step passes.
    """

    gateways: Sequence[GatewayReading] = ()
    silent: Sequence[str] = ()
    answers: Mapping[str, float | None] = field(default_factory=lambda: _NO_RESULTS)
    pods: int = 0


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """Next state of a release; its status is None if the spec asks for no release."""

    status: ReleaseStatus | None
    events: tuple[Event, ...] = ()
    look_again: timedelta | None = None


NO_RELEASE: Final = ReleasePlan(None)


def under_way(access: ModelAccess) -> bool:
    """Return whether the release has begun and not ended."""
    status = release_status(access)
    return status is not None and status.phase in _UNDER_WAY


def to_measure(access: ModelAccess) -> bool:
    """Return whether the release needs measurements now: it is in progress, and no command comes first."""
    status = release_status(access)
    return status is not None and under_way(access) and status.command == _said(access)


def queries_due(access: ModelAccess, now: datetime) -> tuple[str, ...]:
    """Return the queries to send to Prometheus now: those of all checks, at the end of an interval."""
    release, status = access.spec.release, release_status(access)
    if release is None or status is None or not under_way(access) or now < _due(release, status):
        return ()
    return tuple(check.prometheus for check in release.checks if check.prometheus is not None)


def plan_release(access: ModelAccess, measured: Measured, now: datetime) -> ReleasePlan:
    """Return the next status of the release that the spec asks for."""
    release = access.spec.release
    if release is None or access.spec.released_route is None:
        return NO_RELEASE
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    status = release_status(access)
    command = _said(access)
    if status is None:
        return _begin(access, release, command, now)
    status = status.model_copy(update={"key": release_key(access)})
    release_pass = _Pass(release, status, command, now)
    if command != status.command:
        # Obey the command before measuring; act on each value once.
        return release_pass.obey() or ReleasePlan(
            release_pass.noted(), look_again=_MIN_REQUEUE if under_way(access) else None
        )
    if status.phase not in _UNDER_WAY:
        return ReleasePlan(status)
    return release_pass.look(measured)


def _said(access: ModelAccess) -> str:
    return access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()[:256]


def _begin(access: ModelAccess, release: Release, said: str, now: datetime) -> ReleasePlan:
    """Return the first step.

    A command that is there already was meant for an earlier release, except pause, which is safe.
    """
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
    return ReleasePlan(status, (event,), _MIN_REQUEUE)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Pass over a release that has begun."""

    release: Release
    status: ReleaseStatus
    said: str
    now: datetime

    def obey(self) -> ReleasePlan | None:
        """Return what a changed annotation asks for; None if it changes nothing."""
        in_progress = self.status.phase in _UNDER_WAY
        match self.said:
            case ReleaseCommand.PROMOTE if in_progress:
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
        """Return whether the annotation paused the release.

        Only then does its removal resume the release: after a failed check a person must resume it explicitly.
        """
        status = self.status
        return status.phase is ReleasePhase.PAUSED and (status.command, status.reason) == (
            ReleaseCommand.PAUSE,
            Reason.PAUSED,
        )

    def noted(self) -> ReleaseStatus:
        """Return the present status with the annotation recorded."""
        return self._with(command=self.said)

    def look(self, measured: Measured) -> ReleasePlan:
        """Judge the measurements, and continue, hold or end the release."""
        status = self.status
        fresh = counted_since(measured.gateways, status.gateways)
        sample = Sample(Tally.parse(status.target), Tally.parse(status.stable)) + fresh
        is_due = self.now >= _due(self.release, status)
        evidence = Evidence(sample, status.window, measured.answers, asked=is_due)
        checks = judge(self.release.checks, evidence, status.checks)
        failed = [check for check in checks if check.verdict is CheckVerdict.FAILED]
        if failed and status.reason != Reason.CHECK_FAILED:
            return self._fail(failed, checks)
        if not is_due:
            return ReleasePlan(self._joined(measured), look_again=self._next_look(status))
        hold_reason = self._why_held(measured, checks)
        if hold_reason is None and status.phase is ReleasePhase.PROGRESSING:
            return self._pass(checks, measured)
        if hold_reason is None or status.phase is ReleasePhase.PAUSED:
            hold_reason = status.reason, status.message
        return self._hold(hold_reason, checks, sample, measured)

    def _why_held(self, measured: Measured, checks: Sequence[CheckStatus]) -> tuple[str, str] | None:
        """Return why the step does not continue, as reason and message; None if all checks pass."""
        if not measured.pods:
            return Reason.TARGET_NOT_READY, f"Inference {self.release.target} has no ready endpoint"
        if measured.silent:
            message = f"gateway {min(measured.silent)} does not return its counters"
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
        """Start the next step, or promote after the last one: all checks passed at the end of an interval."""
        if self.status.step >= len(self.release.steps):
            return self._end(ReleasePhase.PROMOTED, Reason.PROMOTED, "every step passed", checks)
        return self._step(self.status.step + 1, "ReleaseStep", checks, measured)

    def _hold(
        self, why: tuple[str, str], checks: tuple[CheckStatus, ...], sample: Sample, measured: Measured
    ) -> ReleasePlan:
        """Keep the weight for another interval; begin a new sample if this one is large enough, else save it."""
        reason, message = why
        status = self._with(reason=reason, message=message)
        if self._enough(checks):
            status = self._another_window(status, checks, measured)
        else:
            saved: dict[str, object] = {
                "checks": checks,
                "target": sample.target.render(),
                "stable": sample.stable.render(),
                "gateways": self._bases(measured),
            }
            status = status.model_copy(update=saved)
            if _same_but_for_age(status, self.status):
                status = self.status
            else:
                status = status.model_copy(update={"checked": self.now})
        return ReleasePlan(status, look_again=self._next_look(status))

    def _enough(self, checks: Sequence[CheckStatus]) -> bool:
        """Return whether every check that counts requests passes.

        Then a new sample begins, which is judged by itself.
        """
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
        step_event = Event(EventType.NORMAL, event, _told(self.release, message))
        return ReleasePlan(status, (step_event,), self._next_look(status))

    def _turn(self, phase: ReleasePhase, reason: Reason, event: str) -> ReleasePlan:
        """Pause or resume the release.

        Resuming begins a new sample: what a person saw during the pause, and found harmless, does not count.
        """
        message = (
            f"step {self.status.step} of {len(self.release.steps)}: "
            f"{self.release.target} takes {self.status.weight} %"
        )
        status = self._with(phase=phase, reason=reason, message=message)
        if phase is ReleasePhase.PROGRESSING:
            status = self._another_window(status, self.status.checks, Measured())
        phase_event = Event(EventType.NORMAL, event, _told(self.release, message))
        return ReleasePlan(status, (phase_event,), _MIN_REQUEUE)

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
            weight=_FULL_WEIGHT if promoted else 0,
            since=self.now,
            reason=reason,
            message=message,
            checks=self.status.checks if checks is None else checks,
            checked=self.now,
            target="",
            stable="",
            gateways=(),
        )
        position = f"at step {self.status.step} of {len(self.release.steps)} ({self.status.weight} %)"
        event = Event(
            EventType.NORMAL if promoted else EventType.WARNING,
            "ReleasePromoted" if promoted else "ReleaseRolledBack",
            _told(self.release, f"{position}: {message}"),
        )
        return ReleasePlan(status, (event,))

    def _another_window(
        self, status: ReleaseStatus, checks: tuple[CheckStatus, ...], measured: Measured
    ) -> ReleaseStatus:
        """Begin the next sample, which is judged by itself: a long good past must not outweigh new failures."""
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
        """Return the present status, updated only for gateways that came or went."""
        bases = {base.gateway: base for base in self.status.gateways}
        new = bases_of(reading for reading in measured.gateways if reading.gateway not in bases)
        present = {reading.gateway for reading in measured.gateways} | set(measured.silent)
        retained = tuple(base for name, base in bases.items() if name in present)
        if len(retained) == len(bases) and not (new and len(bases) < MAX_GATEWAYS):
            return self.status
        room = MAX_GATEWAYS - len(retained)
        return self._with(gateways=tuple(sorted((*retained, *new[:room]), key=lambda base: base.gateway)))

    def _bases(self, measured: Measured) -> tuple[GatewayCounts, ...]:
        silent = [base for base in self.status.gateways if base.gateway in measured.silent]
        return bases_of(measured.gateways, silent)

    def _with(self, **fields: object) -> ReleaseStatus:
        return self.status.model_copy(update={"command": self.said, **fields})

    def _next_look(self, status: ReleaseStatus) -> timedelta:
        """Return the delay to the next pass: about ten in each interval, the last of them at its end."""
        interval = parse_duration(self.release.interval)
        delay = min(max(interval / _PASSES_PER_INTERVAL, _MIN_REQUEUE), _MAX_REQUEUE)
        remaining = _due(self.release, status) - self.now
        if remaining <= timedelta(0):
            return delay
        return max(min(delay, remaining), timedelta(milliseconds=50))


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
    """Return whether two statuses are equal but for the uptime of the gateways."""
    ageless = [
        status.model_copy(
            update={"gateways": tuple(base.model_copy(update={"uptime": 0}) for base in status.gateways)}
        )
        for status in (one, other)
    ]
    return ageless[0] == ageless[1]


def _told(release: Release, message: str) -> str:
    return f"release of {release.target} on route {release.route}: {message}"
