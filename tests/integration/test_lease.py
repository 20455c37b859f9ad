"""Two candidates for one Lease in a real API server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders.candidates import two_candidates
from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import LEASE
from tidegate.kube.lease import LeaseClient, LeaseRecord

pytestmark = pytest.mark.usefixtures("all_closed")


async def test_a_clean_release_hands_over(kubeconfig: Path, file_namespace: str) -> None:
    async with two_candidates(kubeconfig, file_namespace) as (first, second):
        await first.stop()
        assert not first.writes
        await eventually(lambda: second.writes, what="the second leads")
        assert first.fence is not None
        assert second.fence is not None
        assert second.fence.epoch > first.fence.epoch


async def test_a_killed_leader_is_replaced_and_never_overlaps(kubeconfig: Path, file_namespace: str) -> None:
    async with two_candidates(kubeconfig, file_namespace) as (first, second):
        fence = first.fence
        assert fence is not None
        await first.kill()
        await eventually(lambda: second.writes, what="the second leads")
        assert not fence.is_valid()


async def test_the_lease_shows_who_leads_and_in_which_term(
    kubeconfig: Path, file_namespace: str, client: KubeClient
) -> None:
    async with two_candidates(kubeconfig, file_namespace) as (first, _):
        body = await client.get(LEASE, ObjectKey(file_namespace, "tidegate-controllers"))
        assert body is not None
        assert first.fence is not None
        assert body["spec"]["holderIdentity"] == "first"
        assert body["spec"]["leaseTransitions"] == first.fence.epoch
        assert body["spec"]["leaseDurationSeconds"] == 10


async def test_of_two_writes_to_one_lease_one_wins(
    client: KubeClient, kubeconfig: Path, file_namespace: str
) -> None:
    async with two_candidates(kubeconfig, file_namespace) as (first, _):
        lease = LeaseClient(client, ObjectKey(file_namespace, "tidegate-controllers"))

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
