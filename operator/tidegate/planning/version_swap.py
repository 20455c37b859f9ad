"""Changing the version of running pods: a first one proves it, a few at a time follow, a failure sends all back.

```
behind ──order──► working ──serves──► at target      all at target: the ConfigMap follows (committed)
                     └─────fails────► every pod back to the committed version, until the spec changes
```

The ConfigMap names the last version that was proven, so a pod that starts in the middle starts well.
Nothing is remembered between two calls except what the object's own status says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from tidegate.planning.plan import Order
from tidegate.planning.pods import PodView
from tidegate_dataplane.contract import AgentReport, DesiredState, FailureReason, Phase, VersionFailure

RETRY_AFTER: Final = timedelta(seconds=30)
"""How long a failure that may pass by itself is left alone before the version is tried again."""

_MAY_PASS: Final = frozenset(
    {FailureReason.ARTEFACT_NOT_FOUND, FailureReason.FETCH_FAILED, FailureReason.CHECKSUM_MISMATCH}
)
_AT_ONCE: Final = 4
"""A quarter of the replicas changes at once: loading costs a replica CPU and memory while it serves."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod, and what its agent says; no report when the agent did not answer."""

    pod: PodView
    report: AgentReport | None


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Why the target version does not serve, and when that was seen; the status remembers it."""

    failure: VersionFailure
    time: datetime


@dataclass(frozen=True, slots=True)
class Swap:
    """Where a version change stands and what moves it on."""

    committed: DesiredState
    """What starting pods are to begin with."""
    orders: tuple[Order, ...]
    done: bool
    """Every replica serves the target, in the data plane's own words."""
    failure: KnownFailure | None = None
    retry_after: timedelta | None = None
    retrying: bool = False
    """The version of `failure` is being tried once more; it is shown until it works."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier reconciles left behind, read from the ConfigMap and the status."""

    committed: DesiredState | None = None
    """The order in the ConfigMap of this source; None before there is one."""
    failure: KnownFailure | None = None
    """The failure of this generation's target, if it has failed already."""


def plan_swap(target: DesiredState, memory: Memory, replicas: Sequence[Replica], now: datetime) -> Swap:
    """The next step towards `target` on `replicas`, of which all have the target's source."""
    committed = memory.committed
    if committed is None or (memory.failure is None and _is_of_no_use(committed, replicas)):
        committed = target
    if same_order(committed, target):
        return _settle(target, replicas, memory, now)
    failure = _failure(target, replicas, memory, now)
    if failure is None:
        step = _advance(target, committed, replicas)
        known = memory.failure
        again = known is not None and known.failure.version == target.version and not step.done
        return replace(step, failure=known, retrying=True) if again else step
    wait = failure.time + RETRY_AFTER - now if may_pass(failure.failure.reason) else None
    return Swap(
        committed, _orders(committed, target, replicas), done=False, failure=failure, retry_after=wait
    )


def same_order(one: DesiredState, other: DesiredState) -> bool:
    """Whether two orders ask for the same, whoever gave them and for whichever generation."""
    ignored: dict[str, int] = {"epoch": 0, "generation": 0}
    return one.model_copy(update=ignored) == other.model_copy(update=ignored)


def may_pass(reason: FailureReason) -> bool:
    """Whether a failure of this kind can end without anybody changing the spec."""
    return reason in _MAY_PASS


def serves(replica: Replica, target: DesiredState) -> bool:
    """Whether the replica serves the target and knows this generation of it."""
    report = replica.report
    return (
        report is not None
        and report.serving == target.version
        and report.generation == target.generation
        and report.phase is Phase.READY
    )


def _is_of_no_use(committed: DesiredState, replicas: Sequence[Replica]) -> bool:
    """Whether there is nothing to go back to: the committed version cannot be loaded, and serves nowhere.

    That it does not serve is not enough: every pod of a good version may just have been replaced.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    failures = [report.failure for report in reports if report.failure is not None]
    return all(report.serving != committed.version for report in reports) and any(
        failure.version == committed.version and not may_pass(failure.reason) for failure in failures
    )


def _settle(target: DesiredState, replicas: Sequence[Replica], memory: Memory, now: datetime) -> Swap:
    """The first rollout of a version, and the steady state after a swap; agents retry by themselves."""
    done = bool(replicas) and all(serves(replica, target) for replica in replicas)
    found = next((failure for replica in replicas if (failure := _failed(replica, target))), None)
    known = memory.failure
    if found is not None and (known is None or known.failure != found):
        known = KnownFailure(found, now)
    return Swap(target, _orders(target, target, replicas), done=done, failure=known if found else None)


def _advance(target: DesiredState, committed: DesiredState, replicas: Sequence[Replica]) -> Swap:
    there = [replica for replica in replicas if serves(replica, target)]
    if replicas and len(there) == len(replicas):
        return Swap(target, (), done=True)
    working = [replica for replica in replicas if replica not in there and _works_on(replica, target)]
    behind = [replica for replica in replicas if replica not in there and replica not in working]
    width = max(1, math.ceil(len(replicas) / _AT_ONCE)) if there else 1
    chosen = [replica for replica in behind if replica.report is not None][: max(0, width - len(working))]
    return Swap(committed, tuple(Order(replica.pod, target) for replica in chosen), done=False)


def _failure(
    target: DesiredState, replicas: Sequence[Replica], memory: Memory, now: datetime
) -> KnownFailure | None:
    """The failure that holds the target back, unless it is of a kind that may have passed by now."""
    fresh = next((found for replica in replicas if (found := _failed(replica, target))), None)
    if fresh is not None:
        return KnownFailure(fresh, now)
    known = memory.failure
    if known is None or known.failure.version != target.version:
        return None
    passed = may_pass(known.failure.reason) and now >= known.time + RETRY_AFTER
    return None if passed else known


def _failed(replica: Replica, target: DesiredState) -> VersionFailure | None:
    report = replica.report
    if report is None or report.failure is None or report.generation != target.generation:
        return None
    return (
        report.failure
        if report.failure.version == target.version and report.target == target.version
        else None
    )


def _works_on(replica: Replica, target: DesiredState) -> bool:
    report = replica.report
    return report is not None and report.target == target.version and report.generation == target.generation


def _orders(wanted: DesiredState, target: DesiredState, replicas: Sequence[Replica]) -> tuple[Order, ...]:
    """Orders for the replicas that work on something else, or on an older generation."""
    order = wanted.model_copy(update={"epoch": target.epoch, "generation": target.generation})
    return tuple(
        Order(replica.pod, order)
        for replica in replicas
        if replica.report is not None and not _works_on(replica, order)
    )
