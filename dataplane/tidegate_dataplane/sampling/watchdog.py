"""End a model's process that gets no CPU: its late answer would go to the next caller.

Triton's Python backend fails a request after a second in which this process neither answered nor raised its flag.
It then takes the process's next message for the answer to the next request, and reads it from memory that it has freed.
A process without CPU cannot end itself, so a timer in the kernel does, while there is a request (ADR 50).
"""

import ctypes
import math
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

MAX_SILENCE_S = 0.8
"""The backend waits for 1 s (StubLauncher::ReceiveMessageFromStub); in the rest of it the kernel ends the process."""
BEAT_INTERVAL_S = 0.1
SECONDS_PER_STRING = 5e-6
"""The additional time for each string of a request. A library converts them in one call, during which the backend's
thread can run and ours cannot: ONNX Runtime's takes 0.3 s for a million on one core."""
DELIVERY_S = 2.0
"""The time for which an answer may be on its way to the backend, or a request of before a pause in the queue."""
CLOCKS = (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME)
"""The backend uses the second one; if that is set back, the first one still ends the process."""
_REGION, _CONTROL = 2, 7
"""Arguments of the backend's stub: the name of its shared memory, and the offset of the control block in it."""
_HEADER_BYTES = 16
_ABSOLUTE = 1
"""TIMER_ABSTIME."""


class _SignalEvent(ctypes.Structure):
    """A sigevent, of 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("_rest", ctypes.c_byte * 48),
    )


class _TimerSpec(ctypes.Structure):
    """An itimerspec without an interval."""

    _fields_ = (("_interval", ctypes.c_long * 2), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class KernelTimer:
    """Sends SIGKILL to this process at a time on `clock`, even if it gets no CPU."""

    def __init__(self, clock: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(signal=signal.SIGKILL)  # and 0 is SIGEV_SIGNAL
        _check_result(self._libc.timer_create(clock, ctypes.byref(event), ctypes.byref(self._timer)))

    def set_deadline(self, deadline_s: float) -> None:
        """End the process at this time instead of the time set before; 0 disarms the timer."""
        when = _TimerSpec(s=int(deadline_s), ns=int(deadline_s % 1 * 1e9))
        _check_result(self._libc.timer_settime(self._timer, _ABSOLUTE, ctypes.byref(when), None))


class LivenessFlag:
    """The flag by which the backend knows that this process lives.

    The backend lowers it and checks it a second later; the backend's thread in this process raises it every 300 ms.
    That thread alone may get no CPU, so ours raises the flag too, once the byte has proved to be that flag.
    """

    def __init__(self, memory: "mmap.mmap | bytearray", position: int) -> None:
        self._memory, self._position = memory, position
        self._was_lowered = False
        self.is_confirmed = False
        """Whether the backend has lowered and raised the byte, which proves that it is the flag."""

    def raise_flag(self) -> None:
        """Raise the flag, if the byte has proved to be it."""
        raised = self._memory[self._position] == 1
        self.is_confirmed = self.is_confirmed or (raised and self._was_lowered)
        if self.is_confirmed:
            self._memory[self._position] = 1
        self._was_lowered = self._memory[self._position] == 0

    @classmethod
    def from_process(cls, process: int) -> "LivenessFlag":
        """Return the flag of the backend of Triton 2.51 to 2.70; if it is not found, one without effect."""
        arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        with suppress(OSError, ValueError, IndexError):
            position = int(arguments[_CONTROL]) + _HEADER_BYTES
            descriptor = os.open(b"/dev/shm/" + arguments[_REGION], os.O_RDWR)
            try:
                return cls(mmap.mmap(descriptor, position + 1), position)
            finally:
                os.close(descriptor)
        return cls(bytearray(1), 0)


class _DeadlineTimer(Protocol):
    def set_deadline(self, deadline_s: float) -> None: ...


class Watchdog:
    """Ends this process if it gets no CPU for MAX_SILENCE_S: by timers during a request, else before the next one."""

    def __init__(
        self,
        flag: LivenessFlag,
        timers: Mapping[int, _DeadlineTimer],
        clock: Callable[[int], float] = time.clock_gettime,
        kill_process: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL),
    ) -> None:
        self._flag, self._timers, self._clock, self._kill_process = flag, timers, clock, kill_process
        self._lock = threading.Lock()
        self._ran_s = clock(time.CLOCK_MONOTONIC)
        self._paused_s = self._answered_s = -math.inf
        self._answering = self._armed = False
        self._max_silence_s = MAX_SILENCE_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="watchdog", daemon=True)

    @classmethod
    def start_watching(cls) -> "Watchdog":
        """Start to watch over this process.

        Raises:
            OSError: the kernel has no such timers; without them, the model might send wrong answers.
        """
        watchdog = cls(
            LivenessFlag.from_process(os.getpid()), {clock: KernelTimer(clock) for clock in CLOCKS}
        )
        watchdog._thread.start()
        return watchdog

    @contextmanager
    def watch_request(self, strings: int = 0) -> Generator[None]:
        """Watch over a request until its answer is sent; `strings` is the number of strings in its inputs."""
        with self._lock:
            now = self._read_clocks()
            if now[time.CLOCK_MONOTONIC] - self._paused_s < DELIVERY_S:
                # The request may be older than the pause, so that the backend may have failed it already.
                self._kill_process()
            self._answering, self._max_silence_s = True, MAX_SILENCE_S + strings * SECONDS_PER_STRING
            self._set_timers(now)
        try:
            yield
        finally:
            with self._lock:
                now = self._read_clocks()
                self._answering, self._max_silence_s = False, MAX_SILENCE_S
                self._answered_s = now[time.CLOCK_MONOTONIC]
                self._set_timers(now)

    def show_life(self) -> None:
        """Raise the flag, and extend the deadline of the timers.

        The time is read before the flag is raised: a thread that is delayed in between sets a deadline that is too
        early, never one after the backend's.
        """
        with self._lock:
            now = self._read_clocks()
            self._flag.raise_flag()
            self._set_timers(now)

    def stop_watching(self) -> None:
        """Stop the thread and disarm the timers, after the last request."""
        self._stopping.set()
        self._thread.join()
        for timer in self._timers.values():
            timer.set_deadline(0)

    def _read_clocks(self) -> Mapping[int, float]:
        """Return the time on each clock, and record a pause if the process did not run for too long."""
        now = {clock: self._clock(clock) for clock in CLOCKS}
        ran_s = now[time.CLOCK_MONOTONIC]
        if ran_s - self._ran_s > self._max_silence_s:
            self._paused_s = ran_s
        self._ran_s = ran_s
        return now

    def _set_timers(self, now: Mapping[int, float]) -> None:
        armed = self._answering or now[time.CLOCK_MONOTONIC] - self._answered_s < DELIVERY_S
        if armed or self._armed:
            for clock, timer in self._timers.items():
                timer.set_deadline(now[clock] + self._max_silence_s if armed else 0)
        self._armed = armed

    def _keep_beating(self) -> None:
        while not self._stopping.wait(BEAT_INTERVAL_S):
            self.show_life()


def _check_result(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no timer to end a process that is not run: {os.strerror(number)}")
