"""One call of a plan at work: on a thread and a connection of its own, held to its deadline."""

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
"""The thread notices its deadline by itself; this much later it is cut off."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call under way for so many requests."""

    future: "Future[list[Outcome]]"
    requests: int
    deadline: Deadline


@dataclass(slots=True)
class Tally:
    """What a worker has done so far; only ever grows."""

    calls: int = 0
    rows: int = 0


class Worker:
    """Begins a call and collects what came of it; one at a time."""

    def __init__(self, gateway: str, call: Call, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._caller = Caller(gateway, call, clock)
        self._names = [spec.name for spec in call.inputs]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"call {call.title}")
        self.tally = Tally()

    def begin(self, requests: Sequence[Arrays], latest_s: float = math.inf) -> Pending:
        """Ask for these requests; the call's own time begins now, and it ends at `latest_s` by the clock at the latest."""
        now_s = self._clock()
        deadline = Deadline(
            min(now_s + self._call.timeout_us / 1e6, latest_s),
            min(self._call.timeout_us / 1e6, latest_s - now_s),
        )
        if deadline.allowed_s <= 0:
            future: Future[list[Outcome]] = Future()
            future.set_result([deadline.missed()] * len(requests))
        else:
            ask = partial(self._ask, deadline=deadline)
            future = self._thread.submit(ask_together, ask, requests, self._names)
        return Pending(future, len(requests), deadline)

    def collect(self, pending: Pending) -> list[Outcome]:
        """Return what each request got, once all is there or the deadline has passed.

        Whatever goes wrong is the failure of this part: the others' answers are not to be lost by it.
        """
        try:
            return pending.future.result(max(pending.deadline.at_s - self._clock(), 0) + GRACE_S)
        except TimeoutError:
            self._caller.abort()
            return [pending.deadline.missed()] * pending.requests
        except Exception as error:  # noqa: BLE001 - nobody else answers for this part
            self._caller.abort()
            words = f"the call broke: {type(error).__name__}: {error}"
            return [CallError(FailureKind.FAILED, words)] * pending.requests

    def close(self) -> None:
        """End the connection and the thread."""
        self._caller.abort()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, arrays: Arrays, deadline: Deadline) -> Arrays:
        self.tally.calls += 1
        self.tally.rows += len(next(iter(arrays.values())))
        return self._caller.ask(arrays, deadline)
