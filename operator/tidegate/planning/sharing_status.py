"""What a ComputePool says about the sharing of its nodes' GPUs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from tidegate.api.reasons import Reason
from tidegate.api.repairs import NodeRepair, RepairState, SharingFault
from tidegate.planning.node_sharing import SHARING_TAINT, Finding, Sight
from tidegate.planning.serving_status import Verdict
from tidegate.planning.sharing_repairs import ATTEMPTS, given_up

_KEPT_OUT: Final = (RepairState.QUARANTINING, RepairState.QUARANTINED)
_NAMED: Final = 3
_LACKS_TOLERATION: Final = (
    f"the device plugin's pods do not tolerate the taint {SHARING_TAINT} and are therefore not made anew: add "
    f"{{key: {SHARING_TAINT}, operator: Exists}} to tolerations in its Helm values"
)
_REASONS: Final[Mapping[SharingFault, Reason]] = {fault: Reason(fault.value) for fault in SharingFault}
_ORDER: Final = {fault: rank for rank, fault in enumerate(SharingFault)}


def sharing_verdict(
    repairs: Sequence[NodeRepair],
    findings: Mapping[str, Finding],
    waits: Mapping[str, str],
    lacking: Collection[str],
    now: datetime,
) -> Verdict | None:
    """The condition SharingHealthy; None while some node's agent has not been heard for the first time.

    `waits` is for what each node waits, if it does. `lacking` are nodes on which a pod of the device plugin is not made anew since it lacks a toleration.
    """
    whole = _nodes(len(findings))
    active = sorted(
        (each for each in repairs if each.state in (RepairState.WAITING, RepairState.REPAIRING)),
        key=lambda one: (_ORDER[one.fault], one.node),
    )
    busy = {each.node for each in repairs}
    kept_out = [each for each in repairs if each.state in _KEPT_OUT]
    silent = _seen(findings, Sight.SILENT)
    starting = [node for node in _seen(findings, Sight.STARTING) if node not in busy]
    said = [
        *(_of_repair(each, findings[each.node], waits.get(each.node, ""), now) for each in active),
        *(_of_quarantined(each) for each in kept_out),
        *(f"node {node} {findings[node].detail or 'has a silent node agent'}" for node in silent),
        *(f"node {node} {findings[node].detail}" for node in starting),
    ]
    if not said:
        if any(finding.sight is Sight.PENDING for finding in findings.values()):
            return None
        return Verdict(True, Reason.SHARING_HEALTHY, f"MPS answers on {whole}")
    counts = [
        f"{len(found)} of {whole} {what}"
        for found, what in (
            (active, "being repaired"),
            (kept_out, "quarantined"),
            (silent, "not known"),
            (starting, "starting"),
        )
        if found
    ]
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    lacks = f"; {_LACKS_TOLERATION}" if lacking else ""
    message = f"{', '.join(counts)}: {'; '.join(said[:_NAMED])}{more}{lacks}"
    awaited = findings[starting[0]].awaited if starting else None
    reason = (
        _REASONS[active[0].fault]
        if active
        else Reason.NODE_QUARANTINED
        if kept_out
        else _REASONS[awaited]
        if awaited is not None and not silent
        else Reason.NODE_AGENT_SILENT
    )
    return Verdict(False, reason, message)


def _seen(findings: Mapping[str, Finding], sight: Sight) -> list[str]:
    return sorted(node for node, finding in findings.items() if finding.sight is sight)


def _of_repair(repair: NodeRepair, finding: Finding, waits: str, now: datetime) -> str:
    what = (
        finding.detail if repair.fault in (finding.fault, finding.awaited) else f"showed {repair.fault.value}"
    )
    if repair.state is RepairState.WAITING:
        how = waits
    elif given_up(repair, now) and finding.fault is not None:
        how = f"{ATTEMPTS} attempts in vain, and too many nodes are out of use to quarantine it: repair it by hand"
    else:
        how = f"attempt {repair.attempts} of {ATTEMPTS}"
    return f"node {repair.node} {what} ({how})"


def _of_quarantined(repair: NodeRepair) -> str:
    return (
        f"node {repair.node} showed {repair.fault.value} after {repair.attempts} attempts: repair it, then "
        f"kubectl taint node {repair.node} {SHARING_TAINT}-"
    )


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
