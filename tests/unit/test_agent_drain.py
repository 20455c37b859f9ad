from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from builders.waiting import ends_in_time
from tidegate_dataplane.agent import drain
from tidegate_dataplane.agent.drain import Drain


class Counts:
    """A server whose request counter reads as given; each look takes one second."""

    def __init__(self, counts: Sequence[int | None]) -> None:
        self._counts = list(counts)
        self.now_s = 0.0
        self.looks = 0

    async def request_count(self) -> int | None:
        self.looks += 1
        self.now_s += 1.0
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "POLL_INTERVAL_S", 0)


async def drained(counts: Counts, *, quiet_s: float = 2.0, limit_s: float = 20.0) -> Drain:
    draining = Drain(counts, quiet_s=quiet_s, limit_s=limit_s, clock=lambda: counts.now_s)
    async with ends_in_time("it has drained"):
        await draining.run()
    return draining


async def test_readiness_goes_first() -> None:
    counts = Counts([1])
    draining = Drain(counts, quiet_s=1.0, limit_s=5.0, clock=lambda: counts.now_s)
    assert not draining.active

    running = asyncio.create_task(draining.run())
    await asyncio.sleep(0)

    assert draining.active
    await running


async def test_file_for_tritons_container_is_there_when_it_is_over_and_not_before(tmp_path: Path) -> None:
    counts, done = Counts([1]), tmp_path / "drained"
    done.touch()  # of an earlier life of this container
    draining = Drain(counts, quiet_s=1.0, limit_s=5.0, folder=tmp_path, clock=lambda: counts.now_s)
    assert not done.exists()

    running = asyncio.create_task(draining.run())
    await asyncio.sleep(0)
    assert (tmp_path / "leaving").exists()
    assert not done.exists()
    await running

    assert done.exists()


async def test_a_pod_with_few_requests_is_not_taken_for_one_whose_traffic_has_gone() -> None:
    counts = Counts([1, 1, 1, 2, 2])
    draining = Drain(counts, quiet_s=1.0, limit_s=20.0, least_s=6.0, clock=lambda: counts.now_s)

    await draining.run()

    assert counts.now_s >= 6.0


async def test_one_answer_that_is_missing_is_no_end() -> None:
    counts = Counts([1, None, 2, 3, 3, 3, 3])

    await drained(counts)

    assert counts.looks >= 6


async def test_it_happens_once() -> None:
    counts = Counts([1])
    draining = await drained(counts)
    looks = counts.looks

    await draining.run()

    assert counts.looks == looks


async def test_it_ends_when_no_more_requests_come() -> None:
    counts = Counts([5, 9, 12, 12])

    await drained(counts)

    assert counts.looks == 5


async def test_a_pod_that_has_had_no_request_yet_waits_for_those_on_their_way() -> None:
    counts = Counts([0, 1])

    await drained(counts)

    assert counts.looks == 4


async def test_it_ends_at_once_without_a_server() -> None:
    counts = Counts([None])

    await drained(counts)

    assert counts.looks == 1


async def test_it_ends_with_the_server() -> None:
    counts = Counts([5, 6, None])

    await drained(counts)

    assert counts.looks == 5


async def test_requests_without_end_do_not_hold_it_for_ever() -> None:
    counts = Counts(list(range(1000)))

    await drained(counts, limit_s=10.0)

    assert counts.now_s <= 12.0


async def test_work_that_never_ends_or_fails_does_not_keep_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(drain, "WORK_LIMIT_S", 0.05)
    for finish_work in (hangs, fails):
        counts = Counts([1])
        draining = Drain(
            counts,
            quiet_s=1.0,
            limit_s=5.0,
            folder=tmp_path,
            clock=lambda counts=counts: counts.now_s,  # type: ignore[misc]
            finish_work=finish_work,
        )
        async with ends_in_time("it has drained"):
            await draining.run()
        assert (tmp_path / "drained").exists()
