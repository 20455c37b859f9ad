"""Why a version change does not go on: what an agent reported, what killed its server, or that nothing moves any more.

Nothing is remembered here: the status carries the failure, how often it happened in a row, and the last progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.planning.pods import PodView
from tidegate_dataplane.contract import (
    LOAD_TIMEOUT_S,
    AgentReport,
    DesiredState,
    FailureReason,
    Phase,
    VersionFailure,
)

RETRY_AFTER: Final = timedelta(seconds=30)
"""How long a failure that may pass by itself is left alone before the version is tried again; doubles each time."""
LONGEST_RETRY: Final = timedelta(minutes=15)
DEADLINE: Final = timedelta(seconds=LOAD_TIMEOUT_S, minutes=1)
"""How long no replica may get any further: an agent gives a load up by itself a minute earlier."""

_MAY_PASS: Final = frozenset(
    {
        FailureReason.ARTEFACT_NOT_FOUND,
        FailureReason.FETCH_FAILED,
        FailureReason.CHECKSUM_MISMATCH,
        FailureReason.LOAD_TIMED_OUT,
    }
)
_MOST_DOUBLINGS: Final = 16


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod, and what its agent says; no report when the agent did not answer."""

    pod: PodView
    report: AgentReport | None
    outgrown: bool = False
    """Its memory limit is not the spec's any more: that a version does not fit into it says nothing."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Why the target version does not serve, and when that was seen; the status remembers it."""

    failure: VersionFailure
    time: datetime
    attempts: int = 1
    """How often in a row the version has failed so."""

    @property
    def retry_at(self) -> datetime | None:
        """When the version is tried once more; None when only a new spec helps."""
        if not may_pass(self.failure.reason):
            return None
        pause = RETRY_AFTER * (1 << min(max(self.attempts - 1, 0), _MOST_DOUBLINGS))
        return self.time + min(pause, LONGEST_RETRY)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a change to `version` is, and since when it is no further; the status remembers it."""

    version: int
    there: int
    """Replicas that serve the version."""
    fetching: int
    """Replicas that fetch it: an agent notices by itself when a download stands still."""
    since: datetime


def may_pass(reason: FailureReason) -> bool:
    """Whether a failure of this kind can end without anybody changing the spec."""
    return reason in _MAY_PASS


def works_on(replica: Replica, target: DesiredState) -> bool:
    """Whether the replica's agent has this generation's order for the target."""
    report = replica.report
    return report is not None and report.target == target.version and report.generation == target.generation


def reported(replica: Replica, target: DesiredState) -> VersionFailure | None:
    """What the replica's agent says went wrong with the target, in the words that fit best."""
    report = replica.report
    if report is None or report.failure is None or not works_on(replica, target):
        return None
    failure = report.failure
    if failure.version != target.version:
        return None
    if failure.reason is FailureReason.SERVER_ENDED and replica.pod.killed_for_memory is not None:
        failure = _out_of_memory(replica.pod, target.version)
    too_large = failure.reason is FailureReason.OUT_OF_MEMORY
    return None if too_large and replica.outgrown else failure


def standing_failure(
    target: DesiredState,
    replicas: Sequence[Replica],
    known: KnownFailure | None,
    progress: Progress | None,
    now: datetime,
) -> KnownFailure | None:
    """The failure that holds the target back, unless it is of a kind that may have passed by now."""
    if known is not None and known.failure.version != target.version:
        known = None
    if known is not None and (known.retry_at is None or now < known.retry_at):
        return known
    fresh = next((found for replica in replicas if (found := _found(replica, target, progress))), None)
    return _again(known, fresh, now) if fresh is not None else None


def overdue(
    target: DesiredState,
    waited_for: Sequence[Replica],
    known: KnownFailure | None,
    progress: Progress,
    now: datetime,
) -> KnownFailure | None:
    """The failure of a change that has stood still for longer than any agent lets a load take."""
    if not waited_for or progress.fetching or now < progress.since + DEADLINE:
        return None
    minutes = round((now - progress.since) / timedelta(minutes=1))
    first = next((replica for replica in waited_for if replica.report is None), waited_for[0])
    name, rest = first.pod.key.name, len(waited_for) - 1
    what = (
        f"the agent of pod {name} has not answered for {minutes} minutes; if its node is lost, delete the pod"
        if first.report is None
        else f"pod {name} has not finished loading it in {minutes} minutes; see the log of its container triton"
    )
    others = f" (and {rest} more)" if rest else ""
    failure = VersionFailure(
        version=target.version, reason=FailureReason.LOAD_TIMED_OUT, message=f"{what}{others}"
    )
    same = known if known is not None and known.failure.version == target.version else None
    return _again(same, failure, now)


def moved(
    target: DesiredState, replicas: Sequence[Replica], there: int, before: Progress | None, now: datetime
) -> Progress:
    """The progress as it is now; its time is kept for as long as nothing gets any further."""
    fetching = sum(
        works_on(replica, target) and replica.report is not None and replica.report.phase is Phase.FETCHING
        for replica in replicas
    )
    if before is not None and (before.version, before.there, before.fetching) == (
        target.version,
        there,
        fetching,
    ):
        return before
    return Progress(target.version, there, fetching, now)


def _again(known: KnownFailure | None, failure: VersionFailure, now: datetime) -> KnownFailure:
    return KnownFailure(failure, now, known.attempts + 1 if known is not None else 1)


def _found(replica: Replica, target: DesiredState, progress: Progress | None) -> VersionFailure | None:
    """What went wrong on the replica; a kill for memory is seen before a second try ends what serves once more."""
    killed = replica.pod.killed_for_memory
    if killed is None or progress is None or progress.version != target.version:
        return reported(replica, target)
    meanwhile = killed >= progress.since.replace(microsecond=0)  # Kubernetes gives whole seconds
    if meanwhile and works_on(replica, target) and not replica.outgrown:
        return _out_of_memory(replica.pod, target.version)
    return reported(replica, target)


def _out_of_memory(pod: PodView, version: int) -> VersionFailure:
    limit = f"limit of {pod.memory_limit}" if pod.memory_limit else "limit"
    return VersionFailure(
        version=version,
        reason=FailureReason.OUT_OF_MEMORY,
        message=f"Triton of pod {pod.key.name} was killed at its memory {limit} while it loaded the version; raise "
        "spec.resources.memory, or keep fewer versions with spec.rollout.keepVersions",
    )
