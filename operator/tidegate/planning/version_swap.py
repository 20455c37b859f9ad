"""Changing the version of running pods: a first one proves it, a few at a time follow, a failure sends all back.

```
behind ──order──► working ──serves──► at target      all at target: the ConfigMap follows (committed)
                     └─────fails────► every pod back to the committed version, until the spec changes
```

The ConfigMap names the last version that was proven, so a pod that starts in the middle starts well.
Nothing is remembered between two calls except what the object's own status says.
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

_AT_ONCE: Final = 4
"""A quarter of the replicas changes at once: loading costs a replica CPU and memory while it serves."""


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
    progress: Progress | None = None
    """How far the change is; None while none goes on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier reconciles left behind, read from the ConfigMap and the status."""

    committed: DesiredState | None = None
    """The order in the ConfigMap of this source; None before there is one."""
    failure: KnownFailure | None = None
    """The failure of this generation's target, if it has failed already."""
    progress: Progress | None = None
    """How far the change of this generation was."""
    serving: int | None = None
    """The version that was last known to serve."""


def plan_swap(target: DesiredState, memory: Memory, replicas: Sequence[Replica], now: datetime) -> Swap:
    """The next step towards `target` on `replicas`, of which all have the target's source."""
    committed = memory.committed or _served(target, memory, replicas)
    if committed is None or (memory.failure is None and _is_of_no_use(committed, replicas)):
        committed = target
    # Whatever becomes of the version, the log is as the spec says.
    committed = committed.model_copy(update={"samples": target.samples, "stream": target.stream})
    if same_order(committed, target):
        return _settle(target, replicas, memory, now)
    failure = standing_failure(target, replicas, memory.failure, memory.progress, now)
    if failure is not None:
        return _back(target, committed, replicas, failure, now)
    return _forth(target, committed, replicas, memory, now)


def same_order(one: DesiredState, other: DesiredState) -> bool:
    """Whether two orders ask for the same, whoever gave them and for whichever generation."""
    ignored: dict[str, int] = {"epoch": 0, "generation": 0}
    return one.model_copy(update=ignored) == other.model_copy(update=ignored)


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
    found = next((failure for replica in replicas if (failure := reported(replica, target))), None)
    known = memory.failure
    if found is not None and (known is None or known.failure != found):
        known = KnownFailure(found, now)
    return Swap(target, _orders(target, target, replicas), done=done, failure=known if found else None)


def _forth(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[Replica],
    memory: Memory,
    now: datetime,
) -> Swap:
    """The next wave; back instead when the present one has stood still for too long."""
    there = [replica for replica in replicas if serves(replica, target)]
    if replicas and len(there) == len(replicas):
        return Swap(target, (), done=True)
    # An agent that says nothing may be busy with the target, or with dying: it is waited for like one that works.
    working = [
        replica
        for replica in replicas
        if replica not in there and (replica.report is None or works_on(replica, target))
    ]
    progress = moved(target, replicas, len(there), memory.progress, now)
    late = overdue(target, working, memory.failure, progress, now)
    if late is not None:
        return _back(target, committed, replicas, late, now)
    behind = [replica for replica in replicas if replica not in there and replica not in working]
    width = max(1, math.ceil(len(replicas) / _AT_ONCE)) if there else 1
    kept = [replica for replica in behind if _keeps(replica, target)]
    rest = [replica for replica in behind if replica not in kept][: max(0, width - len(working))]
    orders = tuple(Order(replica.pod, target) for replica in (*kept, *rest))
    known = memory.failure
    again = known is not None and known.failure.version == target.version
    return Swap(
        committed,
        orders,
        done=False,
        failure=known if again else None,
        retrying=again,
        progress=progress,
    )


def _back(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[Replica],
    failure: KnownFailure,
    now: datetime,
) -> Swap:
    wait = failure.retry_at - now if failure.retry_at is not None else None
    return Swap(
        committed, _orders(committed, target, replicas), done=False, failure=failure, retry_after=wait
    )


def _keeps(replica: Replica, target: DesiredState) -> bool:
    """Whether the replica has the target in memory from before: going back to it loads nothing and waits for nobody."""
    report = replica.report
    return report is not None and target.version in report.loaded and report.serving != target.version


def _served(target: DesiredState, memory: Memory, replicas: Sequence[Replica]) -> DesiredState | None:
    """The order that the replicas follow, where the ConfigMap that named it is gone or unreadable.

    What most of them serve beside the target; else, while somebody is silent, what the status last knew.
    """
    said = Counter(
        replica.report.serving
        for replica in replicas
        if replica.report is not None and replica.report.serving is not None
    )
    said.pop(target.version, None)
    silent = any(replica.report is None for replica in replicas)
    version = said.most_common(1)[0][0] if said else memory.serving if silent else None
    if version is None or version == target.version:
        return None
    return target.model_copy(update={"version": version, "sha256": None})


def _orders(wanted: DesiredState, target: DesiredState, replicas: Sequence[Replica]) -> tuple[Order, ...]:
    """Orders for the replicas that work on something else, or on an older generation."""
    order = wanted.model_copy(update={"epoch": target.epoch, "generation": target.generation})
    return tuple(
        Order(replica.pod, order)
        for replica in replicas
        if replica.report is not None and not works_on(replica, order)
    )
