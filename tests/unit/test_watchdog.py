"""When a process shows that it lives, and how long it may live on: what Triton's backend waits for is never outlived."""

from __future__ import annotations

import time

import pytest

from tidegate_dataplane.sampling.watchdog import CLOCKS, PATIENCE_S, SignOfLife, Watchdog

BACKEND_WAITS_S = 1.0


class Timer:
    """Keeps the deadline that was set last."""

    deadline_s = 0.0

    def set(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s


def test_a_flag_is_raised_once_it_was_seen_lowered_and_raised_by_others() -> None:
    memory = bytearray([7, 1, 7])
    sign = SignOfLife(memory, 1)
    sign.show()
    memory[1] = 0
    sign.show()
    assert memory == bytearray([7, 0, 7])

    memory[1] = 1
    sign.show()
    memory[1] = 0
    sign.show()

    assert memory == bytearray([7, 1, 7])


@pytest.mark.parametrize("values", [(0, 0, 0), (1, 1, 0), (0, 2, 0), (2, 0, 2)])
def test_a_byte_that_is_no_such_flag_is_left_alone(values: tuple[int, ...]) -> None:
    """A newer Triton may keep something else there."""
    memory = bytearray(1)
    sign = SignOfLife(memory, 0)
    for value in values:
        memory[0] = value
        sign.show()
        assert memory[0] == value


def test_a_thread_that_is_held_up_while_it_shows_a_sign_gains_the_process_no_time() -> None:
    now = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_REALTIME: 5000.0}
    shown_s: list[float] = []

    class SlowSign(SignOfLife):
        def show(self) -> None:
            shown_s.append(now[time.CLOCK_MONOTONIC])
            for clock in now:
                now[clock] += 0.5

    timers = {clock: Timer() for clock in CLOCKS}
    Watchdog(SlowSign(bytearray(1), 0), timers, clock=now.__getitem__).beat()

    assert timers[time.CLOCK_MONOTONIC].deadline_s == pytest.approx(100.0 + PATIENCE_S)
    assert timers[time.CLOCK_REALTIME].deadline_s == pytest.approx(5000.0 + PATIENCE_S)
    assert timers[time.CLOCK_MONOTONIC].deadline_s < shown_s[0] + BACKEND_WAITS_S
