"""When a process shows that it lives, and how long it may live on: what Triton's backend waits for is never outlived."""

from __future__ import annotations

import time

import pytest

from tidegate_dataplane.sampling.watchdog import (
    CLOCKS,
    DELIVERY_S,
    MAX_SILENCE_S,
    SECONDS_PER_STRING,
    LivenessFlag,
    Watchdog,
)

BACKEND_WAITS_S = 1.0


class Timer:
    """Keeps the deadline that was set last."""

    deadline_s = 0.0

    def set_deadline(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s


def test_a_flag_is_raised_once_it_was_seen_lowered_and_raised_by_others() -> None:
    memory = bytearray([7, 1, 7])
    sign = LivenessFlag(memory, 1)
    sign.raise_flag()
    memory[1] = 0
    sign.raise_flag()
    assert memory == bytearray([7, 0, 7])

    memory[1] = 1
    sign.raise_flag()
    memory[1] = 0
    sign.raise_flag()

    assert memory == bytearray([7, 1, 7])


@pytest.mark.parametrize("values", [(0, 0, 0), (1, 1, 0), (0, 2, 0), (2, 0, 2)])
def test_a_byte_that_is_no_such_flag_is_left_alone(values: tuple[int, ...]) -> None:
    """A newer Triton may keep something else there."""
    memory = bytearray(1)
    sign = LivenessFlag(memory, 0)
    for value in values:
        memory[0] = value
        sign.raise_flag()
        assert memory[0] == value


class Process:
    """A watchdog on clocks that the test moves, and what came of it."""

    def __init__(self, sign: LivenessFlag | None = None) -> None:
        self.now = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_REALTIME: 5000.0}
        self.timers = {clock: Timer() for clock in CLOCKS}
        self.ended = 0
        self.watchdog = Watchdog(
            sign or LivenessFlag(bytearray(1), 0),
            self.timers,
            clock=self.now.__getitem__,
            kill_process=self._end,
        )

    def _end(self) -> None:
        self.ended += 1

    def sleep(self, seconds: float, *, beats: bool = True) -> None:
        """Let the time pass, with a beat of the thread every 100 ms or without CPU."""
        for _ in range(round(seconds * 10)):
            self.now.update({clock: now + 0.1 for clock, now in self.now.items()})
            if beats:
                self.watchdog.show_life()

    @property
    def left_s(self) -> float | None:
        """What the kernel lets it live, the same on each clock; None: for good."""
        left = {
            round(timer.deadline_s - self.now[clock], 3) if timer.deadline_s else None
            for clock, timer in self.timers.items()
        }
        (alike,) = left
        return alike


def test_a_process_lives_for_less_than_the_backend_waits_while_it_answers_and_while_that_is_sent() -> None:
    process = Process()
    process.sleep(5)
    assert process.left_s is None

    with process.watchdog.watch_request():
        assert process.left_s == MAX_SILENCE_S < BACKEND_WAITS_S
        process.sleep(5)
        assert process.left_s == MAX_SILENCE_S
    assert process.left_s == MAX_SILENCE_S
    process.sleep(1)
    assert process.left_s == MAX_SILENCE_S
    process.sleep(DELIVERY_S)
    assert process.left_s is None
    assert process.ended == 0


def test_a_process_without_a_request_outlives_a_pause_and_ends_at_a_request_that_may_have_waited() -> None:
    process = Process()
    process.sleep(5, beats=False)
    with process.watchdog.watch_request():  # no beat has come before it
        assert process.ended == 1

    idle = Process()
    idle.sleep(5, beats=False)
    idle.sleep(1)
    with idle.watchdog.watch_request():
        assert idle.ended == 1

    rested = Process()
    rested.sleep(5, beats=False)
    rested.sleep(DELIVERY_S + 0.2)
    with rested.watchdog.watch_request():
        assert rested.ended == 0


def test_strings_give_a_request_the_time_in_which_no_thread_of_ours_can_run() -> None:
    process = Process()
    with process.watchdog.watch_request(strings=1_000_000):
        assert process.left_s == MAX_SILENCE_S + 1_000_000 * SECONDS_PER_STRING
        process.sleep(3, beats=False)
    assert process.left_s == MAX_SILENCE_S
    process.sleep(0.1)
    with process.watchdog.watch_request():
        assert process.ended == 0


def test_a_thread_that_is_held_up_while_it_shows_a_sign_gains_the_process_no_time() -> None:
    class SlowSign(LivenessFlag):
        def raise_flag(self) -> None:
            for clock in process.now:
                process.now[clock] += 0.5

    process = Process(SlowSign(bytearray(1), 0))
    with process.watchdog.watch_request():
        process.watchdog.show_life()
        assert process.left_s == pytest.approx(MAX_SILENCE_S - 0.5)
