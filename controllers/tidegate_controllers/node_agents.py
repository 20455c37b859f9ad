"""Follows the agents of GPU nodes, and keeps the last report of each."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from tidegate.errors import AgentUnreachableError
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import ViewCache
from tidegate.planning.gpu_sharing.node_sharing import NodeAgentReport
from tidegate.planning.pods import parse_pod
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_dataplane.contract.sharing import NodeReport

_PODS_EVERY_S: Final = 0.5
_RETRY_S: Final = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Follower:
    address: str
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class _Received:
    """The last report of a node's agent, and when it came; without a report, when we began to wait for one."""

    time: float
    """On the monotonic clock."""
    report: NodeReport | None = None


class NodeAgents:
    """Keeps one call to each agent open: the agent answers as soon as its report changes."""

    def __init__(self, pods: ObjectStore, client: NodeAgentClient) -> None:
        """`pods` are the node agents' own pods."""
        self._pods = ViewCache(pods, parse_pod)
        self._client = client
        self._followers: dict[str, _Follower] = {}
        self._received: dict[str, _Received] = {}
        self._subscribers: list[Callable[[str], None]] = []

    def subscribe(self, subscriber: Callable[[str], None]) -> None:
        """Call `subscriber` with each node whose report has changed."""
        self._subscribers.append(subscriber)

    def last_report(self, node: str) -> NodeAgentReport:
        """Return the last report from a node, even if the agent's pod has gone: an upgrade replaces it within seconds."""
        received = self._received.setdefault(node, _Received(time.monotonic()))
        return NodeAgentReport(received.report, timedelta(seconds=time.monotonic() - received.time))

    async def run(self) -> None:
        """Follow the agents whose pods run, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._follow_pods(tasks)
                await asyncio.sleep(_PODS_EVERY_S)

    def _follow_pods(self, tasks: asyncio.TaskGroup) -> None:
        addresses: dict[str, str] = {}
        for pod in self._pods.list_all():
            if pod.node and pod.is_reachable and pod.address:
                addresses[pod.node] = pod.address
        for node, follower in tuple(self._followers.items()):
            if addresses.get(node) != follower.address:
                follower.task.cancel()
                del self._followers[node]
        for node, address in addresses.items():
            if node not in self._followers:
                task = tasks.create_task(self._follow_agent(node, address), name=f"follow-{node}")
                self._followers[node] = _Follower(address, task)

    async def _follow_agent(self, node: str, address: str) -> None:
        revision = ""  # the first report of a new pod comes at once
        while True:
            try:
                report = await self._client.get_report(address, revision)
            except AgentUnreachableError as error:
                log.debug("node_agent_silent", node=node, error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            revision = report.revision
            self._take_report(node, report)

    def _take_report(self, node: str, report: NodeReport) -> None:
        before = self._received.get(node)
        self._received[node] = _Received(time.monotonic(), report)
        if before is None or before.report is None or before.report.revision != report.revision:
            for subscriber in self._subscribers:
                subscriber(node)
