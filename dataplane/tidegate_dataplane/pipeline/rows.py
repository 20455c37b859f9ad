"""Join requests into one call, and split its answer."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.wire import Arrays

Outcome = Arrays | CallError
InferFunction = Callable[[Arrays], Arrays]


def count_rows(request: Arrays) -> int:
    """Return the number of rows of a request."""
    return len(next(iter(request.values())))


def infer_together(infer: InferFunction, requests: Sequence[Arrays], names: Sequence[str]) -> list[Outcome]:
    """Send all `requests` in one call, and return for each its rows of the answer or its error.

    If the model refuses a call or fails on it, the call is repeated in halves, down to the request that causes the
    failure, so that it does not fail the others. A model that fails on everything is not overloaded: n requests
    cause at most 2·log2(n) + 1 calls. Only requests whose rows have the same shapes are joined.
    """
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(requests)
    for group in _group_by_shape(requests, names):
        answers = _infer_or_halve(infer, [requests[position] for position in group], names)
        for position, answer in zip(group, answers, strict=True):
            outcomes[position] = answer
    return outcomes


def _group_by_shape(requests: Sequence[Arrays], names: Sequence[str]) -> Iterator[list[int]]:
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault(tuple(request[name].shape[1:] for name in names), []).append(position)
    yield from groups.values()


def _infer_or_halve(infer: InferFunction, requests: Sequence[Arrays], names: Sequence[str]) -> list[Outcome]:
    """Halve failing calls, widest first, as often as it takes to find one bad request; the rest then fails together."""
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(requests)
    halvings = (len(requests) - 1).bit_length()
    pending = deque([(0, len(requests))])
    while pending:
        begin, end = pending.popleft()
        group = requests[begin:end]
        try:
            outcomes[begin:end] = _split_answer(infer(_join_requests(group, names)), group)
        except CallError as error:
            outcomes[begin:end] = [error] * len(group)
            if len(group) > 1 and error.worth_halving and halvings:
                halvings -= 1
                middle = begin + len(group) // 2
                pending += (begin, middle), (middle, end)
    return outcomes


def _join_requests(requests: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    if len(requests) == 1:
        return {name: requests[0][name] for name in names}
    return {name: np.concatenate([request[name] for request in requests]) for name in names}


def _split_answer(answer: Arrays, requests: Sequence[Arrays]) -> Iterator[Arrays]:
    sizes = [count_rows(request) for request in requests]
    for name, array in answer.items():
        if array.ndim == 0 or len(array) != sum(sizes):
            raise CallError(
                FailureKind.FAILED,
                f"output {name} has shape {list(array.shape)} for {sum(sizes)} rows: the model must answer row by row",
            )
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(array, ends) for name, array in answer.items()}
    for position in range(len(requests)):
        yield {name: pieces[position] for name, pieces in parts.items()}
