"""Pods as planners see them: the few facts that decide, read once from the object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.resources.names import SOURCE_LABEL, TEMPLATE_ANNOTATION

_QUIET_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
_IMAGE_WAITS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
SERVER = "triton"
"""The container that loads models."""
_KEEPS_ENDING = 2
"""One restart may be an accident."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a container of a pod does not run, in Kubernetes' own words."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of ours: where it is, what it was made from, and whether it takes traffic."""

    key: ObjectKey
    uid: str
    source: str
    address: str | None
    ready: bool
    terminating: bool
    template: str = ""
    """Hash of the pod template that it was made from."""
    trouble: Trouble | None = None
    unschedulable: str = ""
    """The scheduler's words when no node takes the pod."""
    killed_for_memory: datetime | None = None
    """When a container was last killed at its memory limit."""
    memory_limit: str = ""
    """The memory limit of the container that loads models."""

    @property
    def reachable(self) -> bool:
        """Whether its agent can be called: it has an address and is not on its way out."""
        return self.address is not None and not self.terminating


def pod_view(body: Mapping[str, Any]) -> PodView:
    """Reads a pod as the API server gives it."""
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    finished = status.get("phase") in ("Succeeded", "Failed")
    scheduled = conditions.get("PodScheduled", {})
    return PodView(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata["uid"],
        source=(metadata.get("labels") or {}).get(SOURCE_LABEL, ""),
        address=None if finished else status.get("podIP"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata or finished,
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        trouble=_trouble(status),
        killed_for_memory=_killed_for_memory(status),
        memory_limit=_memory_limit(body),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
    )


def pod_views(bodies: Iterable[Mapping[str, Any]]) -> tuple[PodView, ...]:
    """All pods, by name."""
    return tuple(sorted((pod_view(body) for body in bodies), key=lambda pod: pod.key))


def _trouble(status: Mapping[str, Any]) -> Trouble | None:
    containers: Sequence[Mapping[str, Any]] = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    return next((found for container in containers if (found := _container_trouble(container))), None)


def _container_trouble(container: Mapping[str, Any]) -> Trouble | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    ended = (container.get("lastState") or {}).get("terminated") or {}
    restarts = container.get("restartCount", 0)
    if ended and restarts >= _KEEPS_ENDING and not container.get("ready"):
        # Said between two ends as well, or the message would come and go with every restart.
        return _keeps_ending(container["name"], ended)
    if reason in _QUIET_WAITS:
        return None
    words = waiting.get("message", "").strip()
    said = f"{reason}{': ' + words if words else ''}"
    if reason in _IMAGE_WAITS:
        return Trouble(
            Reason.IMAGE_PULL, f"container {container['name']} {container.get('image', '')}: {said}"
        )
    return Trouble(Reason.POD_FAILING, f"container {container['name']}: {said}")


def _keeps_ending(name: str, ended: Mapping[str, Any]) -> Trouble:
    why = ended.get("reason", "Error")
    message = f"container {name} keeps ending ({why}, exit code {ended.get('exitCode')}, see kubectl logs --previous)"
    return Trouble(Reason.OUT_OF_MEMORY if why == "OOMKilled" else Reason.POD_FAILING, message)


def _killed_for_memory(status: Mapping[str, Any]) -> datetime | None:
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            ended = state.get("terminated") or {}
            if (
                container.get("name") == SERVER
                and ended.get("reason") == "OOMKilled"
                and "finishedAt" in ended
            ):
                return datetime.fromisoformat(ended["finishedAt"])
    return None


def _memory_limit(body: Mapping[str, Any]) -> str:
    containers = (body.get("spec") or {}).get("containers") or ()
    limits = (
        (each.get("resources") or {}).get("limits") or {} for each in containers if each.get("name") == SERVER
    )
    return str(next(limits, {}).get("memory", ""))
