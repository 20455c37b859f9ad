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
    ReleaseSpec,
    ReleaseStatus,
)
from tidegate.api.release_commands import ReleaseCommand, ReleasePhase
from tidegate.planning.access.release_checks import Evidence, judge_checks
from tidegate.planning.access.release_sample import (
    GatewayReading,
    ReleaseSample,
    RequestTally,
    make_bases,
    sum_counts_since,
)
from tidegate.planning.plan import Event, EventType
from tidegate.routing.release import release_key, release_status

_PASSES_PER_INTERVAL: Final = 10
_MIN_REQUEUE: Final = timedelta(seconds=1)
_MAX_REQUEUE: Final = timedelta(seconds=10)
_NO_RESULTS: Final[Mapping[str, float | None]] = MappingProxyType({})
_UNDER_WAY: Final = frozenset({ReleasePhase.PROGRESSING, ReleasePhase.PAUSED})
_FULL_WEIGHT: Final = 100


@dataclass(frozen=True, slots=True)
class ReleaseMeasurements:
    """Measurements of the gateways, and results of Prometheus by query; a query without a number has None.

    `ready_pods` counts those of the target; without one no step passes.
    """

    readings: Sequence[GatewayReading] = ()
    silent_gateways: Sequence[str] = ()
    query_results: Mapping[str, float | None] = field(default_factory=lambda: _NO_RESULTS)
    ready_pods: int = 0


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """Next state of a release; its status is None if the spec asks for no release."""

    status: ReleaseStatus | None
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None


NO_RELEASE: Final = ReleasePlan(None)


def is_under_way(access: ModelAccess) -> bool:
    """Return whether the release has begun and not ended."""
    status = release_status(access)
    return status is not None and status.phase in _UNDER_WAY


def needs_measurements(access: ModelAccess) -> bool:
    """Return whether the release needs measurements now: it is in progress, and no command comes first."""
    status = release_status(access)
    return status is not None and is_under_way(access) and status.command == _get_command(access)


def list_due_queries(access: ModelAccess, now: datetime) -> tuple[str, ...]:
    """Return the queries to send to Prometheus now: those of all checks, at the end of an interval."""
    release, status = access.spec.release, release_status(access)
    if (
        release is None
        or status is None
        or not is_under_way(access)
        or now < _find_interval_end(release, status)
    ):
        return ()
    return tuple(check.prometheus for check in release.checks if check.prometheus is not None)


def plan_release(access: ModelAccess, measurements: ReleaseMeasurements, now: datetime) -> ReleasePlan:
    """Return the next status of the release that the spec asks for."""
    release = access.spec.release
    if release is None or access.spec.released_route is None:
        return NO_RELEASE
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    status = release_status(access)
    command = _get_command(access)
    if status is None:
        return _begin_release(access, release, command, now)
    status = status.model_copy(update={"key": release_key(access)})
    release_pass = _ReleasePass(release, status, command, now)
    if command != status.command:
        # Obey the command before measuring; act on each value once.
        return release_pass.obey_command() or ReleasePlan(
            release_pass.record_command(), requeue_after=_MIN_REQUEUE if is_under_way(access) else None
        )
    if status.phase not in _UNDER_WAY:
        return ReleasePlan(status)
    return release_pass.judge_measurements(measurements)


def _get_command(access: ModelAccess) -> str:
    return access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()[:256]


def _begin_release(access: ModelAccess, release: ReleaseSpec, command: str, now: datetime) -> ReleasePlan:
    """Return the first step.

    A command that is there already was meant for an earlier release, except pause, which is safe.
    """
    paused = command == ReleaseCommand.PAUSE
    status = ReleaseStatus(
        key=release_key(access),
        phase=ReleasePhase.PAUSED if paused else ReleasePhase.PROGRESSING,
        step=1,
        weight=release.steps[0],
        since=now,
        reason=Reason.PAUSED if paused else Reason.STEPPING,
        message=f"step 1 of {len(release.steps)}: {release.target} takes {release.steps[0]} %",
        command=command,
        window=1,
        window_began=now,
        checked=now,
    )
    event = Event(EventType.NORMAL, "ReleaseStarted", _format_event(release, status.message))
    return ReleasePlan(status, (event,), _MIN_REQUEUE)


@dataclass(frozen=True, slots=True)
class _ReleasePass:
    """Pass over a release that has begun."""

    release: ReleaseSpec
    status: ReleaseStatus
    command: str
    now: datetime

    def obey_command(self) -> ReleasePlan | None:
        """Return what a changed annotation asks for; None if it changes nothing."""
        in_progress = self.status.phase in _UNDER_WAY
        match self.command:
            case ReleaseCommand.PROMOTE if in_progress:
                return self._end_release(ReleasePhase.PROMOTED, Reason.PROMOTED, "promoted by annotation")
            case ReleaseCommand.ABORT if self.status.phase is not ReleasePhase.ROLLED_BACK:
                return self._end_release(ReleasePhase.ROLLED_BACK, Reason.ABORTED, "aborted by annotation")
            case ReleaseCommand.PAUSE if self.status.phase is ReleasePhase.PROGRESSING:
                return self._change_phase(ReleasePhase.PAUSED, Reason.PAUSED, "ReleasePaused")
            case ReleaseCommand.RESTART:
                return self._start_step(1, "ReleaseRestarted")
            case ReleaseCommand.RESUME if self.status.phase is ReleasePhase.PAUSED:
                return self._change_phase(ReleasePhase.PROGRESSING, Reason.STEPPING, "ReleaseResumed")
            case "" if self._paused_by_annotation():
                return self._change_phase(ReleasePhase.PROGRESSING, Reason.STEPPING, "ReleaseResumed")
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

    def record_command(self) -> ReleaseStatus:
        """Return the present status with the annotation recorded."""
        return self._update_status(command=self.command)

    def judge_measurements(self, measurements: ReleaseMeasurements) -> ReleasePlan:
        """Judge the measurements, and continue, hold or end the release."""
        status = self.status
        fresh = sum_counts_since(measurements.readings, status.gateways)
        sample = ReleaseSample(RequestTally.parse(status.target), RequestTally.parse(status.stable)) + fresh
        is_due = self.now >= _find_interval_end(self.release, status)
        evidence = Evidence(sample, status.window, measurements.query_results, queried=is_due)
        checks = judge_checks(self.release.checks, evidence, status.checks)
        failed = [check for check in checks if check.verdict is CheckVerdict.FAILED]
        if failed and status.reason != Reason.CHECK_FAILED:
            return self._fail_step(failed, checks)
        if not is_due:
            return ReleasePlan(self._join_gateways(measurements), requeue_after=self._compute_requeue(status))
        hold_reason = self._find_hold_reason(measurements, checks)
        if hold_reason is None and status.phase is ReleasePhase.PROGRESSING:
            return self._pass_step(checks, measurements)
        if hold_reason is None or status.phase is ReleasePhase.PAUSED:
            hold_reason = status.reason, status.message
        return self._hold_step(hold_reason, checks, sample, measurements)

    def _find_hold_reason(
        self, measurements: ReleaseMeasurements, checks: Sequence[CheckStatus]
    ) -> tuple[str, str] | None:
        """Return why the step does not continue, as reason and message; None if all checks pass."""
        if not measurements.ready_pods:
            return Reason.TARGET_NOT_READY, f"Inference {self.release.target} has no ready endpoint"
        if measurements.silent_gateways:
            message = f"gateway {min(measurements.silent_gateways)} does not return its counters"
            return Reason.WAITING_FOR_MEASUREMENTS, message
        if not measurements.readings:
            return Reason.WAITING_FOR_MEASUREMENTS, "no gateway is ready, so nothing is measured"
        return _find_unmet_check(checks)

    def _fail_step(self, failed: Sequence[CheckStatus], checks: tuple[CheckStatus, ...]) -> ReleasePlan:
        message = "; ".join(f"{check.check}: {check.message}" for check in failed)
        if self.release.on_failure is OnFailure.ROLLBACK:
            return self._end_release(ReleasePhase.ROLLED_BACK, Reason.CHECK_FAILED, message, checks)
        status = self._update_status(
            phase=ReleasePhase.PAUSED, reason=Reason.CHECK_FAILED, message=message, checks=checks
        )
        event = Event(EventType.WARNING, "ReleaseCheckFailed", _format_event(self.release, message))
        return ReleasePlan(status, (event,), self._compute_requeue(status))

    def _pass_step(self, checks: tuple[CheckStatus, ...], measurements: ReleaseMeasurements) -> ReleasePlan:
        """Start the next step, or promote after the last one: all checks passed at the end of an interval."""
        if self.status.step >= len(self.release.steps):
            return self._end_release(ReleasePhase.PROMOTED, Reason.PROMOTED, "every step passed", checks)
        return self._start_step(self.status.step + 1, "ReleaseStep", checks, measurements)

    def _hold_step(
        self,
        hold_reason: tuple[str, str],
        checks: tuple[CheckStatus, ...],
        sample: ReleaseSample,
        measurements: ReleaseMeasurements,
    ) -> ReleasePlan:
        """Keep the weight for another interval; begin a new sample if this one is large enough, else save it."""
        reason, message = hold_reason
        status = self._update_status(reason=reason, message=message)
        if self._has_enough_requests(checks):
            status = self._begin_window(status, checks, measurements)
        else:
            saved: dict[str, object] = {
                "checks": checks,
                "target": sample.target.render(),
                "stable": sample.stable.render(),
                "gateways": self._make_bases(measurements),
            }
            status = status.model_copy(update=saved)
            if _equal_except_uptime(status, self.status):
                status = self.status
            else:
                status = status.model_copy(update={"checked": self.now})
        return ReleasePlan(status, requeue_after=self._compute_requeue(status))

    def _has_enough_requests(self, checks: Sequence[CheckStatus]) -> bool:
        """Return whether every check that counts requests passes.

        Then a new sample begins, which is judged by itself.
        """
        counting = {check.title for check in self.release.checks if check.metric is not None}
        return bool(counting) and all(
            check.verdict is CheckVerdict.PASSING for check in checks if check.check in counting
        )

    def _start_step(
        self,
        number: int,
        event: str,
        checks: tuple[CheckStatus, ...] = (),
        measurements: ReleaseMeasurements | None = None,
    ) -> ReleasePlan:
        weight = self.release.steps[number - 1]
        message = f"step {number} of {len(self.release.steps)}: {self.release.target} takes {weight} %"
        status = self._update_status(
            phase=ReleasePhase.PROGRESSING,
            step=number,
            weight=weight,
            since=self.now,
            reason=Reason.STEPPING,
            message=message,
        )
        status = self._begin_window(status, checks, measurements or ReleaseMeasurements())
        step_event = Event(EventType.NORMAL, event, _format_event(self.release, message))
        return ReleasePlan(status, (step_event,), self._compute_requeue(status))

    def _change_phase(self, phase: ReleasePhase, reason: Reason, event: str) -> ReleasePlan:
        """Pause or resume the release.

        Resuming begins a new sample: what a person saw during the pause, and found harmless, does not count.
        """
        message = (
            f"step {self.status.step} of {len(self.release.steps)}: "
            f"{self.release.target} takes {self.status.weight} %"
        )
        status = self._update_status(phase=phase, reason=reason, message=message)
        if phase is ReleasePhase.PROGRESSING:
            status = self._begin_window(status, self.status.checks, ReleaseMeasurements())
        phase_event = Event(EventType.NORMAL, event, _format_event(self.release, message))
        return ReleasePlan(status, (phase_event,), _MIN_REQUEUE)

    def _end_release(
        self,
        phase: ReleasePhase,
        reason: Reason,
        message: str,
        checks: tuple[CheckStatus, ...] | None = None,
    ) -> ReleasePlan:
        promoted = phase is ReleasePhase.PROMOTED
        status = self._update_status(
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
            _format_event(self.release, f"{position}: {message}"),
        )
        return ReleasePlan(status, (event,))

    def _begin_window(
        self, status: ReleaseStatus, checks: tuple[CheckStatus, ...], measurements: ReleaseMeasurements
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
                "gateways": self._make_bases(measurements),
            }
        )

    def _join_gateways(self, measurements: ReleaseMeasurements) -> ReleaseStatus:
        """Return the present status, updated only for gateways that came or went."""
        bases = {base.gateway: base for base in self.status.gateways}
        new = make_bases(reading for reading in measurements.readings if reading.gateway not in bases)
        present = {reading.gateway for reading in measurements.readings} | set(measurements.silent_gateways)
        retained = tuple(base for name, base in bases.items() if name in present)
        if len(retained) == len(bases) and not (new and len(bases) < MAX_GATEWAYS):
            return self.status
        room = MAX_GATEWAYS - len(retained)
        return self._update_status(
            gateways=tuple(sorted((*retained, *new[:room]), key=lambda base: base.gateway))
        )

    def _make_bases(self, measurements: ReleaseMeasurements) -> tuple[GatewayCounts, ...]:
        silent = [base for base in self.status.gateways if base.gateway in measurements.silent_gateways]
        return make_bases(measurements.readings, silent)

    def _update_status(self, **fields: object) -> ReleaseStatus:
        return self.status.model_copy(update={"command": self.command, **fields})

    def _compute_requeue(self, status: ReleaseStatus) -> timedelta:
        """Return the delay to the next pass: about ten in each interval, the last of them at its end."""
        interval = parse_duration(self.release.interval)
        delay = min(max(interval / _PASSES_PER_INTERVAL, _MIN_REQUEUE), _MAX_REQUEUE)
        remaining = _find_interval_end(self.release, status) - self.now
        if remaining <= timedelta(0):
            return delay
        return max(min(delay, remaining), timedelta(milliseconds=50))


def _find_interval_end(release: ReleaseSpec, status: ReleaseStatus) -> datetime:
    return status.checked + parse_duration(release.interval)


def _find_unmet_check(checks: Sequence[CheckStatus]) -> tuple[str, str] | None:
    first = next((check for check in checks if check.verdict is not CheckVerdict.PASSING), None)
    if first is None:
        return None
    message = f"{first.check}: {first.message}"
    if first.verdict is CheckVerdict.UNDECIDED:
        return Reason.UNDECIDED, message
    if first.check.startswith("prometheus: "):
        return Reason.WAITING_FOR_MEASUREMENTS, message
    return Reason.WAITING_FOR_REQUESTS, message


def _equal_except_uptime(first: ReleaseStatus, second: ReleaseStatus) -> bool:
    """Return whether two statuses are equal but for the uptime of the gateways."""
    ageless = [
        status.model_copy(
            update={"gateways": tuple(base.model_copy(update={"uptime": 0}) for base in status.gateways)}
        )
        for status in (first, second)
    ]
    return ageless[0] == ageless[1]


def _format_event(release: ReleaseSpec, message: str) -> str:
    return f"release of {release.target} on route {release.route}: {message}"
