"""The order of a plan's calls for one batch: a part with a cut is called once the part that selects its rows has answered."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from tidegate_dataplane.contract import CandidateCut, PipelinePart
from tidegate_dataplane.pipeline.candidates import Selection, fill_output, select_candidates
from tidegate_dataplane.pipeline.failures import CallError
from tidegate_dataplane.pipeline.rows import Outcome, RequestBatch
from tidegate_dataplane.pipeline.wire import Array

PartCall = tuple[str, RequestBatch]
"""The name of a part to call now, and its requests with the rows that it gets."""


class ModelStages:
    """Outcomes of the parts for each request of a batch, from which later calls follow.

    `shortened` has the names of the parts that get the fewest rows, for each request.
    """

    def __init__(
        self, parts: Sequence[PipelinePart], batch: RequestBatch, shortened: Sequence[Set[str]]
    ) -> None:
        self._parts = {part.name: part for part in parts}
        self._batch = batch
        self._shortened = shortened
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._selections: dict[str, dict[int, Selection]] = {}
        self.best_rows: Counter[tuple[str, str]] = Counter()
        """The number of requests by part and by whether the fewest candidates include the best: yes or no."""

    @property
    def first_calls(self) -> Sequence[PartCall]:
        """Return the calls that need no other."""
        return [(part.name, self._batch) for part in self._parts.values() if part.cut is None]

    def add_outcomes(self, name: str, outcomes: Sequence[Outcome]) -> Sequence[PartCall]:
        """Add the outcomes of a call, for the requests of its batch; return the calls that follow."""
        part, selections = self._parts[name], self._selections.get(name)
        if part.cut is None or selections is None:
            self._outcomes[name] = dict(enumerate(outcomes))
        else:
            self._outcomes[name] = {
                position: self._spread_outcome(part, part.cut, position, outcome)
                for position, outcome in zip(selections, outcomes, strict=True)
            }
        return list(self._follow_part(name))

    def get_outcomes(self, position: int) -> Mapping[str, Outcome]:
        """Return what each part said about a request; a part that was not asked has the error of the one before it."""
        outcomes: dict[str, Outcome] = {}
        for name, part in self._parts.items():
            answered = self._outcomes.get(name, {})
            if part.cut is not None and position not in answered:
                outcomes[name] = outcomes[part.cut.by]
            else:
                outcomes[name] = answered[position]
        return outcomes

    def _follow_part(self, name: str) -> Iterator[PartCall]:
        for part in self._parts.values():
            if part.cut is None or part.cut.by != name:
                continue
            selections = {
                position: select_candidates(scores, part.cut, fewest=part.name in self._shortened[position])
                for position, scores in self._read_scores(part.cut)
            }
            if selections:
                self._selections[part.name] = selections
                rows = {position: selection.rows for position, selection in selections.items()}
                yield part.name, self._batch.select_rows(rows)

    def _read_scores(self, cut: CandidateCut) -> Iterator[tuple[int, Array]]:
        """Yield the requests that have an output to select by, or its default."""
        selecting = self._parts[cut.by]
        (output,) = selecting.call.outputs
        for position, outcome in self._outcomes[cut.by].items():
            if not isinstance(outcome, CallError):
                yield position, outcome[output.name]
            elif selecting.default is not None:
                rows = self._batch.rows[position]
                yield position, fill_output(output, selecting.default, rows)

    def _spread_outcome(
        self, part: PipelinePart, cut: CandidateCut, position: int, outcome: Outcome
    ) -> Outcome:
        """Return the outcome of the candidates for all rows of the request."""
        if isinstance(outcome, CallError):
            return outcome
        (output,) = part.call.outputs
        answer, selection = outcome[output.name], self._selections[part.name][position]
        if not self._shortened[position]:
            includes_best = selection.keeps_best(answer, cut.min_rows)
            if includes_best is not None:
                self.best_rows[part.name, "yes" if includes_best else "no"] += 1
        return {output.name: selection.spread_answer(answer, output, cut.filler)}
