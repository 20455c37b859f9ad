"""Where room is left on nodes, looked up only while a pod of ours waits for some."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import TidegateError
from tidegate.kube.kinds import NODE, POD
from tidegate.kube.port import Cluster, Manifest
from tidegate.planning.pods import PodView
from tidegate.planning.room import NodeRoom, lacking, node_room, open_nodes
from tidegate.runtime.clock import Clock

_KEPT_S: Final = 10.0
"""However many objects wait for room, nodes are not asked more often."""
_LARGEST: Final = 5
"""Nodes whose pods are listed: of a large cluster, those that have most of what is lacking."""


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    rooms: tuple[NodeRoom, ...]


class Room:
    """Asks the API server for the largest nodes and their pods, at most once in ten seconds for each resource."""

    def __init__(self, cluster: Cluster | None, clock: Clock) -> None:
        """Without a cluster nobody says: who serves some namespaces alone may not look at nodes."""
        self._cluster = cluster
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        # Many objects begin to wait at once; one of their workers asks for all.
        self._asking = asyncio.Lock()

    async def for_pods(self, pods: Sequence[PodView]) -> tuple[NodeRoom, ...]:
        """The nodes with most of what these pods lack; none when they lack nothing, or nobody says."""
        lacks = [name for pod in pods if not pod.terminating for name in lacking(pod.unschedulable)]
        rooms = [room for name in dict.fromkeys(lacks) for room in await self._with_most(name)]
        return tuple({room.name: room for room in rooms}.values())

    async def _with_most(self, resource: str) -> tuple[NodeRoom, ...]:
        async with self._asking:
            seen, now_s = self._seen.get(resource), self._clock.monotonic()
            if seen is None or now_s - seen.at_s >= _KEPT_S:
                seen = self._seen[resource] = _Seen(now_s, await self._look(resource))
            return seen.rooms

    async def _look(self, resource: str) -> tuple[NodeRoom, ...]:
        if self._cluster is None:
            return ()
        try:
            nodes = open_nodes(await self._cluster.list(NODE), resource)[:_LARGEST]
            return tuple([node_room(node, await _pods_on(self._cluster, node)) for node in nodes])
        except TidegateError:
            return ()  # the figures are a help; the scheduler's own words are there without them


async def _pods_on(cluster: Cluster, node: Manifest) -> Sequence[Manifest]:
    return await cluster.list(POD, fields=f"spec.nodeName={node['metadata']['name']}")
