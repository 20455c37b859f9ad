"""A plan at work: features once, then all models at the same time, then one answer to each request."""

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
"""How the features are called where parts go by their names; no part can have it."""


class Pipeline:
    """Answers batches, one at a time; several of these beside each other answer as many at once."""

    def __init__(
        self, plan: PipelinePlan, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._complaints = Complaints(say, clock)
        # Features may take all the time that the route has; without them, no call waits for another.
        self._longest_s = max(call.timeout_us for call in plan.calls) / 1e6
        self._parts = {part.name: part for part in plan.parts}
        self._features = Worker(plan.gateway, plan.features, clock) if plan.features is not None else None
        self._workers = {part.name: Worker(plan.gateway, part.call, clock) for part in plan.parts}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Requests by part and what became of them: answered, or the kind of failure."""

    @property
    def workers(self) -> dict[str, Worker]:
        """Every call by the name of its part."""
        features = {FEATURES: self._features} if self._features is not None else {}
        return {**features, **self._workers}

    def answer(self, requests: Sequence[Arrays]) -> list[Outcome]:
        """Return what each request is answered, in order: one call of each model for all of them.

        All of it together takes as long as the slowest call may.
        """
        latest_s = self._clock() + self._longest_s
        answers: list[Outcome] = list(self._with_features(requests, latest_s))
        going_on = [place for place, found in enumerate(answers) if not isinstance(found, CallError)]
        inputs = [found for found in answers if not isinstance(found, CallError)]
        if not inputs:
            return answers
        pending = {name: worker.begin(inputs, latest_s) for name, worker in self._workers.items()}
        found = {name: self._workers[name].collect(pending[name]) for name in pending}
        for name, outcomes in found.items():
            self._count(name, outcomes)
        for number, place in enumerate(going_on):
            of_request = {name: outcomes[number] for name, outcomes in found.items()}
            answers[place] = merge(of_request, self._parts, rows_of(inputs[number]))
        return answers

    def close(self) -> None:
        """End every connection."""
        for worker in self.workers.values():
            worker.close()

    def _with_features(self, requests: Sequence[Arrays], latest_s: float) -> Sequence[Outcome]:
        """Return each request with its features beside what the client sent."""
        worker, call = self._features, self._plan.features
        if worker is None or call is None:
            return requests
        outcomes = worker.collect(worker.begin(requests, latest_s))
        self._count(FEATURES, outcomes)
        return [
            of_part(FEATURES, call.title, found) if isinstance(found, CallError) else {**request, **found}
            for request, found in zip(requests, outcomes, strict=True)
        ]

    def _count(self, part: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, CallError):
                self.outcomes[part, outcome.kind.value] += 1
                self._complaints.failed(part, outcome)
            else:
                self.outcomes[part, "answered"] += 1
