"""Candidates for one Lease in a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.lease import LeaseClient
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.leader import Election


class Candidate:
    """One process of two."""

    def __init__(self, client: KubeClient, namespace: str, identity: str) -> None:
        self.client = client
        self.election = Election(
            LeaseClient(client, ObjectKey(namespace, "tidegate-controllers")), identity, clock=SystemClock()
        )
        self.fence: Fence | None = None
        self.task = asyncio.create_task(self.election.run(self._lead))

    @property
    def writes(self) -> bool:
        """Whether it leads, and may write."""
        return self.fence is not None and self.fence.is_valid()

    async def _lead(self, fence: Fence) -> None:
        self.fence = fence
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End in good order."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def kill(self) -> None:
        """As if the process were gone: nothing is given back."""
        self.election._record = None
        await self.stop()
        # Last: who is cut off while a connection is made leaves it open.
        await self.client.close()


@asynccontextmanager
async def two_candidates(kubeconfig: Path, namespace: str) -> AsyncIterator[tuple[Candidate, Candidate]]:
    """The first leads; the second waits."""
    settings = ClientSettings(field_manager="tidegate-test")
    async with (
        await KubeClient.connect(settings, kubeconfig=kubeconfig) as one,
        await KubeClient.connect(settings, kubeconfig=kubeconfig) as other,
    ):
        first = Candidate(one, namespace, "first")
        await eventually(lambda: first.writes, what="the first leads")
        second = Candidate(other, namespace, "second")
        try:
            yield first, second
        finally:
            await first.stop()
            await second.stop()
