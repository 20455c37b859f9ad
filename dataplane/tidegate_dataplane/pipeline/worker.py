"""Make one call of a plan, on a thread and a connection of its own, until its deadline."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidegate_dataplane.contract import Call
from tidegate_dataplane.pipeline.caller import Caller
from tidegate_dataplane.pipeline.deadline import Deadline
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.rows import Outcome, ask_together
from tidegate_dataplane.pipeline.wire import Arrays

GRACE_S = 0.005
"""The time after its deadline that a thread gets to return by itself, before it is aborted."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call in flight for a number of requests."""

    future: "Future[list[Outcome]]"
    requests: int
    deadline: Deadline


@dataclass(slots=True)
class Tally:
    """The counts of a worker, which only grow."""

    calls: int = 0
    rows: int = 0


class Worker:
    """Begins a call and collects its outcomes; one call at a time."""

    def __init__(self, gateway: str, call: Call, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._caller = Caller(gateway, call, clock)
        self._names = [spec.name for spec in call.inputs]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"call {call.title}")
        self.tally = Tally()

    def begin(self, requests: Sequence[Arrays], latest_s: float = math.inf) -> Pending:
        """Begin a call for these requests, which ends after the call's timeout or at the time `latest_s`, if earlier."""
        now_s = self._clock()
        deadline = Deadline(
            min(now_s + self._call.timeout_us / 1e6, latest_s),
            min(self._call.timeout_us / 1e6, latest_s - now_s),
        )
        if deadline.allowed_s <= 0:
            future: Future[list[Outcome]] = Future()
            future.set_result([deadline.missed()] * len(requests))
        else:
            infer = partial(self._ask, deadline=deadline)
            future = self._thread.submit(ask_together, infer, requests, self._names)
        return Pending(future, len(requests), deadline)

    def collect(self, pending: Pending) -> list[Outcome]:
        """Return the outcome of each request, when all have one or the deadline has passed.

        Any exception is a failure of this part, so that the answers of the other parts are not lost.
        """
        try:
            return pending.future.result(max(pending.deadline.at_s - self._clock(), 0) + GRACE_S)
        except TimeoutError:
            self._caller.abort()
            return [pending.deadline.missed()] * pending.requests
        except Exception as error:  # noqa: BLE001 - any error is a failure of this part
            self._caller.abort()
            message = f"the call failed: {type(error).__name__}: {error}"
            return [CallError(FailureKind.FAILED, message)] * pending.requests

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._caller.abort()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, arrays: Arrays, deadline: Deadline) -> Arrays:
        self.tally.calls += 1
        self.tally.rows += len(next(iter(arrays.values())))
        return self._caller.ask(arrays, deadline)
