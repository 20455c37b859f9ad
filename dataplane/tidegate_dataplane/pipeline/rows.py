"""Join requests into one call, and split its answer."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from tidegate_dataplane.contract import TensorSpec
from tidegate_dataplane.pipeline.candidates import SelectedRows
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.wire import Array, Arrays, EncodedTensor, encode_tensor

Outcome = Arrays | CallError
Positions = tuple[int, ...]
"""The requests of one call, by their positions in the batch."""
CallSteps = Generator[Positions, Arrays, list[Outcome]]
"""The calls that a batch needs: yields the requests of the next, and takes its answer or CallError."""


class AnswerRows(Mapping[str, Array]):
    """The rows of one request in the answer to a call for several."""

    def __init__(self, answer: Arrays, begin: int, end: int) -> None:
        self.answer = answer
        self.begin = begin
        self.end = end

    def __getitem__(self, name: str) -> Array:
        return self.answer[name][self.begin : self.end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answer)

    def __len__(self) -> int:
        return len(self.answer)


class RequestBatch:
    """Requests whose tensors are joined and encoded once, for all calls that take them."""

    def __init__(self, requests: Sequence[Arrays], features: Sequence[Arrays] = ()) -> None:
        """Join these requests, each with its features if there are any, which replace inputs of the same names."""
        self._requests = requests
        self._features = features
        self.rows = [len(next(iter(request.values()))) for request in requests]
        """The number of rows of each request."""
        self._groups: dict[tuple[str, ...], list[Positions]] = {}
        self._encoded: dict[tuple[str, Positions], EncodedTensor] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def select_rows(self, rows: Mapping[int, Array]) -> "RequestBatch":
        """Return the batch of some of the requests, by position, each with these of its rows."""
        return RequestBatch(
            [SelectedRows(self._requests[position], selected) for position, selected in rows.items()],
            [SelectedRows(self._features[position], selected) for position, selected in rows.items()]
            if self._features
            else (),
        )

    def encode_input(self, spec: TensorSpec, positions: Positions) -> EncodedTensor:
        """Return an input of these requests, joined."""
        key = spec.name, positions
        tensor = self._encoded.get(key)
        if tensor is None:
            tensor = self._encoded[key] = encode_tensor(self.join_rows(spec.name, positions), spec)
        return tensor

    def join_rows(self, name: str, positions: Positions) -> Array:
        """Return the rows of a tensor of these requests; those that follow each other in one answer are not copied."""
        pieces = [self._locate_rows(name, position) for position in positions]
        first, begin, end = pieces[0]
        for array, next_begin, next_end in pieces[1:]:
            if array is not first or next_begin != end:
                return np.concatenate([array[begin:end] for array, begin, end in pieces])
            end = next_end
        return first[begin:end]

    def group_by_shape(self, names: tuple[str, ...]) -> list[Positions]:
        """Return the requests whose rows have the same shapes, in order."""
        if names not in self._groups:
            groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
            for position in range(len(self)):
                shapes = tuple(self._locate_rows(name, position)[0].shape[1:] for name in names)
                groups.setdefault(shapes, []).append(position)
            self._groups[names] = [tuple(group) for group in groups.values()]
        return self._groups[names]

    def split_group(self, group: Positions, max_rows: int | None) -> Iterator[Positions]:
        """Yield the requests of a group for calls of at most `max_rows` rows, in order; a longer request is alone."""
        begin = rows = 0
        for place, position in enumerate(group):
            rows += self.rows[position]
            if max_rows is not None and rows > max_rows and place > begin:
                yield group[begin:place]
                begin, rows = place, self.rows[position]
        yield group[begin:]

    def split_answer(self, answer: Arrays, positions: Positions) -> list[AnswerRows]:
        """Return each request's rows of the answer.

        Raises:
            CallError: the answer has another number of rows.
        """
        ends = list(accumulate(self.rows[position] for position in positions))
        for name, array in answer.items():
            if array.ndim == 0 or len(array) != ends[-1]:
                raise CallError(
                    FailureKind.FAILED,
                    f"output {name} has shape {list(array.shape)} for {ends[-1]} rows: the model must answer row by row",
                )
        return [AnswerRows(answer, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def _locate_rows(self, name: str, position: int) -> tuple[Array, int, int]:
        """Return the array that has the request's rows of a tensor, the first of them, and the end."""
        source = self._requests[position]
        if self._features and name in self._features[position]:
            source = self._features[position]
        if isinstance(source, AnswerRows):
            return source.answer[name], source.begin, source.end
        array = source[name]
        return array, 0, len(array)


def infer_together(batch: RequestBatch, names: tuple[str, ...], max_rows: int | None = None) -> CallSteps:
    """Ask for all requests of `batch` in one call, and return for each its rows of the answer or its error.

    Requests with more than `max_rows` rows in all take several calls, one after the other; no request is divided.

    If the model refuses a call or fails on it, the call is repeated in halves, down to the request that causes the
    failure, so that it does not fail the others. A model that fails on everything is not overloaded: a call of n requests
    causes at most 2·log2(n) others. Only requests whose rows have the same shapes are joined.
    """
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(batch)
    for group in batch.group_by_shape(names):
        for positions in batch.split_group(group, max_rows):
            answers = yield from _infer_or_halve(batch, positions)
            for position, answer in zip(positions, answers, strict=True):
                outcomes[position] = answer
    return outcomes


def _infer_or_halve(batch: RequestBatch, group: Positions) -> CallSteps:
    """Halve failing calls, widest first, as often as it takes to find one bad request; the rest then fails together."""
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(group)
    halvings = (len(group) - 1).bit_length()
    pending = deque([(0, len(group))])
    while pending:
        begin, end = pending.popleft()
        positions = group[begin:end]
        try:
            outcomes[begin:end] = batch.split_answer((yield positions), positions)
        except CallError as error:
            outcomes[begin:end] = [error] * len(positions)
            if len(positions) > 1 and error.worth_halving and halvings:
                halvings -= 1
                middle = begin + len(positions) // 2
                pending += (begin, middle), (middle, end)
    return outcomes
