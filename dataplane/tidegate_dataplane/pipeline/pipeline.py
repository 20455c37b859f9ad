"""Run a plan: compute features, call all models concurrently, and merge one answer for each request."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from tidegate_dataplane.contract import PipelinePlan
from tidegate_dataplane.pipeline.complaints import Complaints
from tidegate_dataplane.pipeline.failures import CallError
from tidegate_dataplane.pipeline.merge import merge, of_part
from tidegate_dataplane.pipeline.rows import Outcome, rows_of
from tidegate_dataplane.pipeline.wire import Arrays
from tidegate_dataplane.pipeline.worker import Worker

FEATURES = "features"
"""The name of the call for features among the names of parts; no part can have it."""


class Pipeline:
    """Answers batches, one at a time; several instances answer batches concurrently."""

    def __init__(
        self, plan: PipelinePlan, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._complaints = Complaints(say, clock)
        # The call for features may take the whole time of the route; the other calls are concurrent.
        self._max_timeout_s = max(call.timeout_us for call in plan.calls) / 1e6
        self._parts = {part.name: part for part in plan.parts}
        self._features = Worker(plan.gateway, plan.features, clock) if plan.features is not None else None
        self._workers = {part.name: Worker(plan.gateway, part.call, clock) for part in plan.parts}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """The number of requests by part and outcome: answered, or the kind of failure."""

    @property
    def workers(self) -> dict[str, Worker]:
        """Return the worker of every call by the name of its part."""
        features = {FEATURES: self._features} if self._features is not None else {}
        return {**features, **self._workers}

    def answer(self, requests: Sequence[Arrays]) -> list[Outcome]:
        """Return the answer or the error of each request, in order, with one call of each model for all of them.

        The batch takes at most the longest timeout of a call.
        """
        latest_s = self._clock() + self._max_timeout_s
        answers: list[Outcome] = list(self._with_features(requests, latest_s))
        positions = [position for position, answer in enumerate(answers) if not isinstance(answer, CallError)]
        inputs = [answer for answer in answers if not isinstance(answer, CallError)]
        if not inputs:
            return answers
        pending = {name: worker.begin(inputs, latest_s) for name, worker in self._workers.items()}
        outcomes_by_part = {name: self._workers[name].collect(pending[name]) for name in pending}
        for name, outcomes in outcomes_by_part.items():
            self._count(name, outcomes)
        for number, position in enumerate(positions):
            request_outcomes = {name: outcomes[number] for name, outcomes in outcomes_by_part.items()}
            answers[position] = merge(request_outcomes, self._parts, rows_of(inputs[number]))
        return answers

    def close(self) -> None:
        """Close every connection."""
        for worker in self.workers.values():
            worker.close()

    def _with_features(self, requests: Sequence[Arrays], latest_s: float) -> Sequence[Outcome]:
        """Return each request with its features added to the client's inputs, or the error of the features."""
        worker, call = self._features, self._plan.features
        if worker is None or call is None:
            return requests
        outcomes = worker.collect(worker.begin(requests, latest_s))
        self._count(FEATURES, outcomes)
        return [
            of_part(FEATURES, call.title, outcome)
            if isinstance(outcome, CallError)
            else {**request, **outcome}
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _count(self, part: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, CallError):
                self.outcomes[part, outcome.kind.value] += 1
                self._complaints.failed(part, outcome)
            else:
                self.outcomes[part, "answered"] += 1
