"""Run a plan: compute features, call all models concurrently, and merge one answer for each request."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import numpy as np

from tidegate_dataplane.contract import DEFAULTED, NOT_CURRENT, PipelinePart, PipelinePlan
from tidegate_dataplane.contract.exported import BEST_ROWS, CALL_ROWS, CALLS, PIPELINE_REQUESTS
from tidegate_dataplane.pipeline.candidates import fill_output
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.rows import Outcome, RequestBatch
from tidegate_dataplane.pipeline.stages import ModelStages
from tidegate_dataplane.pipeline.wire import Array, Arrays
from tidegate_dataplane.pipeline.worker import CallJob, CallWorker, run_calls

FEATURES_CALL = "features"
"""The name of the call for features among the names of parts; no part can have it."""
LOG_INTERVAL_S = 60.0
"""The least time between two messages about one part and one kind of failure."""


class PipelineRunner:
    """Answers batches, one at a time; several instances answer batches concurrently."""

    def __init__(
        self, plan: PipelinePlan, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._failure_log = FailureLog(warn, clock)
        # The call for features may take the whole time of the route; the other calls are concurrent.
        self._max_timeout_s = max(call.timeout_us for call in plan.calls) / 1e6
        self._parts = {part.name: part for part in plan.parts}
        self._features = CallWorker(plan.gateway, plan.features, clock) if plan.features is not None else None
        self._workers = {part.name: CallWorker(plan.gateway, part.call, clock) for part in plan.parts}
        self._part_names = {worker: name for name, worker in self._workers.items()}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """The number of requests by part and outcome: answered, or the kind of failure."""
        self.best_rows: Counter[tuple[str, str]] = Counter()
        """The number of requests by part with candidates, and whether fewer would include the best of them."""

    @property
    def workers(self) -> dict[str, CallWorker]:
        """Return the worker of every call by the name of its part."""
        features = {FEATURES_CALL: self._features} if self._features is not None else {}
        return {**features, **self._workers}

    def answer_requests(
        self, requests: Sequence[Arrays], shortened: Sequence[Set[str]] = ()
    ) -> list[Outcome]:
        """Return the answer or the error of each request, in order, with one call of each model for all of them.

        `shortened`: the names of the parts that get as few rows of a request as the plan allows; by default none does.
        The batch takes at most the longest timeout of a call.
        """
        latest_s = self._clock() + self._max_timeout_s
        try:
            return self._answer_batch(requests, shortened or [frozenset[str]()] * len(requests), latest_s)
        finally:
            for worker in self.workers.values():
                worker.clear_batch()

    def _answer_batch(
        self, requests: Sequence[Arrays], shortened: Sequence[Set[str]], latest_s: float
    ) -> list[Outcome]:
        if self._features is None:
            return self._call_models(RequestBatch(requests), shortened, latest_s)
        answers = self._call_features(self._features, requests, latest_s)
        positions = [position for position, answer in enumerate(answers) if not isinstance(answer, CallError)]
        if not positions:
            return answers
        features = [answer for answer in answers if not isinstance(answer, CallError)]
        batch = RequestBatch([requests[position] for position in positions], features)
        wishes = [shortened[position] for position in positions]
        merged = self._call_models(batch, wishes, latest_s)
        if any(spec.name == NOT_CURRENT for spec in self._plan.outputs):
            merged = [add_mark(*context) for context in zip(merged, features, batch.rows, strict=True)]
        for position, answer in zip(positions, merged, strict=True):
            answers[position] = answer
        return answers

    def read_totals(self) -> Iterator[tuple[str, Mapping[str, str], int]]:
        """Yield the family, labels and current value of each counter, for the metrics of the server; any thread may."""
        for part, worker in self.workers.items():
            yield CALLS.name, {"part": part}, worker.tally.calls
            yield CALL_ROWS.name, {"part": part}, worker.tally.rows
        for (part, outcome), count in list(self.outcomes.items()):
            yield PIPELINE_REQUESTS.name, {"part": part, "outcome": outcome}, count
        for (part, is_kept), count in list(self.best_rows.items()):
            yield BEST_ROWS.name, {"part": part, "kept": is_kept}, count

    def close(self) -> None:
        """Close every connection."""
        for worker in self.workers.values():
            worker.close()

    def _call_features(
        self, worker: CallWorker, requests: Sequence[Arrays], latest_s: float
    ) -> list[Outcome]:
        """Return the features of each request, or their error."""
        run_calls([(worker, RequestBatch(requests))], latest_s, self._clock)
        self._count_outcomes(FEATURES_CALL, worker.outcomes)
        return [
            _name_part(FEATURES_CALL, worker.title, outcome) if isinstance(outcome, CallError) else outcome
            for outcome in worker.outcomes
        ]

    def _call_models(
        self, batch: RequestBatch, shortened: Sequence[Set[str]], latest_s: float
    ) -> list[Outcome]:
        """Return the merged answers of all models to each request, or its error."""
        stages = ModelStages(self._plan.parts, batch, shortened)

        def find_next(worker: CallWorker) -> Sequence[CallJob]:
            name = self._part_names[worker]
            self._count_outcomes(name, worker.outcomes)
            return [(self._workers[part], rows) for part, rows in stages.add_outcomes(name, worker.outcomes)]

        first = [(self._workers[part], rows) for part, rows in stages.first_calls]
        run_calls(first, latest_s, self._clock, find_next)
        self.best_rows += stages.best_rows
        return [
            merge_outcomes(stages.get_outcomes(position), self._parts, batch.rows[position])
            for position in range(len(batch))
        ]

    def _count_outcomes(self, part: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, CallError):
                self.outcomes[part, outcome.kind.value] += 1
                self._failure_log.record_failure(part, outcome)
            else:
                self.outcomes[part, "answered"] += 1


class FailureLog:
    """Logs the first failure of each part and kind, and then one a minute, with the count of those between.

    Counters have no messages, and the failure of an optional part shows nowhere else.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn = warn
        self._clock = clock
        self._logged_at_s: dict[tuple[str, FailureKind], float] = {}
        self._unlogged: dict[tuple[str, FailureKind], int] = {}

    def record_failure(self, part: str, error: CallError) -> None:
        """Record one request that this part did not answer."""
        key = part, error.kind
        now_s = self._clock()
        last_s = self._logged_at_s.get(key)
        if last_s is not None and now_s - last_s < LOG_INTERVAL_S:
            self._unlogged[key] = self._unlogged.get(key, 0) + 1
            return
        unlogged = self._unlogged.pop(key, 0)
        suffix = f" ({unlogged} more requests since the last time)" if unlogged else ""
        self._logged_at_s[key] = now_s
        self._warn(f"part {part}: {error.kind.value}: {error}{suffix}")


def merge_outcomes(
    outcomes: Mapping[str, Outcome], parts: Mapping[str, PipelinePart], rows: int
) -> Arrays | CallError:
    """Return the answer to one request of `rows` rows, or the error of a part that is not optional."""
    answer: dict[str, Array] = {}
    defaulted: list[str] = []
    for name, part in parts.items():
        outcome = outcomes[name]
        (output,) = part.call.outputs
        if not isinstance(outcome, CallError):
            answer[name] = outcome[output.name]
        elif part.default is None:
            return _name_part(name, part.call.title, outcome)
        else:
            answer[name] = fill_output(output, part.default, rows)
            defaulted.append(name)
    if any(part.default is not None for part in parts.values()):
        answer[DEFAULTED] = np.full((rows, 1), ",".join(defaulted).encode(), dtype=object)
    return answer


def add_mark(outcome: Outcome, features: Arrays, rows: int) -> Outcome:
    """Return the answer to `rows` rows with the streams whose newest events its features lack; none if they do not name any."""
    if isinstance(outcome, CallError):
        return outcome
    mark = features[NOT_CURRENT] if NOT_CURRENT in features else np.full((rows, 1), b"", dtype=object)
    return {**outcome, NOT_CURRENT: mark}


def _name_part(name: str, title: str, error: CallError) -> CallError:
    """Return the error with the name and title of its part."""
    return CallError(error.kind, f"{name} ({title}): {error}")
