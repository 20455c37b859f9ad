"""Run a plan: compute features, call all models concurrently, and merge one answer for each request."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from tidegate_dataplane.contract import PipelinePlan
from tidegate_dataplane.pipeline.failure_log import FailureLog
from tidegate_dataplane.pipeline.failures import CallError
from tidegate_dataplane.pipeline.merge import merge_outcomes, name_part
from tidegate_dataplane.pipeline.rows import Outcome, count_rows
from tidegate_dataplane.pipeline.wire import Arrays
from tidegate_dataplane.pipeline.worker import CallWorker

FEATURES_CALL = "features"
"""The name of the call for features among the names of parts; no part can have it."""


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
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """The number of requests by part and outcome: answered, or the kind of failure."""

    @property
    def workers(self) -> dict[str, CallWorker]:
        """Return the worker of every call by the name of its part."""
        features = {FEATURES_CALL: self._features} if self._features is not None else {}
        return {**features, **self._workers}

    def answer_requests(self, requests: Sequence[Arrays]) -> list[Outcome]:
        """Return the answer or the error of each request, in order, with one call of each model for all of them.

        The batch takes at most the longest timeout of a call.
        """
        latest_s = self._clock() + self._max_timeout_s
        answers: list[Outcome] = list(self._add_features(requests, latest_s))
        positions = [position for position, answer in enumerate(answers) if not isinstance(answer, CallError)]
        inputs = [answer for answer in answers if not isinstance(answer, CallError)]
        if not inputs:
            return answers
        pending = {name: worker.begin_call(inputs, latest_s) for name, worker in self._workers.items()}
        outcomes_by_part = {name: self._workers[name].collect_outcomes(pending[name]) for name in pending}
        for name, outcomes in outcomes_by_part.items():
            self._count_outcomes(name, outcomes)
        for number, position in enumerate(positions):
            request_outcomes = {name: outcomes[number] for name, outcomes in outcomes_by_part.items()}
            answers[position] = merge_outcomes(request_outcomes, self._parts, count_rows(inputs[number]))
        return answers

    def close(self) -> None:
        """Close every connection."""
        for worker in self.workers.values():
            worker.close()

    def _add_features(self, requests: Sequence[Arrays], latest_s: float) -> Sequence[Outcome]:
        """Return each request with its features added to the client's inputs, or the error of the features."""
        worker, call = self._features, self._plan.features
        if worker is None or call is None:
            return requests
        outcomes = worker.collect_outcomes(worker.begin_call(requests, latest_s))
        self._count_outcomes(FEATURES_CALL, outcomes)
        return [
            name_part(FEATURES_CALL, call.title, outcome)
            if isinstance(outcome, CallError)
            else {**request, **outcome}
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _count_outcomes(self, part: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, CallError):
                self.outcomes[part, outcome.kind.value] += 1
                self._failure_log.record_failure(part, outcome)
            else:
                self.outcomes[part, "answered"] += 1
