"""The limit of a block that waits: it ends what hangs, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from builders.waiting import NotInTimeError, ends_in_time


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
