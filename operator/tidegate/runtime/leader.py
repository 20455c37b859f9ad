"""Leader election on a Lease of our own: one process writes, in numbered epochs, and stops by itself in time."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, TypeAlias

import structlog

from tidegate.errors import ApiUnavailableError, TidegateError
from tidegate.kube.fence import Fence
from tidegate.kube.lease import LeaseRecord
from tidegate.runtime.clock import Clock

# The leader's work; it is cancelled when the term ends, and must then end soon.
Lead: TypeAlias = Callable[[Fence], Awaitable[None]]

# Epochs are numbered by the time of their start, so that a deleted Lease or a restored etcd never repeats a number that
# agents or admission policies have seen. They fit an int32 until 2094.
_EPOCH_ZERO: Final = datetime(2026, 1, 1, tzinfo=UTC)

log: Final = structlog.stdlib.get_logger()


class LeaseStore(Protocol):
    """Store of the lease; kube.lease.LeaseClient in a cluster."""

    async def read(self) -> LeaseRecord | None:
        """Return the record, or None when there has never been one."""
        ...

    async def write(self, record: LeaseRecord, *, within: timedelta) -> LeaseRecord:
        """Write the record if it has not changed since it was read; raise ConflictError when it has."""
        ...


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Delays that decide how soon a dead leader is replaced, and how often the API server is asked."""

    lease_duration: timedelta = timedelta(seconds=10)
    """Time without a renewal after which a follower takes over."""
    write_until: timedelta = timedelta(seconds=8)
    """Time from the start of the last renewal after which the leader stops writing; less than lease_duration."""
    renew_every: timedelta = timedelta(seconds=2)
    retry_every: timedelta = timedelta(seconds=1)
    """Interval in which a follower reads the lease; it takes a released one within this."""
    request_timeout: timedelta = timedelta(seconds=3)


@dataclass(slots=True)
class _Sighting:
    """Last record of another process, and when we saw it by our own clock: clocks of two machines differ."""

    record: LeaseRecord | None = None
    seen_at: float = field(default=float("-inf"))


class Election:
    """Campaign for the lease, lead while this process holds it, and campaign again.

    `identity` must be unique for each process, not each pod: a restarted process is another candidate.
    """

    def __init__(
        self, store: LeaseStore, identity: str, *, clock: Clock, settings: ElectionSettings | None = None
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._settings = settings or ElectionSettings()
        self._sighting = _Sighting()
        self._record: LeaseRecord | None = None
        self._write_until = float("-inf")
        self._last_attempt_at = clock.monotonic()

    @property
    def is_leading(self) -> bool:
        """Return whether this process may write now."""
        return self._record is not None and self._clock.monotonic() < self._write_until

    def check_liveness(self) -> str | None:
        """Return the failure for a probe when the election has stopped running, else None."""
        silent = self._clock.monotonic() - self._last_attempt_at
        return None if silent < 60 else f"election: no look at the lease for {silent:.0f} s"

    async def run(self, lead: Lead) -> None:
        """Campaign and lead until cancelled, or until `lead` returns; then release the lease.

        An exception of `lead` passes through after the lease is released.
        """
        while True:
            fence = await self._win_lease()
            log.info("leading", epoch=fence.epoch, identity=self._identity)
            try:
                if await self._lead_epoch(lead, fence):
                    return
            finally:
                await self._release_lease()
            log.warning("leadership_lost", epoch=fence.epoch, identity=self._identity)

    async def _win_lease(self) -> Fence:
        """Wait until the lease is ours and return its fence."""
        while True:
            try:
                fence = await self._try_to_acquire()
            except TidegateError as exc:
                log.warning("election_failed", error=str(exc))
                fence = None
            if fence is not None:
                return fence
            await self._clock.sleep(self._add_jitter(self._settings.retry_every))

    async def _try_to_acquire(self) -> Fence | None:
        self._last_attempt_at = self._clock.monotonic()
        current = await self._read_lease()
        if current is not None and self._is_held_by_another(current):
            return None
        return await self._acquire_lease(current)

    async def _read_lease(self) -> LeaseRecord | None:
        try:
            async with asyncio.timeout(self._settings.request_timeout.total_seconds()):
                return await self._store.read()
        except TimeoutError as exc:
            message = (
                f"the lease could not be read within {self._settings.request_timeout.total_seconds():.0f} s"
            )
            raise ApiUnavailableError(message) from exc

    def _is_held_by_another(self, current: LeaseRecord) -> bool:
        """Return whether the holder may be alive: the record has changed within its duration, by our own clock."""
        if not current.holder:
            return False
        if self._sighting.record != current:
            self._sighting = _Sighting(current, self._clock.monotonic())
        return self._clock.monotonic() < self._sighting.seen_at + current.duration.total_seconds()

    async def _acquire_lease(self, current: LeaseRecord | None) -> Fence | None:
        now = self._clock.now()
        transitions = max(
            (current.transitions if current else 0) + 1, int((now - _EPOCH_ZERO).total_seconds())
        )
        record = LeaseRecord(
            holder=self._identity,
            duration=self._settings.lease_duration,
            transitions=transitions,
            acquired_at=now,
            renewed_at=now,
            resource_version=current.resource_version if current else "",
        )
        await self._write_record(record)
        return Fence(
            transitions, deadline=lambda: self._deadline_of(transitions), monotonic=self._clock.monotonic
        )

    def _deadline_of(self, epoch: int) -> float:
        """Return when the fence of `epoch` closes.

        The fence of an earlier epoch must not open again with the next one.
        """
        current = self._record is not None and self._record.transitions == epoch
        return self._write_until if current else float("-inf")

    async def _write_record(self, record: LeaseRecord) -> None:
        """Write our record; the right to write counts from before the request, because its fate may be unknown."""
        started = self._clock.monotonic()
        self._record = await self._store.write(record, within=self._settings.request_timeout)
        self._write_until = started + self._settings.write_until.total_seconds()

    async def _lead_epoch(self, lead: Lead, fence: Fence) -> bool:
        """Lead until the epoch ends; return True when `lead` returned by itself."""
        work = asyncio.ensure_future(lead(fence))
        renewing = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            finished = work.done()
        finally:
            # Cancel the work first: the lease stays ours while it winds down.
            await _cancel_and_wait(work)
            await _cancel_and_wait(renewing)
        if finished:
            work.result()
        return finished

    async def _renew_until_lost(self) -> None:
        pause = self._settings.renew_every
        while self.is_leading:
            await self._clock.sleep(min(pause.total_seconds(), self._remaining_s()))
            self._last_attempt_at = self._clock.monotonic()
            try:
                await self._renew_lease()
                pause = self._settings.renew_every
            except TidegateError as exc:
                log.warning("renewal_failed", error=str(exc), seconds_left=round(self._remaining_s(), 1))
                # An outage is often short: use the last seconds of the term for several attempts.
                pause = self._settings.retry_every / 2

    async def _renew_lease(self) -> None:
        if self._record is None or not self.is_leading:
            return
        try:
            await self._write_record(replace(self._record, renewed_at=self._clock.now()))
        except TidegateError:
            # The response may be lost although the write succeeded, or another process holds the lease: read it.
            current = await self._read_lease()
            if current is None or (current.holder, current.transitions) != (
                self._identity,
                self._record.transitions,
            ):
                self._write_until = float("-inf")
            else:
                self._record = current
            raise

    async def _release_lease(self) -> None:
        """Release the lease, so that the next leader starts at once instead of after it expires."""
        record, self._record = self._record, None
        expired = self._remaining_s() <= 0
        self._write_until = float("-inf")
        if record is None or expired:
            return
        released = replace(record, holder="", renewed_at=self._clock.now(), duration=timedelta(seconds=1))
        try:
            await self._store.write(released, within=self._settings.request_timeout)
        except TidegateError as exc:
            log.warning("release_failed", error=str(exc))

    def _remaining_s(self) -> float:
        return max(0.0, self._write_until - self._clock.monotonic())

    @staticmethod
    def _add_jitter(length: timedelta) -> float:
        # Two followers that read at the same moment would conflict; the jitter needs no seed.
        return length.total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311


def make_candidate_name(pod: str) -> str:
    """Return the pod's name with a random suffix: a restarted process is another candidate."""
    return f"{pod}_{uuid.uuid4().hex[:8]}"


async def _cancel_and_wait(task: asyncio.Future[None]) -> None:
    """Cancel the task and wait until it has ended; the caller reads its result."""
    task.cancel()
    await asyncio.wait({task})
