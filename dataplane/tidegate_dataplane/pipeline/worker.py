"""Make one call of a plan, on a thread and a connection of its own, until its deadline."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidegate_dataplane.contract import ModelCall
from tidegate_dataplane.pipeline.call_client import ModelCallClient
from tidegate_dataplane.pipeline.failures import CallError, Deadline, FailureKind
from tidegate_dataplane.pipeline.rows import Outcome, infer_together
from tidegate_dataplane.pipeline.wire import Arrays

GRACE_S = 0.005
"""The time after its deadline that a thread gets to return by itself, before it is aborted."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call in flight for a number of requests."""

    future: "Future[list[Outcome]]"
    requests: int
    deadline: Deadline


@dataclass(slots=True)
class CallTally:
    """The counts of a worker, which only grow."""

    calls: int = 0
    rows: int = 0


class CallWorker:
    """Begins a call and collects its outcomes; one call at a time."""

    def __init__(self, gateway: str, call: ModelCall, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._client = ModelCallClient(gateway, call, clock)
        self._names = [spec.name for spec in call.inputs]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"call {call.title}")
        self.tally = CallTally()

    def begin_call(self, requests: Sequence[Arrays], latest_s: float = math.inf) -> PendingCall:
        """Begin a call for these requests, which ends after the call's timeout or at the time `latest_s`, if earlier."""
        now_s = self._clock()
        deadline = Deadline(
            min(now_s + self._call.timeout_us / 1e6, latest_s),
            min(self._call.timeout_us / 1e6, latest_s - now_s),
        )
        if deadline.allowed_s <= 0:
            future: Future[list[Outcome]] = Future()
            future.set_result([deadline.timeout_error()] * len(requests))
        else:
            infer = partial(self._infer_arrays, deadline=deadline)
            future = self._thread.submit(infer_together, infer, requests, self._names)
        return PendingCall(future, len(requests), deadline)

    def collect_outcomes(self, pending: PendingCall) -> list[Outcome]:
        """Return the outcome of each request, when all have one or the deadline has passed.

        Any exception is a failure of this part, so that the answers of the other parts are not lost.
        """
        try:
            return pending.future.result(max(pending.deadline.at_s - self._clock(), 0) + GRACE_S)
        except TimeoutError:
            self._client.abort_request()
            return [pending.deadline.timeout_error()] * pending.requests
        except Exception as error:  # noqa: BLE001 - any error is a failure of this part
            self._client.abort_request()
            message = f"the call failed: {type(error).__name__}: {error}"
            return [CallError(FailureKind.FAILED, message)] * pending.requests

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._client.abort_request()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _infer_arrays(self, arrays: Arrays, deadline: Deadline) -> Arrays:
        self.tally.calls += 1
        self.tally.rows += len(next(iter(arrays.values())))
        return self._client.infer(arrays, deadline)
