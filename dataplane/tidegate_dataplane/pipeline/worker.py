"""Make calls of a plan for a batch, all at the same time and in one thread, each until its deadline."""

import math
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate_dataplane.contract import ModelCall
from tidegate_dataplane.pipeline.call_client import ModelCallClient
from tidegate_dataplane.pipeline.failures import CallError, Deadline, FailureKind
from tidegate_dataplane.pipeline.rows import CallSteps, Outcome, RequestBatch, infer_together


@dataclass(slots=True)
class CallTally:
    """The counts of a worker, which only grow."""

    calls: int = 0
    rows: int = 0


class CallWorker:
    """Makes one call of a plan for a batch, step by step; one batch at a time."""

    def __init__(self, gateway: str, call: ModelCall, clock: Callable[[], float] = time.monotonic) -> None:
        self.title = call.title
        self._call = call
        self._clock = clock
        self._client = ModelCallClient(gateway, call, clock)
        self._names = tuple(spec.name for spec in call.inputs)
        self._batch = RequestBatch(())
        self._steps: CallSteps | None = None
        self.deadline = Deadline(0, 0)
        self.outcomes: list[Outcome] = []
        """The outcome of each request of the batch, once `is_waiting` is false."""
        self.tally = CallTally()

    @property
    def is_waiting(self) -> bool:
        """Return whether the gateway's answer is outstanding."""
        return self._steps is not None

    def begin_call(self, batch: RequestBatch, latest_s: float = math.inf) -> None:
        """Begin a call for these requests, which ends after the call's timeout or at the time `latest_s`, if earlier."""
        now_s = self._clock()
        timeout_s = self._call.timeout_us / 1e6
        self.deadline = Deadline(min(now_s + timeout_s, latest_s), min(timeout_s, latest_s - now_s))
        self._batch = batch
        if self.deadline.allowed_s <= 0:
            self.outcomes = [self.deadline.timeout_error()] * len(batch)
            return
        self._steps = infer_together(batch, self._names, self._call.max_rows)
        self._run_steps(lambda steps: next(steps))

    def register_events(self, poller: select.poll) -> int:
        """Let `poller` wait for what the call waits for; return the file descriptor."""
        connection = self._client.connection
        if connection is None:
            raise ValueError(f"{self._call.title} waits for nothing")
        poller.register(connection.descriptor_number, connection.awaited_events)
        return connection.descriptor_number

    def advance_call(self) -> None:
        """Send and receive what is possible now."""
        try:
            answer = self._client.advance_request()
        except CallError as error:
            failure = error
            self._run_steps(lambda steps: steps.throw(failure))
        except Exception as error:  # noqa: BLE001 - any error is a failure of this part
            self._fail_call(error)
        else:
            if answer is not None:
                self._run_steps(lambda steps: steps.send(answer))

    def expire_call(self) -> None:
        """End the call in flight, whose deadline has passed."""
        self._client.abort_request()
        self._run_steps(lambda steps: steps.throw(self.deadline.timeout_error()))

    def abort_call(self) -> None:
        """End the call in flight, without an outcome."""
        self._client.clear_request()
        self._steps = None

    def clear_batch(self) -> None:
        """Free the memory of the last batch and its outcomes."""
        self.abort_call()
        self._batch = RequestBatch(())
        self.outcomes = []

    def close(self) -> None:
        """Close the connection."""
        self._client.close_client()

    def _run_steps(self, step: Callable[[CallSteps], tuple[int, ...]]) -> None:
        """Take one step, and as many more as fail at once; any other exception is a failure of this part alone."""
        steps = self._steps
        if steps is None:
            return
        try:
            positions = step(steps)
            while True:
                try:
                    self._begin_request(positions)
                except CallError as error:
                    positions = steps.throw(error)
                else:
                    return
        except StopIteration as end:
            self._steps = None
            self.outcomes = end.value
        except Exception as error:  # noqa: BLE001 - any error is a failure of this part
            self._fail_call(error)

    def _begin_request(self, positions: tuple[int, ...]) -> None:
        if self._clock() >= self.deadline.at_s:
            raise self.deadline.timeout_error()
        tensors = [self._batch.encode_input(spec, positions) for spec in self._call.inputs]
        self.tally.calls += 1
        self.tally.rows += sum(self._batch.rows[position] for position in positions)
        self._client.begin_request(tensors, self.deadline)

    def _fail_call(self, error: Exception) -> None:
        self._client.abort_request()
        self._steps = None
        message = f"the call failed: {type(error).__name__}: {error}"
        self.outcomes = [CallError(FailureKind.FAILED, message)] * len(self._batch)


CallJob = tuple[CallWorker, RequestBatch]
"""A call to make, and its requests."""


def run_calls(
    jobs: Sequence[CallJob],
    latest_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    find_next: Callable[[CallWorker], Sequence[CallJob]] = lambda worker: (),
) -> None:
    """Make all calls at the same time; `find_next` returns the calls that can begin when one has ended.

    A worker's `outcomes` are those of the requests of its batch. If anything raises, no call stays in flight.
    """
    pending, waiting = list(jobs), list[CallWorker]()
    try:
        while pending or waiting:
            for worker, batch in pending:
                waiting.append(worker)
                worker.begin_call(batch, latest_s)
            ended = [worker for worker in waiting if not worker.is_waiting]
            waiting = [worker for worker in waiting if worker.is_waiting]
            pending = [job for worker in ended for job in find_next(worker)]
            if waiting and not pending:
                _await_progress(waiting, clock)
    finally:
        for worker in waiting:
            worker.abort_call()


def _await_progress(waiting: Sequence[CallWorker], clock: Callable[[], float]) -> None:
    """Wait until a call can go on, and let it; end those whose deadline has passed."""
    poller = select.poll()
    by_descriptor = {worker.register_events(poller): worker for worker in waiting}
    remaining_s = min(worker.deadline.at_s for worker in waiting) - clock()
    for descriptor, _ in poller.poll(max(math.ceil(remaining_s * 1000), 0)):
        by_descriptor[descriptor].advance_call()
    now_s = clock()
    for worker in waiting:
        if worker.is_waiting and now_s >= worker.deadline.at_s:
            worker.expire_call()
