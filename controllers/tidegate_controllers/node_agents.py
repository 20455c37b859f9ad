"""The agents of GPU nodes: follows each of them, keeps what it last said, and wakes whoever cares."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from tidegate.errors import AgentUnreachableError
from tidegate.kube.store import ObjectStore
from tidegate.planning.node_sharing import Heard
from tidegate.planning.pods import pod_view
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_dataplane.contract.sharing import NodeOrder, NodeReport

_PODS_EVERY_S: Final = 0.5
_RETRY_S: Final = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Followed:
    address: str
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Last:
    """What a node's agent said last, and when; before its first word, since when somebody wants to hear it."""

    at: float
    """On the monotonic clock."""
    report: NodeReport | None = None


class NodeAgents:
    """One call to each agent is always under way: it answers as soon as something has changed on its node."""

    def __init__(self, pods: ObjectStore, client: NodeAgentClient) -> None:
        """`pods` are the node agents' own pods."""
        self._pods = pods
        self._client = client
        self._followed: dict[str, _Followed] = {}
        self._last: dict[str, _Last] = {}
        self._subscribers: list[Callable[[str], None]] = []

    def subscribe(self, subscriber: Callable[[str], None]) -> None:
        """Calls `subscriber` with each node about which something else is said."""
        self._subscribers.append(subscriber)

    def heard(self, node: str) -> Heard:
        """What a node's agent last said, be it of a pod that is gone since: an upgrade replaces it within seconds."""
        last = self._last.setdefault(node, _Last(time.monotonic()))
        return Heard(last.report, timedelta(seconds=time.monotonic() - last.at))

    async def send(self, node: str, order: NodeOrder) -> None:
        """Gives an order.

        Raises AgentUnreachableError, and LeadershipLostError when the agent has heard from a newer leader.
        """
        found = self._followed.get(node)
        if found is None:
            message = f"no node agent runs on {node}"
            raise AgentUnreachableError(message)
        self._take(node, await self._client.send(found.address, order))

    def ask_again(self, node: str) -> None:
        """Has a node's agent say at once how things are, changed or not."""
        followed = self._followed.pop(node, None)
        if followed is not None:
            followed.task.cancel()

    async def run(self) -> None:
        """Follows the agents whose pods run, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._follow_pods(tasks)
                await asyncio.sleep(_PODS_EVERY_S)

    def _follow_pods(self, tasks: asyncio.TaskGroup) -> None:
        wanted: dict[str, str] = {}
        for body in self._pods:
            view, node = pod_view(body), (body.get("spec") or {}).get("nodeName")
            if node and view.reachable and view.address:
                wanted[node] = view.address
        for node, followed in tuple(self._followed.items()):
            if wanted.get(node) != followed.address:
                followed.task.cancel()
                del self._followed[node]
        for node, address in wanted.items():
            if node not in self._followed:
                task = tasks.create_task(self._follow(node, address), name=f"follow-{node}")
                self._followed[node] = _Followed(address, task)

    async def _follow(self, node: str, address: str) -> None:
        known = ""  # a new pod's first word is waited for by nobody
        while True:
            try:
                report = await self._client.report(address, known)
            except AgentUnreachableError as error:
                log.debug("node_agent_silent", node=node, error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            known = report.revision
            self._take(node, report)

    def _take(self, node: str, report: NodeReport) -> None:
        before = self._last.get(node)
        self._last[node] = _Last(time.monotonic(), report)
        if before is None or before.report is None or before.report.revision != report.revision:
            for subscriber in self._subscribers:
                subscriber(node)
