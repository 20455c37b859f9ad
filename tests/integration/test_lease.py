"""Two candidates for one Lease in a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders.waiting import eventually
from fixtures.stopwatch import Stopwatch
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import LEASE
from tidegate.kube.lease import LeaseClient, LeaseRecord
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.leader import Election

pytestmark = pytest.mark.usefixtures("all_closed")


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
        return self.fence is not None and self.fence.valid()

    async def _lead(self, fence: Fence) -> None:
        self.fence = fence
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def kill(self) -> None:
        """As if the process were gone: nothing is given back."""
        self.election._held = None
        await self.stop()
        # Last: who is cut off while a connection is made leaves it open.
        await self.client.close()


@asynccontextmanager
async def two(kubeconfig: Path, namespace: str) -> AsyncIterator[tuple[Candidate, Candidate]]:
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


async def test_a_clean_release_hands_over_within_two_seconds(kubeconfig: Path, namespace: str) -> None:
    async with two(kubeconfig, namespace) as (first, second):
        await first.stop()
        with Stopwatch() as watch:
            assert not first.writes
            await eventually(lambda: second.writes, what="the second leads", timeout_s=30)
        assert watch.seconds < 2.0
        assert first.fence is not None
        assert second.fence is not None
        assert second.fence.epoch > first.fence.epoch


async def test_a_killed_leader_is_replaced_within_15_seconds_and_never_overlaps(
    kubeconfig: Path, namespace: str
) -> None:
    async with two(kubeconfig, namespace) as (first, second):
        fence = first.fence
        assert fence is not None
        await first.kill()
        with Stopwatch() as watch:
            await eventually(lambda: second.writes, what="the second leads", timeout_s=60)
        assert watch.seconds < 15.0
        assert not fence.valid()


async def test_the_lease_shows_who_leads_and_in_which_term(
    kubeconfig: Path, namespace: str, client: KubeClient
) -> None:
    async with two(kubeconfig, namespace) as (first, _):
        body = await client.get(LEASE, ObjectKey(namespace, "tidegate-controllers"))
        assert body is not None
        assert first.fence is not None
        assert body["spec"]["holderIdentity"] == "first"
        assert body["spec"]["leaseTransitions"] == first.fence.epoch
        assert body["spec"]["leaseDurationSeconds"] == 10


async def test_of_two_writes_to_one_lease_one_wins(
    client: KubeClient, kubeconfig: Path, namespace: str
) -> None:
    async with two(kubeconfig, namespace) as (first, _):
        lease = LeaseClient(client, ObjectKey(namespace, "tidegate-controllers"))

        async def renewed() -> LeaseRecord:
            """What it was before this write; its holder may renew between reading and writing."""
            while True:
                seen = await lease.read()
                assert seen is not None
                assert seen.holder == "first"
                with suppress(ConflictError):
                    await lease.write(
                        replace(seen, renewed_at=datetime.now(UTC)), within=timedelta(seconds=5)
                    )
                    return seen

        seen = await renewed()
        with pytest.raises(ConflictError):
            await lease.write(seen, within=timedelta(seconds=5))
        await eventually(lambda: first.writes, what="the first finds that it still holds it")
