"""Simulate the kubelets of all nodes: a scheduled pod is ready at once, a terminating pod is deleted at once."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tidegate_localcluster.fleet_demo.agents import ADDRESS
from tidegate_localcluster.fleet_demo.api import ApiServerClient, RefusedError

SCHEDULED_PODS: Final = "/api/v1/pods?fieldSelector=spec.nodeName!%3D"
WORKERS: Final = 12
_RETRY_S: Final = 0.5
_INFERENCE_LABEL: Final = "tidegate.io/inference"
_CONDITIONS: Final = ("PodScheduled", "Initialized", "ContainersReady", "Ready")

Key = tuple[str, str]


@dataclass(slots=True)
class ReadyPods:
    """Ready pods by Inference, as the simulated Prometheus reports them."""

    by_owner: dict[Key, set[str]] = field(default_factory=dict[Key, set[str]])

    def add_pod(self, owner: Key, pod: str) -> None:
        """Add a ready pod of this Inference."""
        self.by_owner.setdefault(owner, set()).add(pod)

    def remove_pod(self, owner: Key, pod: str) -> None:
        """Remove a pod that is not ready."""
        pods = self.by_owner.get(owner, set())
        pods.discard(pod)
        if not pods:
            self.by_owner.pop(owner, None)

    def list_names(self, owner: Key) -> Sequence[str]:
        """Return the names of the ready pods of one Inference."""
        return sorted(self.by_owner.get(owner, ()))

    def clear(self) -> None:
        """Remove all pods."""
        self.by_owner.clear()


class SimulatedKubelets:
    """Follow every scheduled pod and send the request that a kubelet would, until it succeeds."""

    def __init__(self, api: ApiServerClient, pods: ReadyPods, address: str = ADDRESS) -> None:
        """Record ready pods in `pods`; every pod gets the same `address`."""
        self._api = api
        self._pods = pods
        self._address = address
        self._pending_pods: dict[Key, Mapping[str, Any]] = {}
        self._queue: asyncio.Queue[Key] = asyncio.Queue()

    async def run(self) -> None:
        """Run until cancelled. The queue holds each pod at most once, with its newest state."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_pods())
            for _ in range(WORKERS):
                tasks.create_task(self._process_queue())

    async def _watch_pods(self) -> None:
        async for kind, pod in self._api.list_and_watch(SCHEDULED_PODS):
            if kind == "SYNC":
                self._pods.clear()
                continue
            if kind not in {"ADDED", "MODIFIED", "DELETED"}:
                continue
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self._record_readiness(kind, key, pod)
            if kind != "DELETED" and next_request(pod, self._address) is not None:
                if key not in self._pending_pods:
                    self._queue.put_nowait(key)
                self._pending_pods[key] = pod

    def _record_readiness(self, kind: str, key: Key, pod: Mapping[str, Any]) -> None:
        inference = (pod["metadata"].get("labels") or {}).get(_INFERENCE_LABEL)
        if inference is None:
            return
        owner = key[0], inference
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"] or not is_ready(pod):
            self._pods.remove_pod(owner, key[1])
        else:
            self._pods.add_pod(owner, key[1])

    async def _process_queue(self) -> None:
        while True:
            key = await self._queue.get()
            pod = self._pending_pods.pop(key)
            method, path, body = next_request(pod, self._address) or ("", "", {})
            try:
                await self._api.call(method, path, body)
            except RefusedError as error:
                # The pod has changed or is deleted: the watch delivers another event.
                if error.status != 409:
                    raise
            except (OSError, aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(_RETRY_S)
                if key not in self._pending_pods:
                    self._pending_pods[key] = pod
                    self._queue.put_nowait(key)


def next_request(pod: Mapping[str, Any], address: str = ADDRESS) -> tuple[str, str, Mapping[str, Any]] | None:
    """Return method, path and body of a kubelet's next request for a pod, or None; `address` becomes the pod's."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        return "DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
    if pod["spec"].get("nodeName") and not is_ready(pod):
        return (
            "PATCH",
            f"{path}/status",
            {"metadata": {"uid": metadata["uid"]}, "status": running_status(pod, address)},
        )
    return None


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod's condition Ready is True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def running_status(pod: Mapping[str, Any], address: str = ADDRESS) -> Mapping[str, Any]:
    """Return the status of a pod whose containers all run; `address` answers for its agent."""
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": started_at} for kind in _CONDITIONS]
    spec = pod["spec"]
    # A sidecar is an init container that keeps running.
    sidecars = [
        container
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    ]
    return {
        "phase": "Running",
        "startTime": started_at,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
        "initContainerStatuses": [_container_status(container, started_at) for container in sidecars],
        "containerStatuses": [_container_status(container, started_at) for container in spec["containers"]],
    }


def _container_status(container: Mapping[str, Any], started_at: str) -> Mapping[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "simulated",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": started_at}},
    }
