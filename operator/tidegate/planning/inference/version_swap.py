"""Change the version of running pods: one replica first, then in waves; a failure rolls all of them back.

```
behind ──desired state──► working ──serves──► at target      all at target: commit it in the ConfigMap
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

from tidegate.planning.inference.swap_failures import (
    ObservedReplica,
    RecordedFailure,
    VersionProgress,
    find_blocking_failure,
    find_overdue_failure,
    get_reported_failure,
    has_order_for,
    is_retryable,
    update_progress,
    was_gone_before,
)
from tidegate.planning.plan import AgentOrder
from tidegate_dataplane.contract import AgentPhase, AgentReport, DesiredState

_WAVES: Final = 4
"""Change a quarter of the replicas at once: loading costs a replica CPU and memory while it serves."""


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """State of a version change, with the desired states to send to agents next."""

    committed: DesiredState
    """The desired state that starting pods begin with."""
    orders: tuple[AgentOrder, ...]
    done: bool
    """Every replica serves the target, by the reports of the agents."""
    failure: RecordedFailure | None = None
    retry_after: timedelta | None = None
    retrying: bool = False
    """The version of `failure` is being retried; the failure is shown until the retry succeeds."""
    progress: VersionProgress | None = None
    """How far the change is; None if none is in progress."""


@dataclass(frozen=True, slots=True)
class SwapHistory:
    """Records of earlier reconciles, from the ConfigMap and the status."""

    committed: DesiredState | None = None
    """The desired state in the ConfigMap of this source; None before it exists."""
    failure: RecordedFailure | None = None
    """The failure of this generation's target, if it has failed."""
    progress: VersionProgress | None = None
    """How far the change of this generation was."""
    serving: int | None = None
    """The version that last served."""
    tried_before: bool = False
    """Whether the status has a change to the target, or its failure, of whatever generation."""


def plan_swap(
    target: DesiredState, history: SwapHistory, replicas: Sequence[ObservedReplica], now: datetime
) -> SwapPlan:
    """Return the next step towards `target` on `replicas`, all of which have the target's source."""
    committed = history.committed or _infer_committed(target, history, replicas)
    if committed is None or (history.failure is None and _cannot_roll_back(committed, replicas)):
        committed = target
    # The sample log and the stream follow the spec even if the version is rolled back.
    committed = committed.model_copy(update={"samples": target.samples, "stream": target.stream})
    if is_same_order(committed, target):
        return _plan_settled(target, replicas, history, now)
    failure = find_blocking_failure(target, replicas, history.failure, history.progress, now)
    if failure is not None:
        return _plan_rollback(target, committed, replicas, failure, now)
    return _plan_next_wave(target, committed, replicas, history, now)


def is_same_order(first: DesiredState, second: DesiredState) -> bool:
    """Return whether two desired states are equal except for epoch and generation."""
    ignored: dict[str, int] = {"epoch": 0, "generation": 0}
    return first.model_copy(update=ignored) == second.model_copy(update=ignored)


def serves_target(replica: ObservedReplica, target: DesiredState) -> bool:
    """Return whether the replica serves the target and has this generation's desired state."""
    report = replica.report
    return (
        report is not None
        and report.serving == target.version
        and report.generation == target.generation
        and report.phase is AgentPhase.READY
    )


def _cannot_roll_back(committed: DesiredState, replicas: Sequence[ObservedReplica]) -> bool:
    """Return whether there is nothing to roll back to: the committed version cannot be loaded and serves nowhere.

    It is not enough that it serves nowhere: all pods of a good version may just have been replaced.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    failures = [report.failure for report in reports if report.failure is not None]
    return all(report.serving != committed.version for report in reports) and any(
        failure.version == committed.version and not is_retryable(failure.reason) for failure in failures
    )


def _plan_settled(
    target: DesiredState, replicas: Sequence[ObservedReplica], history: SwapHistory, now: datetime
) -> SwapPlan:
    """Return the plan of a version's first rollout and of the steady state; agents retry by themselves."""
    done = bool(replicas) and all(serves_target(replica, target) for replica in replicas)
    reported_failure = next(
        (failure for replica in replicas if (failure := get_reported_failure(replica, target))), None
    )
    recorded = history.failure
    if reported_failure is not None and (recorded is None or recorded.failure != reported_failure):
        recorded = RecordedFailure(reported_failure, now)
    return SwapPlan(
        target,
        _list_orders(target, target, replicas),
        done=done,
        failure=recorded if reported_failure else None,
    )


def _plan_next_wave(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[ObservedReplica],
    history: SwapHistory,
    now: datetime,
) -> SwapPlan:
    """Return the next wave, or a rollback if the present wave has made no progress for too long."""
    at_target = [replica for replica in replicas if serves_target(replica, target)]
    progress = update_progress(
        target, replicas, len(at_target), history.progress, now, tried_before=history.tried_before
    )
    present = [replica for replica in replicas if not was_gone_before(replica, progress)]
    if at_target and len(at_target) == len(present):
        # What was gone before starts with the committed version.
        return SwapPlan(target, _list_orders(target, target, replicas), done=len(present) == len(replicas))
    # Any other silent agent may be busy with the target, or may be failing: wait for it as for a working agent.
    working = [
        replica
        for replica in present
        if replica not in at_target and (replica.report is None or has_order_for(replica, target))
    ]
    overdue_failure = find_overdue_failure(target, working, history.failure, progress, now)
    if overdue_failure is not None:
        return _plan_rollback(target, committed, replicas, overdue_failure, now)
    behind = [replica for replica in present if replica not in at_target and replica not in working]
    width = max(1, math.ceil(len(replicas) / _WAVES)) if at_target else 1
    preloaded = [replica for replica in behind if _has_loaded(replica, target)]
    wave = [replica for replica in behind if replica not in preloaded][: max(0, width - len(working))]
    ordered = (*preloaded, *wave)
    orders = tuple(_make_order(replica, target) for replica in ordered)
    # Features change for all replicas at once: their owner may have withdrawn them.
    unordered = [replica for replica in replicas if replica not in ordered]
    orders += _list_feature_orders(committed, target, unordered)
    recorded = history.failure
    retrying = recorded is not None and recorded.failure.version == target.version
    return SwapPlan(
        committed,
        orders,
        done=False,
        failure=recorded if retrying else None,
        retrying=retrying,
        progress=progress,
    )


def _plan_rollback(
    target: DesiredState,
    committed: DesiredState,
    replicas: Sequence[ObservedReplica],
    failure: RecordedFailure,
    now: datetime,
) -> SwapPlan:
    retry_after = failure.retry_at - now if failure.retry_at is not None else None
    return SwapPlan(
        committed,
        _list_orders(committed, target, replicas),
        done=False,
        failure=failure,
        retry_after=retry_after,
    )


def _has_loaded(replica: ObservedReplica, target: DesiredState) -> bool:
    """Return whether the replica still has the target loaded from before, so that the switch costs no load."""
    report = replica.report
    return report is not None and target.version in report.loaded and report.serving != target.version


def _infer_committed(
    target: DesiredState, history: SwapHistory, replicas: Sequence[ObservedReplica]
) -> DesiredState | None:
    """Return the desired state that the replicas follow if the ConfigMap with it is deleted or invalid.

    It is the version other than the target that most replicas serve; while an agent is silent, the last one in the status.
    """
    version_counts = Counter(
        replica.report.serving
        for replica in replicas
        if replica.report is not None and replica.report.serving is not None
    )
    version_counts.pop(target.version, None)
    silent = any(replica.report is None for replica in replicas)
    version = version_counts.most_common(1)[0][0] if version_counts else history.serving if silent else None
    if version is None or version == target.version:
        return None
    return target.model_copy(update={"version": version, "sha256": None})


def _has_features_of(report: AgentReport, order: DesiredState) -> bool:
    """Return whether the agent has the features of messages in `order`, which change without another generation."""
    return report.features_revision in (None, order.features_revision)


def _list_feature_orders(
    committed: DesiredState, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> tuple[AgentOrder, ...]:
    """Return desired states for the replicas with other features, each with the version that the replica works on."""
    kept_order = committed.model_copy(update={"epoch": target.epoch, "generation": target.generation})
    return tuple(
        _make_order(replica, target if has_order_for(replica, target) else kept_order)
        for replica in replicas
        if replica.report is not None and not _has_features_of(replica.report, target)
    )


def _make_order(replica: ObservedReplica, order: DesiredState) -> AgentOrder:
    """Return the desired state for a replica; an agent that does not support features would call the model without them."""
    report = replica.report
    if order.features_revision and report is not None and report.features_revision is None:
        order = order.model_copy(update={"stream": None})
    return AgentOrder(replica.pod, order)


def _list_orders(
    desired: DesiredState, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> tuple[AgentOrder, ...]:
    """Return desired states for the replicas that work on another one, or on an older generation."""
    order = desired.model_copy(update={"epoch": target.epoch, "generation": target.generation})
    return tuple(
        _make_order(replica, order)
        for replica in replicas
        if replica.report is not None
        and not (has_order_for(replica, order) and _has_features_of(replica.report, order))
    )
