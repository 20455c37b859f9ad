"""Change the version of running pods: one replica first, then in waves; a failure rolls all of them back.

```
behind ──order──► working ──serves──► at target      all at target: commit it in the ConfigMap
                     └─────fails────► roll every pod back to the committed version, until the spec changes
```

The ConfigMap names the last version that served on every replica, so a pod that starts during a swap works.
All state between two calls is in the ConfigMap and in the object's status.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.planning.plan import Order
from tidegate.planning.swap_failures import (
    KnownFailure,
    Progress,
    Replica,
    may_pass,
    moved,
    overdue,
    reported,
    standing_failure,
    works_on,
)
from tidegate_dataplane.contract import DesiredState, Phase

_WAVES: Final = 4
"""Change a quarter of the replicas at once: loading costs a replica CPU and memory while it serves."""


@dataclass(frozen=True, slots=True)
class Swap:
    """State of a version change, with the orders that continue it."""

    committed: DesiredState
    """The order that starting pods begin with."""
    orders: tuple[Order, ...]
    done: bool
    """Every replica serves the target, by the reports of the agents."""
    failure: KnownFailure | None = None
    retry_after: timedelta | None = None
    retrying: bool = False
    """The version of `failure` is being retried; the failure is shown until the retry succeeds."""
    progress: Progress | None = None
    """How far the change is; None if none is in progress."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Records of earlier reconciles, from the ConfigMap and the status."""

    committed: DesiredState | None = None
    """The order in the ConfigMap of this source; None before it exists."""
    failure: KnownFailure | None = None
    """The failure of this generation's target, if it has failed."""
    progress: Progress | None = None
    """How far the change of this generation was."""
    serving: int | None = None
    """The version that last served."""


def plan_swap(target: DesiredState, memory: Memory, replicas: Sequence[Replica], now: datetime) -> Swap:
    """Return the next step towards `target` on `replicas`, all of which have the target's source."""
    committed = memory.committed or _served(target, memory, replicas)
    if committed is None or (memory.failure is None and _is_of_no_use(committed, replicas)):
        committed = target
    # The sample log and the stream follow the spec even if the version is rolled back.
    committed = committed.model_copy(update={"samples": target.samples, "stream": target.stream})
    if same_order(committed, target):
        return _settle(target, replicas, memory, now)
    failure = standing_failure(target, replicas, memory.failure, memory.progress, now)
    if failure is not None:
        return _back(target, committed, replicas, failure, now)
    return _forth(target, committed, replicas, memory, now)


def same_order(one: DesiredState, other: DesiredState) -> bool:
    """Return whether two orders are equal but for epoch and generation."""
    ignored: dict[str, int] = {"epoch": 0, "generation": 0}
    return one.model_copy(update=ignored) == other.model_copy(update=ignored)


def serves(replica: Replica, target: DesiredState) -> bool:
    """Return whether the replica serves the target and has this generation's order."""
    report = replica.report
    return (
        report is not None
        and report.serving == target.version
        and report.generation == target.generation
        and report.phase is Phase.READY
    )


def _is_of_no_use(committed: DesiredState, replicas: Sequence[Replica]) -> bool:
    """Return whether there is nothing to roll back to: the committed version cannot be loaded and serves nowhere.

    That it serves nowhere is not enough: all pods of a good version may just have been replaced.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    failures = [report.failure for report in reports if report.failure is not None]
    return all(report.serving != committed.version for report in reports) and any(
        failure.version == committed.version and not may_pass(failure.reason) for failure in failures
    )


def _settle(target: DesiredState, replicas: Sequence[Replica], memory: Memory, now: datetime) -> Swap:
    """Return the plan of a version's first rollout and of the steady state; agents retry by themselves."""
    done = bool(replicas) and all(serves(replica, target) for replica in replicas)
    reported_failure = next((failure for replica in replicas if (failure := reported(replica, target))), None)
    recorded = memory.failure
    if reported_failure is not None and (recorded is None or recorded.failure != reported_failure):
        recorded = KnownFailure(reported_failure, now)
    return Swap(
        target, _orders(target, target, replicas), done=done, failure=recorded if reported_failure else None
    )


def _forth(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[Replica],
    memory: Memory,
    now: datetime,
) -> Swap:
    """Return the next wave, or a rollback if the present wave has made no progress for too long."""
    at_target = [replica for replica in replicas if serves(replica, target)]
    if replicas and len(at_target) == len(replicas):
        return Swap(target, (), done=True)
    # A silent agent may be busy with the target, or may be dying: wait for it as for one that works.
    working = [
        replica
        for replica in replicas
        if replica not in at_target and (replica.report is None or works_on(replica, target))
    ]
    progress = moved(target, replicas, len(at_target), memory.progress, now)
    overdue_failure = overdue(target, working, memory.failure, progress, now)
    if overdue_failure is not None:
        return _back(target, committed, replicas, overdue_failure, now)
    behind = [replica for replica in replicas if replica not in at_target and replica not in working]
    width = max(1, math.ceil(len(replicas) / _WAVES)) if at_target else 1
    preloaded = [replica for replica in behind if _keeps(replica, target)]
    wave = [replica for replica in behind if replica not in preloaded][: max(0, width - len(working))]
    orders = tuple(Order(replica.pod, target) for replica in (*preloaded, *wave))
    recorded = memory.failure
    retrying = recorded is not None and recorded.failure.version == target.version
    return Swap(
        committed,
        orders,
        done=False,
        failure=recorded if retrying else None,
        retrying=retrying,
        progress=progress,
    )


def _back(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[Replica],
    failure: KnownFailure,
    now: datetime,
) -> Swap:
    retry_after = failure.retry_at - now if failure.retry_at is not None else None
    return Swap(
        committed, _orders(committed, target, replicas), done=False, failure=failure, retry_after=retry_after
    )


def _keeps(replica: Replica, target: DesiredState) -> bool:
    """Return whether the replica still has the target loaded from before, so that the switch costs no load."""
    report = replica.report
    return report is not None and target.version in report.loaded and report.serving != target.version


def _served(target: DesiredState, memory: Memory, replicas: Sequence[Replica]) -> DesiredState | None:
    """Return the order that the replicas follow if the ConfigMap that named it is deleted or invalid.

    It is the version other than the target that most replicas serve; while an agent is silent, the last one in the status.
    """
    version_counts = Counter(
        replica.report.serving
        for replica in replicas
        if replica.report is not None and replica.report.serving is not None
    )
    version_counts.pop(target.version, None)
    silent = any(replica.report is None for replica in replicas)
    version = version_counts.most_common(1)[0][0] if version_counts else memory.serving if silent else None
    if version is None or version == target.version:
        return None
    return target.model_copy(update={"version": version, "sha256": None})


def _orders(wanted: DesiredState, target: DesiredState, replicas: Sequence[Replica]) -> tuple[Order, ...]:
    """Return orders for the replicas that work on something else, or on an older generation."""
    order = wanted.model_copy(update={"epoch": target.epoch, "generation": target.generation})
    return tuple(
        Order(replica.pod, order)
        for replica in replicas
        if replica.report is not None and not works_on(replica, order)
    )
