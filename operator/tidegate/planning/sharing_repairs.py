"""The repair of a node whose sharing of GPUs failed: what is tried, in which order, how often, and when it is given up.

The faults and what helps are those of NVIDIA's documentation of MPS and of the device plugin's source: a daemon that is
gone is started again by nobody, a fault holds a GPU until its last client has gone, and devices that were withdrawn never
come back by themselves. docs/explanation/mps-health.md has the table.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.repairs import NodeRepair, RepairState, SharingFault
from tidegate.planning.node_sharing import (
    HELPER_STARTS,
    SHARING_TAINT,
    Finding,
    HelperPod,
    NodeSharing,
    Sight,
)
from tidegate.planning.nodes import NodeView
from tidegate_dataplane.contract.sharing import NodeAction

ATTEMPTS: Final = 3
REMEMBERED: Final = timedelta(minutes=10)
"""A fault that comes back sooner goes on counting attempts."""
ABANDONED_AFTER: Final = timedelta(minutes=5)
"""A node that cannot be judged for so long after its attempt is quarantined."""
LIMIT_PERCENT: Final = 20
"""Of a pool's nodes, so many may be out of use for repairs that cost running pods; one at least."""


class Measure(StrEnum):
    """What a repair may do to a node."""

    TAINT = "Taint"
    MOVE_PODS = "MovePods"
    TERMINATE_CLIENT = "TerminateClient"
    RESTART_DAEMON = "RestartDaemon"
    RESTART_PLUGIN = "RestartPlugin"


_REPLACE_DAEMON: Final = frozenset({Measure.TAINT, Measure.MOVE_PODS, Measure.RESTART_DAEMON})
_RESTARTS: Final = frozenset({Measure.RESTART_DAEMON, Measure.RESTART_PLUGIN})


@dataclass(frozen=True, slots=True)
class Treatment:
    """How one fault is treated."""

    confirm: timedelta
    """How long it must last before anything is done."""
    window: timedelta
    """How long the first attempt is given; each further one has twice the time of the one before.

    One that makes a pod of the device plugin anew has HELPER_STARTS at least.
    """
    first: frozenset[Measure]
    then: frozenset[Measure]
    """What is done from the second attempt on."""
    awaits_helpers: bool = True
    """Whether an attempt that makes a pod of the device plugin anew is given the time that one takes to start."""
    spares_other_gpus: bool = False
    """Whether the fault leaves pods on other GPUs of the node at work."""

    def measures(self, attempt: int) -> frozenset[Measure]:
        """What belongs to one attempt, the first being 1."""
        return self.first if attempt <= 1 else self.then

    def costs_pods(self, attempt: int, view: NodeSharing) -> bool:
        """Whether an attempt ends pods that still work, so that only some nodes are treated at once."""
        measures = self.measures(attempt)
        moves = Measure.MOVE_PODS in measures and self.spares_other_gpus
        return Measure.RESTART_DAEMON in measures or (moves and view.many_gpus)

    def lasts(self, attempt: int) -> timedelta:
        """How long an attempt is given."""
        least = HELPER_STARTS if self.awaits_helpers and _RESTARTS & self.measures(attempt) else timedelta()
        return max(self.window * (1 << (attempt - 1)), least)

    @property
    def bound(self) -> timedelta:
        """From the first sight of a fault until it is repaired, or the node is quarantined."""
        return self.confirm + sum((self.lasts(each + 1) for each in range(ATTEMPTS)), timedelta())


TREATMENTS: Final[Mapping[SharingFault, Treatment]] = {
    SharingFault.DAEMON_LOST: Treatment(
        timedelta(seconds=5), timedelta(seconds=30), _REPLACE_DAEMON, _REPLACE_DAEMON
    ),
    # On a node with one GPU the pods are lost already: waiting for others would save nobody.
    SharingFault.GPU_FAULT: Treatment(
        timedelta(),
        timedelta(seconds=20),
        frozenset({Measure.TAINT, Measure.MOVE_PODS}),
        _REPLACE_DAEMON,
        spares_other_gpus=True,
    ),
    SharingFault.CLIENT_STUCK: Treatment(
        timedelta(seconds=2),
        timedelta(seconds=15),
        frozenset({Measure.TERMINATE_CLIENT}),
        _REPLACE_DAEMON,
    ),
    SharingFault.ALLOCATABLE_GONE: Treatment(
        timedelta(seconds=15),
        timedelta(seconds=30),
        frozenset({Measure.RESTART_PLUGIN}),
        frozenset({Measure.RESTART_PLUGIN}),
    ),
    SharingFault.ADMISSION_ERRORS: Treatment(
        timedelta(),
        timedelta(seconds=5),
        frozenset({Measure.MOVE_PODS}),
        frozenset({Measure.TAINT, Measure.MOVE_PODS, Measure.RESTART_PLUGIN}),
        awaits_helpers=False,
    ),
}


TOLD_BY_AGENTS: Final = frozenset(
    {SharingFault.DAEMON_LOST, SharingFault.GPU_FAULT, SharingFault.CLIENT_STUCK}
)
"""Nothing is done about them on the strength of one report, which may be old."""


@dataclass(frozen=True, slots=True)
class TaintNode:
    """Gives our taint this value, or takes it off."""

    node: str
    value: RepairState | None


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Deletes that very pod."""

    key: ObjectKey
    uid: str


@dataclass(frozen=True, slots=True)
class OrderNode:
    """Has the agent of a node do something once; `id` is another one for each attempt."""

    node: str
    id: str
    action: NodeAction
    server: int = 0
    client: int = 0


Step = TaintNode | OrderNode | RemovePod


def out_of_use(repair: NodeRepair | None, view: NodeSharing, finding: Finding, now: datetime) -> bool:
    """Whether a node counts against the limit: it has our taint, whatever it is repaired for by now, or is about to.

    One of which nothing has been heard for long keeps no other from being repaired.
    """
    if repair is not None and finding.sight in (Sight.AWAY, Sight.SILENT) and abandoned(repair, finding, now):
        return False
    return view.taint is not None or (repair is not None and disrupts(repair, view))


def disrupts(repair: NodeRepair, view: NodeSharing) -> bool:
    """Whether a node is kept out of use, or its present attempt costs running pods."""
    if repair.state in (RepairState.QUARANTINING, RepairState.QUARANTINED):
        return True
    costs = TREATMENTS[repair.fault].costs_pods(repair.attempts, view)
    return repair.state is RepairState.REPAIRING and costs


def abandoned(repair: NodeRepair, finding: Finding, now: datetime) -> bool:
    """Whether nobody can say how a node is, long after its attempt should have helped."""
    held = repair.state not in (RepairState.WAITING, RepairState.RECOVERED)
    unseen = finding.sight in (Sight.AWAY, Sight.SILENT, Sight.STARTING)
    return held and unseen and now >= ends(repair) + ABANDONED_AFTER


def next_repair(
    repair: NodeRepair | None,
    view: NodeSharing,
    finding: Finding,
    suspected: datetime | None,
    now: datetime,
    *,
    allowed: bool,
) -> NodeRepair | None:
    """How a node's repair stands after a look; None where there is nothing to remember.

    `suspected` is since when the fault of `finding` has been seen without a break. `allowed` is whether one node more may be
    taken out of use.
    """
    if repair is not None and repair.state is RepairState.QUARANTINED:
        # Written only once the taint was seen: without it, a person has taken it off.
        return repair if view.taint is not None or finding.sight is Sight.AWAY else None
    if repair is not None and view.taint == RepairState.QUARANTINED.value:
        return repair.model_copy(update={"state": RepairState.QUARANTINED})
    if repair is not None and repair.state is RepairState.QUARANTINING:
        return repair
    if repair is not None and abandoned(repair, finding, now):
        # A node that only starts goes on counting, so that it needs a place.
        counts = finding.sight is Sight.STARTING
        if not counts or allowed or disrupts(repair, view):
            return repair.model_copy(update={"state": RepairState.QUARANTINING})
    if finding.sight is Sight.AWAY:
        return repair
    if finding.fault is None:
        return _without_fault(repair, finding, now)
    if repair is None or repair.state is RepairState.RECOVERED:
        return _begun(repair, view, finding.fault, suspected, now, allowed=allowed)
    return _continued(repair, view, finding.fault, now, allowed=allowed)


def _without_fault(repair: NodeRepair | None, finding: Finding, now: datetime) -> NodeRepair | None:
    if repair is None or finding.sight is not Sight.CLEAR:
        return repair  # nobody can say that it is well
    if repair.state is RepairState.RECOVERED:
        known = repair.recovered_at is not None and now < repair.recovered_at + REMEMBERED
        return repair if known else None
    if repair.state is RepairState.WAITING and not repair.attempts:
        return None
    return (
        repair.model_copy(update={"state": RepairState.RECOVERED, "recovered_at": now.replace(microsecond=0)})
        if _settled(repair, now)
        else repair
    )


def _settled(repair: NodeRepair, now: datetime) -> bool:
    """A plugin shows that it admits pods only by refusing none for a while; all else is over when it is not seen."""
    if repair.fault is not SharingFault.ADMISSION_ERRORS or repair.attempted_at is None:
        return True
    return now >= repair.attempted_at + TREATMENTS[repair.fault].lasts(repair.attempts)


def _begun(
    before: NodeRepair | None,
    view: NodeSharing,
    fault: SharingFault,
    suspected: datetime | None,
    now: datetime,
    *,
    allowed: bool,
) -> NodeRepair | None:
    seen = suspected or now
    # A node that a person has cordoned is in their hands.
    if now < seen + TREATMENTS[fault].confirm or view.node.cordoned:
        return before
    if fault in TOLD_BY_AGENTS and not view.heard_since(seen, now):
        return before
    again = before is not None and before.fault is fault
    repair = NodeRepair(
        node=view.node.name,
        fault=fault,
        state=RepairState.WAITING,
        since=seen.replace(microsecond=0),
        attempts=before.attempts if before is not None and again else 0,
    )
    return _attempt(repair, view, now, allowed=allowed)


def _continued(
    repair: NodeRepair, view: NodeSharing, fault: SharingFault, now: datetime, *, allowed: bool
) -> NodeRepair:
    if repair.state is RepairState.REPAIRING and now < ends(repair):
        return repair
    if fault is not repair.fault:
        repair = repair.model_copy(update={"fault": fault, "attempts": min(repair.attempts, ATTEMPTS - 1)})
    return _attempt(repair, view, now, allowed=allowed)


def _attempt(repair: NodeRepair, view: NodeSharing, now: datetime, *, allowed: bool) -> NodeRepair:
    """One more attempt, if another node may be out of use for it; after the last one, the quarantine."""
    waiting = repair.model_copy(update={"state": RepairState.WAITING})
    if view.node.cordoned:
        return waiting
    treatment, may = TREATMENTS[repair.fault], allowed or disrupts(repair, view)
    if repair.attempts >= ATTEMPTS:
        if may:
            return repair.model_copy(update={"state": RepairState.QUARANTINING, "recovered_at": None})
        # What has recovered and fails again has no taint, and gets none now.
        return repair if repair.state is RepairState.REPAIRING else waiting
    attempt = repair.attempts + 1
    if treatment.costs_pods(attempt, view) and not may:
        return waiting
    if kept_away(repair, view):
        return waiting
    helper = _helper(view, treatment.measures(attempt))
    return repair.model_copy(
        update={
            "state": RepairState.REPAIRING,
            "attempts": attempt,
            "attempted_at": now.replace(microsecond=0),
            "recovered_at": None,
            "replaces": helper.uid if helper is not None else "",
        }
    )


def _helper(view: NodeSharing, measures: frozenset[Measure]) -> HelperPod | None:
    """The pod to make anew; None also where the taint would keep another one away for good."""
    found = _to_replace(view, measures)
    return None if found is None or _stays_away(found, view, measures) else found


def _to_replace(view: NodeSharing, measures: frozenset[Measure]) -> HelperPod | None:
    found = view.daemon if Measure.RESTART_DAEMON in measures else None
    return view.plugin if Measure.RESTART_PLUGIN in measures else found


def _stays_away(helper: HelperPod, view: NodeSharing, measures: frozenset[Measure]) -> bool:
    return not helper.tolerates and (Measure.TAINT in measures or view.taint is not None)


def kept_away(repair: NodeRepair, view: NodeSharing) -> bool:
    """Whether the next attempt would end a pod of the device plugin of which the taint then keeps another one away.

    Such an attempt is not made: it would end the pods of the node and mend nothing.
    """
    measures = TREATMENTS[repair.fault].measures(repair.attempts + 1)
    helper = _to_replace(view, measures)
    return helper is not None and _stays_away(helper, view, measures)


def waits_for(repair: NodeRepair, view: NodeSharing) -> str:
    """What a repair that waits is waiting for, in a few words."""
    if view.node.cordoned:
        return "is left alone while it is cordoned"
    if kept_away(repair, view):
        return "waits for a toleration of the device plugin"
    return "waits until fewer nodes of the pool are out of use"


def given_up(repair: NodeRepair, now: datetime) -> bool:
    """Whether all attempts were in vain, and the node is not quarantined since too many others are."""
    tried = repair.state is RepairState.REPAIRING and repair.attempts >= ATTEMPTS
    return tried and now >= ends(repair)


def left_over(view: NodeSharing) -> tuple[Step, ...]:
    """A repair of which nothing is remembered any more has no claim on the node."""
    return (TaintNode(view.node.name, None),) if view.taint == RepairState.REPAIRING.value else ()


def strays(nodes: Iterable[NodeView], repaired: Collection[str]) -> tuple[Step, ...]:
    """Takes our taint off nodes that no pool repairs: they have left theirs in the middle of it."""
    return tuple(
        TaintNode(node.name, None)
        for node in nodes
        if node.name not in repaired
        and any(
            each.key == SHARING_TAINT and each.value == RepairState.REPAIRING.value for each in node.taints
        )
    )


def ends(repair: NodeRepair) -> datetime:
    """When the present attempt has had its time."""
    began = repair.attempted_at or repair.since
    return began + TREATMENTS[repair.fault].lasts(max(repair.attempts, 1))


def steps_of(repair: NodeRepair, view: NodeSharing, finding: Finding, now: datetime) -> tuple[Step, ...]:
    """What still has to be done of a repair; empty once all of it is."""
    # Taints are changed at the API server, which a node need not be there for.
    if repair.state in (RepairState.RECOVERED, RepairState.WAITING):
        return left_over(view)
    if repair.state is RepairState.QUARANTINING:
        return (TaintNode(view.node.name, RepairState.QUARANTINED),)
    if finding.sight is Sight.AWAY:
        return ()
    if repair.state is RepairState.QUARANTINED:
        return _moved(finding) if finding.fault is repair.fault else ()
    return _of_attempt(repair, view, finding, now)


def _of_attempt(repair: NodeRepair, view: NodeSharing, finding: Finding, now: datetime) -> tuple[Step, ...]:
    measures = TREATMENTS[repair.fault].measures(repair.attempts)
    steps: list[Step] = []
    if Measure.TAINT in measures and view.taint is None:
        steps.append(TaintNode(view.node.name, RepairState.REPAIRING))
    if Measure.TERMINATE_CLIENT in measures and finding.client is not None:
        steps.extend(_terminated(repair, view, finding))
    if Measure.MOVE_PODS in measures:
        steps.extend(_moved(finding))
    helper = _helper(view, measures)
    if helper is not None and not helper.starts(now) and helper.uid == repair.replaces:
        steps.append(RemovePod(helper.key, helper.uid))
    return tuple(steps)


def _terminated(repair: NodeRepair, view: NodeSharing, finding: Finding) -> tuple[Step, ...]:
    client, report = finding.client, view.heard.report
    if client is None or report is None:
        return ()
    began = int(repair.since.timestamp())
    name = f"{view.node.name}/{client.server}/{client.pid}/{began}/{repair.attempts}"
    if any(each.id == name for each in report.orders):
        return ()
    return (OrderNode(view.node.name, name, NodeAction.TERMINATE_CLIENT, client.server, client.pid),)


def _moved(finding: Finding) -> tuple[Step, ...]:
    return tuple(RemovePod(pod.key, pod.uid) for pod in finding.pods if pod.leaving is None)
