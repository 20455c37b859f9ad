"""Plays the kubelets of all nodes: a pod that has a node is ready at once, and one that is to go is gone at once."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tidegate_localcluster.fleet_demo.agents import ADDRESS
from tidegate_localcluster.fleet_demo.api import Api, RefusedError

SCHEDULED_PODS: Final = "/api/v1/pods?fieldSelector=spec.nodeName!%3D"
WORKERS: Final = 12
_AGAIN_S: Final = 0.5
_INFERENCE_LABEL: Final = "tidegate.io/inference"
_CONDITIONS: Final = ("PodScheduled", "Initialized", "ContainersReady", "Ready")

Key = tuple[str, str]


@dataclass(slots=True)
class Pods:
    """The pods that are ready, by Inference; what the stand-in for Prometheus tells of them."""

    by_owner: dict[Key, set[str]] = field(default_factory=dict[Key, set[str]])

    def put(self, owner: Key, pod: str) -> None:
        """A pod of this Inference is ready."""
        self.by_owner.setdefault(owner, set()).add(pod)

    def drop(self, owner: Key, pod: str) -> None:
        """It is not, or not any more."""
        known = self.by_owner.get(owner, set())
        known.discard(pod)
        if not known:
            self.by_owner.pop(owner, None)

    def ready(self, owner: Key) -> Sequence[str]:
        """Names of those of one Inference."""
        return sorted(self.by_owner.get(owner, ()))

    def clear(self) -> None:
        """Nothing is known."""
        self.by_owner.clear()


class Kubelets:
    """Follows every pod that has a node and does with it what a kubelet would, as often as it takes."""

    def __init__(self, api: Api, pods: Pods, address: str = ADDRESS) -> None:
        """Tell `pods` what is ready; `address` is that of every pod."""
        self._api = api
        self._pods = pods
        self._address = address
        self._wanted: dict[Key, Mapping[str, Any]] = {}
        self._queue: asyncio.Queue[Key] = asyncio.Queue()

    async def run(self) -> None:
        """Until cancelled. A pod is in the queue once at most, with its newest state."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            for _ in range(WORKERS):
                tasks.create_task(self._work())

    async def _follow(self) -> None:
        async for kind, pod in self._api.follow(SCHEDULED_PODS):
            if kind == "SYNC":
                self._pods.clear()
                continue
            if kind not in {"ADDED", "MODIFIED", "DELETED"}:
                continue
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self._count(kind, key, pod)
            if kind != "DELETED" and deed(pod, self._address) is not None:
                if key not in self._wanted:
                    self._queue.put_nowait(key)
                self._wanted[key] = pod

    def _count(self, kind: str, key: Key, pod: Mapping[str, Any]) -> None:
        inference = (pod["metadata"].get("labels") or {}).get(_INFERENCE_LABEL)
        if inference is None:
            return
        owner = key[0], inference
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"] or not is_ready(pod):
            self._pods.drop(owner, key[1])
        else:
            self._pods.put(owner, key[1])

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            pod = self._wanted.pop(key)
            method, path, body = deed(pod, self._address) or ("", "", {})
            try:
                await self._api.call(method, path, body)
            except RefusedError as error:
                # Somebody changed or ended it meanwhile: then another event is on its way.
                if error.status != 409:
                    raise
            except (OSError, aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(_AGAIN_S)
                if key not in self._wanted:
                    self._wanted[key] = pod
                    self._queue.put_nowait(key)


def deed(pod: Mapping[str, Any], address: str = ADDRESS) -> tuple[str, str, Mapping[str, Any]] | None:
    """What a kubelet does about a pod, as method, path and body of a request; None: nothing. `address` is to be the pod's."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        return "DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
    if pod["spec"].get("nodeName") and not is_ready(pod):
        return (
            "PATCH",
            f"{path}/status",
            {"metadata": {"uid": metadata["uid"]}, "status": running(pod, address)},
        )
    return None


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether it says that it answers."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def running(pod: Mapping[str, Any], address: str = ADDRESS) -> Mapping[str, Any]:
    """The status of a pod all of whose containers run.

    `address` is where a stand-in answers for its agent.
    """
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in _CONDITIONS]
    spec = pod["spec"]
    # A sidecar is an init container that goes on running.
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": told,
        "initContainerStatuses": [_runs(each, now) for each in sidecars],
        "containerStatuses": [_runs(each, now) for each in spec["containers"]],
    }


def _runs(container: Mapping[str, Any], now: str) -> Mapping[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "simulated",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
