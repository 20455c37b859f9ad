"""The limit of a block that waits: it ends what hangs, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from builders.waiting import NotInTimeError, Patience, ends_in_time


async def test_a_block_that_hangs_is_ended_and_says_what_it_waited_for() -> None:
    with pytest.raises(NotInTimeError, match=r"not within 0.01 s: the group agrees"):
        async with ends_in_time("the group agrees", timeout_s=0.01):
            await asyncio.Event().wait()


async def test_a_block_that_ends_is_left_alone_and_so_are_its_own_errors() -> None:
    async with ends_in_time("nothing"):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with ends_in_time("its own call", timeout_s=60), asyncio.timeout(0):
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("stalled", "counted_s"),
    [(0.0, 10.0), (0.5, 5.0), (1.0, 2.5)],  # share of the time in which some process waits for a core
)
def test_time_counts_less_while_processes_wait_for_a_core_and_never_less_than_a_quarter(
    monkeypatch: pytest.MonkeyPatch, stalled: float, counted_s: float
) -> None:
    now_s = 0.0
    monkeypatch.setattr("builders.waiting.time.monotonic", lambda: now_s)
    monkeypatch.setattr("builders.waiting._read_stalled_s", lambda: now_s * stalled)
    in_time, too_late = Patience(counted_s + 0.1), Patience(counted_s - 0.1)
    now_s = 10.0
    assert (in_time.is_over(), too_late.is_over()) == (False, True)
