"""A kubelet of one node without containers: runs the agent of each pod that is bound to it, and tells its status."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from faults.agents import OrderGate, PodAgent, PodFacts
from tidegate_localcluster.fleet_demo.api import ApiServerClient, RefusedError

NODE: Final = "sweep-1"
_READINESS_S: Final = 0.05


def a_node() -> dict[str, Any]:
    """A node with room for everything, which never turns not-ready since nobody watches its heartbeat."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Sweep"}],
        },
    }


@dataclass(slots=True)
class _PodLife:
    agent: PodAgent
    ending: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Watched:
    """What the kubelet has seen in one namespace since it was asked to look."""

    namespace: str
    inference: str = ""
    """Whose pods `least_ready` counts; empty: everybody's."""
    made: int = 0
    least_ready: int = 1_000
    most: int = 0
    """Pods that were there at once, those without a node and those on their way out included."""


class Kubelet:
    """Runs pods; use it as an async context manager."""

    def __init__(self, api: ApiServerClient, folder: Path, models: Path, gate: OrderGate) -> None:
        self._api = api
        self._folder = folder
        self._models = models
        self._gate = gate
        self._pods: dict[str, _PodLife] = {}
        self._ever: defaultdict[str, list[PodAgent]] = defaultdict(list)
        self._ready: dict[str, bool] = {}
        self._there: defaultdict[str, set[str]] = defaultdict(set)
        self.drain_s = 0.0
        """How long a pod takes to end."""
        self._config_maps: dict[str, str] = {}
        self._addresses = (f"127.88.{n // 250}.{n % 250 + 1}" for n in itertools.count())
        self._tasks = asyncio.TaskGroup()
        self._watching: asyncio.Task[None] | None = None
        self.touched_at = time.monotonic()
        self.watched = Watched("")

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._watching = self._tasks.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for life in self._pods.values():
            life.ending.set()
        await self._tasks.__aexit__(kind, error, trace)

    def agents(self, namespace: str) -> list[PodAgent]:
        """The agents that run in a namespace, by pod name."""
        found = [life.agent for life in self._pods.values() if life.agent.facts.namespace == namespace]
        return sorted(found, key=lambda agent: agent.facts.name)

    async def deliver(self, namespace: str) -> None:
        """Brings the pods of a namespace what their ConfigMaps say by now."""
        for agent in self.agents(namespace):
            if agent.ready and (found := await self._api.get(self._config_maps[agent.facts.uid])) is not None:
                agent.mount(found["data"])

    def ever(self, namespace: str) -> list[PodAgent]:
        """All agents that ever ran in a namespace, in the order of their start."""
        return self._ever[namespace]

    def look(self, namespace: str, inference: str = "") -> None:
        """From now on `watched` tells of this namespace."""
        self.watched = Watched(namespace, inference)
        self._count()

    async def _watch(self) -> None:
        async for kind, pod in self._api.list_and_watch("/api/v1/pods"):
            if kind == "SYNC":
                continue
            self._see(kind, pod["metadata"])
            if kind in {"ADDED", "MODIFIED"}:
                self._take(pod)
            elif kind == "DELETED" and (life := self._pods.get(pod["metadata"]["uid"])):
                life.ending.set()

    def _see(self, kind: str, metadata: Mapping[str, Any]) -> None:
        there = self._there[metadata["namespace"]]
        (there.discard if kind == "DELETED" else there.add)(metadata["uid"])
        if metadata["namespace"] == self.watched.namespace:
            self.watched.most = max(self.watched.most, len(there))

    def _take(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        life = self._pods.get(metadata["uid"])
        if life is not None:
            if "deletionTimestamp" in metadata:
                life.ending.set()
        elif pod["spec"].get("nodeName") == NODE and pod.get("status", {}).get("phase") == "Pending":
            facts = PodFacts(metadata["name"], metadata["uid"], metadata["namespace"], next(self._addresses))
            agent = PodAgent(facts, self._folder / metadata["uid"], self._models, self._gate)
            life = self._pods[metadata["uid"]] = _PodLife(agent)
            self._ever[facts.namespace].append(agent)
            if facts.namespace == self.watched.namespace:
                self.watched.made += 1
            self._tasks.create_task(self._live(pod, life))

    async def _live(self, pod: Mapping[str, Any], life: _PodLife) -> None:
        facts = life.agent.facts
        started = asyncio.create_task(self._start(pod, life.agent))
        ended = asyncio.create_task(life.ending.wait())
        await asyncio.wait({started, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
        while not life.ending.is_set():
            if life.agent.ready != self._ready.get(facts.uid, False):
                await self._say(pod, life.agent)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.ending.wait(), _READINESS_S)
        self._ready.pop(facts.uid, None)
        self._count()
        await asyncio.sleep(self.drain_s)
        self._forget(facts.uid)
        await life.agent.stop()
        path = f"/api/v1/namespaces/{facts.namespace}/pods/{facts.name}"
        with contextlib.suppress(RefusedError):
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": facts.uid}}
            await self._api.call("DELETE", path, body)
        await asyncio.to_thread(shutil.rmtree, life.agent.folder, ignore_errors=True)

    async def _start(self, pod: Mapping[str, Any], agent: PodAgent) -> None:
        """Waits for the ConfigMap as a kubelet does, then starts the agent and says that it runs."""
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        name, namespace = volumes["desired"]["configMap"]["name"], agent.facts.namespace
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        while (found := await self._api.get(path)) is None:  # noqa: ASYNC110 - the API server sets no Event
            await asyncio.sleep(0.05)
        self._config_maps[agent.facts.uid] = path
        await agent.start(found["data"])
        await self._say(pod, agent)

    async def _say(self, pod: Mapping[str, Any], agent: PodAgent) -> None:
        ready = agent.ready
        facts = agent.facts
        self.touched_at = time.monotonic()
        kept = [
            condition
            for condition in pod["status"].get("conditions", ())
            if condition["type"] not in {"Ready", "ContainersReady", "Initialized"}
        ]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = [
            {"type": kind, "status": str(holds), "lastTransitionTime": now}
            for kind, holds in (("Initialized", True), ("ContainersReady", ready), ("Ready", ready))
        ]
        status = {
            "phase": "Running",
            "podIP": facts.address,
            "podIPs": [{"ip": facts.address}],
            "conditions": [*kept, *told],
        }
        path = f"/api/v1/namespaces/{facts.namespace}/pods/{facts.name}/status"
        with contextlib.suppress(RefusedError):
            await self._api.call("PATCH", path, {"metadata": {"uid": facts.uid}, "status": status})
        self._ready[facts.uid] = ready
        self._count()

    def _forget(self, uid: str) -> None:
        self.touched_at = time.monotonic()
        self._pods.pop(uid, None)
        self._ready.pop(uid, None)
        self._count()

    def _count(self) -> None:
        watched = self.watched
        ready = sum(
            self._ready.get(uid, False)
            for uid, life in self._pods.items()
            if life.agent.facts.namespace == watched.namespace
            and life.agent.facts.name.startswith(f"inf-{watched.inference}")
        )
        watched.least_ready = min(watched.least_ready, ready)
