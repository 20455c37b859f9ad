"""Pods as planners see them, parsed once from each object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.inference.node_resources import Amounts, compute_pod_requests
from tidegate.resources.batch import SHARD_CONTAINER
from tidegate.resources.names import (
    CALLS_ANNOTATION,
    POOL_LABEL,
    SOURCE_LABEL,
    SPARE_LABEL,
    TEMPLATE_ANNOTATION,
)
from tidegate.resources.serving_pod import COMPILER_CONTAINER
from tidegate.resources.shared_spare import SpareModel, parse_served_models

_QUIET_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
_IMAGE_WAITS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
SERVER_CONTAINER = "triton"
"""The container that loads models."""
_JOB_LABEL = "batch.kubernetes.io/job-name"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_TOLD_TO_END = 143
_CONTAINERS_NOT_READY = "ContainersNotReady"
"""Kubernetes' reason of the condition Ready for a pod that lacks nothing else."""
_RESTART_WAITS = _QUIET_WAITS | {"CrashLoopBackOff"}
_FIRST_BACK_OFF = timedelta(seconds=10)
_MAX_BACK_OFF = timedelta(minutes=5)
"""Kubelets wait between two ends of a container for the first time, doubled with each restart up to the second one."""
_RESTART_MARGIN = timedelta(minutes=1)
"""What a restart may take after that, on a busy node and with clocks that differ."""
_KILLED_FOR_MEMORY = "OOMKilled"
_MEMORY_REMEDIES = {
    SERVER_CONTAINER: "raise spec.resources.memory, or send smaller requests",
    COMPILER_CONTAINER: "raise spec.compile.memory",
}
_KEEPS_ENDING = 2
"""One restart may be an accident."""


@dataclass(frozen=True, slots=True)
class PodProblem:
    """The reason why a container of a pod does not run, in Kubernetes' own words."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of ours: its node, its origin, and whether it takes traffic."""

    key: ObjectKey
    uid: str
    source: str
    address: str | None
    ready: bool
    terminating: bool
    template: str = ""
    """Hash of the pod template that it was created from."""
    problem: PodProblem | None = None
    unschedulable: str = ""
    """The scheduler's message while no node takes the pod."""
    requests: Amounts = field(default_factory=dict[str, Decimal])
    """Its resource requests."""
    oom_killed_at: datetime | None = None
    """When a container was last killed at its memory limit."""
    memory_limit: str = ""
    """The memory limit of the container that loads models."""
    calls: tuple[str, ...] = ()
    """Pipelines only: the Inferences that it calls."""
    job: str = ""
    """Batches only: its Job."""
    shard: int | None = None
    """Batches only: its shard."""
    termination_message: str = ""
    """Batches only: the termination message of a failed process."""
    ready_since: datetime | None = None
    """Since when it has taken traffic without a break."""
    unready_since: datetime | None = None
    """Since when it has taken none; None if it takes traffic, or nothing shows the time."""
    restart_due: datetime | None = None
    """When its kubelet has restarted its compiler of graphs at the latest, if only that is missing: later, its node is lost."""
    pool: str = ""
    """The pool on whose slices it runs, from a label; empty for none."""
    addresses: tuple[str, ...] = ()
    """Its addresses, one for each IP family; none once it has ended, since another pod may have them."""
    node: str = ""
    """Its node; empty before it has one."""
    shared_models: Mapping[str, SpareModel] = field(default_factory=dict[str, SpareModel])
    """Shared spares only: the Inferences that it serves for, with the versions."""

    @property
    def is_reachable(self) -> bool:
        """Return whether its agent can be called: it has an address and is not terminating."""
        return self.address is not None and not self.terminating

    @property
    def compiler_problem(self) -> PodProblem | None:
        """Return why its compiler of graphs does not run: the one container that a pod which takes traffic may lack."""
        return self.problem if self.ready and not self.terminating else None


def parse_pod(body: Mapping[str, Any]) -> PodView:
    """Parse a pod."""
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    calls = (metadata.get("annotations") or {}).get(CALLS_ANNOTATION, "")
    finished = status.get("phase") in ("Succeeded", "Failed")
    scheduled = conditions.get("PodScheduled", {})
    return PodView(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata["uid"],
        source=labels.get(SOURCE_LABEL, ""),
        address=None if finished else status.get("podIP"),
        ready=is_ready(body),
        ready_since=find_serving_time(body),
        unready_since=_find_unready_time(body),
        restart_due=_find_restart_due(body),
        terminating="deletionTimestamp" in metadata or finished,
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        problem=_find_problem(body),
        oom_killed_at=_find_oom_kill(status),
        memory_limit=_find_memory_limit(body, SERVER_CONTAINER),
        calls=tuple(name for name in calls.split(",") if name),
        job=labels.get(_JOB_LABEL, ""),
        shard=int(index) if (index := labels.get(_INDEX_LABEL, "")).isdecimal() else None,
        termination_message=_find_termination_message(status),
        pool=labels.get(POOL_LABEL, ""),
        addresses=() if finished else _parse_addresses(status),
        node=(body.get("spec") or {}).get("nodeName", ""),
        shared_models=parse_served_models(metadata.get("annotations") or {}) if SPARE_LABEL in labels else {},
        requests=compute_pod_requests(body),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
    )


def is_ready(body: Mapping[str, Any]) -> bool:
    """Return whether a pod takes traffic: it is ready, or would be if its compiler of graphs ran, which serves nothing."""
    ready = _find_ready_condition(body)
    if ready.get("status") == "True":
        return True
    containers = _list_containers(body.get("status") or {})
    unready = {container["name"] for container in containers if not container.get("ready")}
    is_answering = ready.get("status") == "False" and ready.get("reason") == _CONTAINERS_NOT_READY
    return is_answering and unready == {COMPILER_CONTAINER}


def find_ready_time(body: Mapping[str, Any]) -> datetime | None:
    """Return since when a pod has been ready without a break; None if it is not ready, or has no time."""
    ready = _find_ready_condition(body)
    return _find_transition(ready) if ready.get("status") == "True" else None


def find_serving_time(body: Mapping[str, Any]) -> datetime | None:
    """Return since when a pod has taken traffic without a break; None if it takes none, or has no time.

    The readiness of a pod with a compiler of graphs changes with each end of the compiler. So it is the time when another
    container last ended, or the pod's start if none did: neither an end nor a restart of the compiler changes it.
    """
    if not is_ready(body):
        return None
    status = body.get("status") or {}
    containers = _list_containers(status)
    if status.get("startTime") and any(container["name"] == COMPILER_CONTAINER for container in containers):
        ends = (
            ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
            for container in containers
            if container["name"] != COMPILER_CONTAINER
        )
        return max(datetime.fromisoformat(time) for time in (status["startTime"], *ends) if time)
    return _find_transition(_find_ready_condition(body))


def _find_unready_time(body: Mapping[str, Any]) -> datetime | None:
    """Return since when a pod has taken no traffic; None if it does, or if the end of its compiler may have made it unready before."""
    containers = _list_containers(body.get("status") or {})
    if is_ready(body) or any(container["name"] == COMPILER_CONTAINER for container in containers):
        return None
    return _find_transition(_find_ready_condition(body))


def _find_restart_due(body: Mapping[str, Any]) -> datetime | None:
    """Return when the kubelet has restarted the compiler of a pod that lacks nothing else; None while it waits for something else.

    The readiness of a pod on a lost node becomes Unknown, but only if it was True; nothing else in the pod changes for minutes.
    """
    ready = _find_ready_condition(body)
    if ready.get("status") != "False" or not is_ready(body):
        return None
    containers = _list_containers(body["status"])
    compiler = next(container for container in containers if container["name"] == COMPILER_CONTAINER)
    state, last = compiler.get("state") or {}, compiler.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    if (state.get("waiting") or {}).get("reason", "") not in _RESTART_WAITS or not ended.get("finishedAt"):
        return None
    times = [ended["finishedAt"], ready.get("lastTransitionTime")]
    # The exponent is bounded, since restarts are not.
    doublings: int = min(compiler.get("restartCount", 0), 5)
    back_off = min(_FIRST_BACK_OFF * (1 << doublings), _MAX_BACK_OFF)
    return max(datetime.fromisoformat(time) for time in times if time) + back_off + _RESTART_MARGIN


def _find_ready_condition(body: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def _find_transition(condition: Mapping[str, Any]) -> datetime | None:
    changed_at = condition.get("lastTransitionTime")
    return datetime.fromisoformat(changed_at) if changed_at else None


def parse_pods(bodies: Iterable[Mapping[str, Any]]) -> tuple[PodView, ...]:
    """Parse pods, sorted by name."""
    return tuple(sorted((parse_pod(body) for body in bodies), key=lambda pod: pod.key))


def _parse_addresses(status: Mapping[str, Any]) -> tuple[str, ...]:
    addresses = {status.get("podIP"), *(item.get("ip") for item in status.get("podIPs") or ())}
    return tuple(sorted(address for address in addresses if address))


def _find_problem(body: Mapping[str, Any]) -> PodProblem | None:
    problems = (
        _find_container_problem(container, _find_memory_limit(body, container["name"]))
        for container in _list_containers(body.get("status") or {})
    )
    return next((problem for problem in problems if problem), None)


def _list_containers(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def _find_container_problem(container: Mapping[str, Any], memory_limit: str) -> PodProblem | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason", "")
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    restarts = container.get("restartCount", 0)
    # Report both while the container runs between two ends too, or the message would come and go with every restart.
    if ended.get("reason") == _KILLED_FOR_MEMORY and not container.get("ready"):
        return _report_oom(container["name"], memory_limit)
    if ended and restarts >= _KEEPS_ENDING and not container.get("ready"):
        return _report_restarts(container["name"], ended)
    if reason in _QUIET_WAITS:
        return None
    message = waiting.get("message", "").strip()
    detail = f"{reason}{': ' + message if message else ''}"
    if reason in _IMAGE_WAITS:
        return PodProblem(
            Reason.IMAGE_PULL, f"container {container['name']} {container.get('image', '')}: {detail}"
        )
    return PodProblem(Reason.POD_FAILING, f"container {container['name']}: {detail}")


def _report_restarts(name: str, ended: Mapping[str, Any]) -> PodProblem:
    detail = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
    return PodProblem(
        Reason.POD_FAILING, f"container {name} keeps ending ({detail}, see kubectl logs --previous)"
    )


def _report_oom(name: str, limit: str) -> PodProblem:
    """Report it at the first kill: what needed the memory once will need it again."""
    message = f"container {name} was killed at its memory limit of {limit}"
    way_out = _MEMORY_REMEDIES.get(name, "")
    return PodProblem(Reason.OUT_OF_MEMORY, f"{message}; {way_out}" if way_out else message)


def _find_termination_message(status: Mapping[str, Any]) -> str:
    """Return how the process of a failed shard ended; one that ended with its pod has not failed."""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if container.get("name") == SHARD_CONTAINER and ended.get("exitCode") not in (None, 0, _TOLD_TO_END):
            message: str = ended.get("message", "").strip()
            return message or f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
    return ""


def _find_oom_kill(status: Mapping[str, Any]) -> datetime | None:
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            ended = state.get("terminated") or {}
            if (
                container.get("name") == SERVER_CONTAINER
                and ended.get("reason") == _KILLED_FOR_MEMORY
                and "finishedAt" in ended
            ):
                return datetime.fromisoformat(ended["finishedAt"])
    return None


def _find_memory_limit(body: Mapping[str, Any], container: str) -> str:
    spec = body.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    limits = (
        (item.get("resources") or {}).get("limits") or {}
        for item in containers
        if item.get("name") == container
    )
    return str(next(limits, {}).get("memory", ""))
