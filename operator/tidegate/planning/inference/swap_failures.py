"""Find out why a version change does not proceed: a reported failure, a kill for memory, or no progress.

The functions keep no state: the status carries the failure, its attempts in a row, and the last progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.planning.pods import PodView
from tidegate_dataplane.contract import (
    LOAD_TIMEOUT_S,
    AgentPhase,
    AgentReport,
    DesiredState,
    FailureReason,
    VersionFailure,
)

RETRY_DELAY: Final = timedelta(seconds=30)
"""Delay before a version is retried after a retryable failure; doubles each time."""
MAX_RETRY_DELAY: Final = timedelta(minutes=15)
PROGRESS_DEADLINE: Final = timedelta(seconds=LOAD_TIMEOUT_S, minutes=1)
"""Longest time without progress on any replica: an agent aborts a load by itself a minute earlier."""

_GONE_MARGIN: Final = timedelta(minutes=1)
"""Clocks of nodes differ, and a pod that has just ended may be back in a moment."""

_RETRYABLE_REASONS: Final = frozenset(
    {
        FailureReason.ARTEFACT_NOT_FOUND,
        FailureReason.FETCH_FAILED,
        FailureReason.CHECKSUM_MISMATCH,
        FailureReason.LOAD_TIMED_OUT,
    }
)
_MAX_DOUBLINGS: Final = 16


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """Pod with the report of its agent; None if the agent did not answer."""

    pod: PodView
    report: AgentReport | None
    memory_limit_outdated: bool = False
    """Its memory limit is not the spec's any more, so that a version too large for it proves nothing."""


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """Failure of the target version, recorded in the status with its time and attempts."""

    failure: VersionFailure
    time: datetime
    attempts: int = 1
    """How often in a row the version has failed."""

    @property
    def retry_at(self) -> datetime | None:
        """Return when the version is retried; None if only a changed spec helps."""
        if not is_retryable(self.failure.reason):
            return None
        delay = RETRY_DELAY * (1 << min(max(self.attempts - 1, 0), _MAX_DOUBLINGS))
        return self.time + min(delay, MAX_RETRY_DELAY)


@dataclass(frozen=True, slots=True)
class VersionProgress:
    """Progress of a change to `version`, and since when it has not moved; recorded in the status."""

    version: int
    serving: int
    """Replicas that serve the version."""
    fetching: int
    """Replicas that fetch it. These have no deadline here: an agent detects by itself that a download stalls."""
    since: datetime
    started: datetime | None = None
    """When the change began; None if the version was tried before, or in the status of an earlier release."""


def is_retryable(reason: FailureReason) -> bool:
    """Return whether a failure with this reason can end without a change of the spec."""
    return reason in _RETRYABLE_REASONS


def has_order_for(replica: ObservedReplica, target: DesiredState) -> bool:
    """Return whether the replica's agent has this generation's order for the target."""
    report = replica.report
    return report is not None and report.target == target.version and report.generation == target.generation


def get_reported_failure(replica: ObservedReplica, target: DesiredState) -> VersionFailure | None:
    """Return the failure of the target that the replica's agent reports, or the kill for memory behind it."""
    report = replica.report
    if report is None or report.failure is None or not has_order_for(replica, target):
        return None
    failure = report.failure
    if failure.version != target.version:
        return None
    if failure.reason is FailureReason.SERVER_ENDED and replica.pod.oom_killed_at is not None:
        failure = _make_memory_failure(replica.pod, target.version)
    too_large = failure.reason is FailureReason.OUT_OF_MEMORY
    return None if too_large and replica.memory_limit_outdated else failure


def find_blocking_failure(
    target: DesiredState,
    replicas: Sequence[ObservedReplica],
    recorded: RecordedFailure | None,
    progress: VersionProgress | None,
    now: datetime,
) -> RecordedFailure | None:
    """Return the failure that blocks the target; None if there is none, or if its retry is due."""
    if recorded is not None and recorded.failure.version != target.version:
        recorded = None
    if recorded is not None and (recorded.retry_at is None or now < recorded.retry_at):
        return recorded
    fresh = next(
        (failure for replica in replicas if (failure := _find_failure(replica, target, progress))), None
    )
    return _record_failure(recorded, fresh, now) if fresh is not None else None


def find_overdue_failure(
    target: DesiredState,
    pending: Sequence[ObservedReplica],
    recorded: RecordedFailure | None,
    progress: VersionProgress,
    now: datetime,
) -> RecordedFailure | None:
    """Return a failure if the change has made no progress for longer than an agent lets a load take."""
    if not pending or progress.fetching or now < progress.since + PROGRESS_DEADLINE:
        return None
    minutes = round((now - progress.since) / timedelta(minutes=1))
    first = next((replica for replica in pending if replica.report is None), pending[0])
    name, remaining = first.pod.key.name, len(pending) - 1
    cause = (
        f"the agent of pod {name} has not answered for {minutes} minutes; if its node is lost, delete the pod"
        if first.report is None
        else f"pod {name} has not finished loading it in {minutes} minutes; see the log of its container triton"
    )
    suffix = f" (and {remaining} more)" if remaining else ""
    failure = VersionFailure(
        version=target.version, reason=FailureReason.LOAD_TIMED_OUT, message=f"{cause}{suffix}"
    )
    previous = recorded if recorded is not None and recorded.failure.version == target.version else None
    return _record_failure(previous, failure, now)


def update_progress(
    target: DesiredState,
    replicas: Sequence[ObservedReplica],
    serving: int,
    previous: VersionProgress | None,
    now: datetime,
    *,
    tried_before: bool,
) -> VersionProgress:
    """Return the present progress; its time stays for as long as nothing moves."""
    fetching = sum(
        has_order_for(replica, target)
        and replica.report is not None
        and replica.report.phase is AgentPhase.FETCHING
        for replica in replicas
    )
    if previous is not None and (previous.version, previous.serving, previous.fetching) == (
        target.version,
        serving,
        fetching,
    ):
        return previous
    if previous is not None and previous.version == target.version:
        started = previous.started
    else:
        started = None if tried_before else now
    return VersionProgress(target.version, serving, fetching, now, started)


def was_gone_before(replica: ObservedReplica, progress: VersionProgress) -> bool:
    """Return whether the replica took no traffic for a minute before the change began, and its agent does not answer.

    The change cannot be the reason, unless the version was tried before.
    """
    unready_since = replica.pod.unready_since
    if replica.report is not None or unready_since is None or progress.started is None:
        return False
    return unready_since + _GONE_MARGIN <= progress.started


def _record_failure(
    previous: RecordedFailure | None, failure: VersionFailure, now: datetime
) -> RecordedFailure:
    return RecordedFailure(failure, now, previous.attempts + 1 if previous is not None else 1)


def _find_failure(
    replica: ObservedReplica, target: DesiredState, progress: VersionProgress | None
) -> VersionFailure | None:
    """Return the replica's failure; a kill for memory counts before a retry ends the serving version again."""
    killed = replica.pod.oom_killed_at
    if killed is None or progress is None or progress.version != target.version:
        return get_reported_failure(replica, target)
    during_change = killed >= progress.since.replace(microsecond=0)  # Kubernetes reports whole seconds
    if during_change and has_order_for(replica, target) and not replica.memory_limit_outdated:
        return _make_memory_failure(replica.pod, target.version)
    return get_reported_failure(replica, target)


def _make_memory_failure(pod: PodView, version: int) -> VersionFailure:
    limit = f"limit of {pod.memory_limit}" if pod.memory_limit else "limit"
    return VersionFailure(
        version=version,
        reason=FailureReason.OUT_OF_MEMORY,
        message=f"Triton of pod {pod.key.name} was killed at its memory {limit} while it loaded the version; raise "
        "spec.resources.memory, or keep fewer versions with spec.rollout.keepVersions",
    )
