"""The election with a fake clock and a fake lease: never two who may write, and a quick next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from builders.fake_clock import FakeClock, settle
from tidegate.errors import ApiUnavailableError, ConflictError, PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.lease import LeaseRecord
from tidegate.runtime.leader import Election


class FakeLease:
    """One lease in memory, with the API server's optimistic lock, and its failures on demand."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.writes = 0
        self.down = False
        self.lose_answers = False

    async def read(self) -> LeaseRecord | None:
        self._check()
        return self.record

    async def write(self, record: LeaseRecord, *, within: timedelta) -> LeaseRecord:
        assert within > timedelta()
        self._check()
        current = self.record.resource_version if self.record else ""
        if record.resource_version != current:
            raise ConflictError("changed meanwhile")
        self.writes += 1
        self.record = replace(record, resource_version=str(self.writes))
        if self.lose_answers:
            raise ApiUnavailableError("connection lost")
        return self.record

    def _check(self) -> None:
        if self.down:
            raise ApiUnavailableError("down")


class Candidate:
    """One process: its election, its own clock, and what it did."""

    def __init__(self, lease: FakeLease, identity: str) -> None:
        self.clock = FakeClock()
        self.election = Election(lease, identity, clock=self.clock)
        self.fences: list[Fence] = []
        self.ended = 0

    async def lead(self, fence: Fence) -> None:
        self.fences.append(fence)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    @property
    def writes(self) -> bool:
        return any(fence.is_valid() for fence in self.fences)


@asynccontextmanager
async def campaigning(*candidates: Candidate) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(candidate.election.run(candidate.lead)) for candidate in candidates]
    await settle()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def pass_time(seconds: float, *candidates: Candidate) -> None:
    """Moves all clocks alike, in small steps, and checks at each that at most one may write."""
    for _ in range(int(seconds * 10)):
        for candidate in candidates:
            await candidate.clock.advance(0.1)
        assert sum(candidate.writes for candidate in candidates) <= 1


async def test_one_of_two_leads_and_keeps_leading() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    async with campaigning(a, b):
        await pass_time(60, a, b)
        assert (len(a.fences), len(b.fences)) == (1, 0)
        assert a.writes


async def test_a_killed_leader_is_replaced_within_15_seconds() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    async with campaigning(a, b):
        await pass_time(5, a, b)
        await pass_time(15, b)  # a's clock stands still: it is not even running
        assert b.writes
        assert b.fences[0].epoch > a.fences[0].epoch


async def test_a_leader_that_was_stopped_and_goes_on_writes_nothing() -> None:
    """SIGSTOP for a minute: by its own clock the right has ended before it can do anything."""
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    async with campaigning(a, b):
        await pass_time(5, a, b)
        await pass_time(60, b)
        a.clock._monotonic += 60
        assert not a.writes
        await pass_time(5, a, b)
        assert (a.ended, b.writes) == (1, True)


async def test_a_lease_that_is_given_back_is_taken_within_two_seconds() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    async with campaigning(a, b) as (first, _):
        await pass_time(5, a, b)
        first.cancel()
        await asyncio.wait({first})
        assert not a.writes
        await pass_time(2, b)
        assert b.writes


async def test_when_the_api_server_is_away_the_leader_stops_before_anyone_could_take_over() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    async with campaigning(a, b):
        await pass_time(5, a, b)
        lease.down = True
        await pass_time(9, a, b)
        assert not a.writes
        assert a.ended == 1
        lease.down = False
        await pass_time(15, a, b)
        assert a.writes or b.writes


async def test_a_short_outage_does_not_end_the_term() -> None:
    lease = FakeLease()
    a = Candidate(lease, "a")
    async with campaigning(a):
        await pass_time(5, a)
        lease.down = True
        await pass_time(5, a)
        lease.down = False
        await pass_time(20, a)
        assert (len(a.fences), a.ended) == (1, 0)


async def test_a_renewal_whose_answer_was_lost_is_found_and_kept() -> None:
    lease = FakeLease()
    a = Candidate(lease, "a")
    async with campaigning(a):
        await pass_time(1, a)
        lease.lose_answers = True
        await pass_time(4, a)
        lease.lose_answers = False
        await pass_time(20, a)
        assert (len(a.fences), a.ended) == (1, 0)


async def test_a_lease_taken_by_force_ends_the_term_at_once() -> None:
    lease = FakeLease()
    a = Candidate(lease, "a")
    async with campaigning(a):
        await pass_time(5, a)
        assert lease.record is not None
        lease.record = replace(lease.record, holder="somebody", resource_version="forced")
        await pass_time(2.5, a)
        assert (a.ended, a.writes) == (1, False)


async def test_a_deleted_lease_never_repeats_an_epoch() -> None:
    lease = FakeLease()
    a = Candidate(lease, "a")
    async with campaigning(a):
        await pass_time(5, a)
        lease.record = None
        await pass_time(5, a)
        first, second = a.fences
        assert second.epoch > first.epoch
        assert not first.is_valid()
        assert second.is_valid()


async def test_epochs_grow_even_when_the_wall_clock_is_set_back() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    b.clock._now -= timedelta(hours=1)
    async with campaigning(a, b):
        await pass_time(5, a, b)
        await pass_time(15, b)
        assert b.fences[0].epoch == a.fences[0].epoch + 1


async def test_two_clocks_that_disagree_by_an_hour_do_not_hurt() -> None:
    lease = FakeLease()
    a, b = Candidate(lease, "a"), Candidate(lease, "b")
    b.clock._now += timedelta(hours=1)
    async with campaigning(a, b):
        await pass_time(30, a, b)
        assert a.writes
        assert not b.fences


async def test_what_the_leader_raises_comes_out_after_the_lease_was_given_back() -> None:
    lease = FakeLease()
    election = Election(lease, "a", clock=FakeClock())

    async def lead(_: Fence) -> None:
        message = "no CRDs"
        raise PermanentError(message)

    with pytest.raises(PermanentError, match="no CRDs"):
        await election.run(lead)
    assert lease.record is not None
    assert lease.record.holder == ""


async def test_a_leader_that_has_finished_gives_the_lease_back() -> None:
    lease = FakeLease()
    election = Election(lease, "a", clock=FakeClock())

    async def lead(_: Fence) -> None:
        assert election.is_leading

    await election.run(lead)
    assert not election.is_leading
    assert lease.record is not None
    assert lease.record.holder == ""


async def test_liveness_speaks_up_when_the_election_stops_looking() -> None:
    a = Candidate(FakeLease(), "a")
    assert a.election.check_liveness() is None
    a.clock._monotonic += 61
    assert a.election.check_liveness() == "election: no look at the lease for 61 s"
