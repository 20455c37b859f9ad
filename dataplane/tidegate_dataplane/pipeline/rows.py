"""Requests joined to one call and its answer split again, so that all that wait together cost one call."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.wire import Arrays

Outcome = Arrays | CallError
Ask = Callable[[Arrays], Arrays]


def rows_of(request: Arrays) -> int:
    """Return how many rows a request has."""
    return len(next(iter(request.values())))


def ask_together(ask: Ask, requests: Sequence[Arrays], names: Sequence[str]) -> list[Outcome]:
    """Ask for all of `requests` at once, and give each its own rows of the answer.

    What the model refuses or breaks on is asked for again in halves, down to the one request that it is about:
    nobody's answer suffers from one neighbour's input. A model that fails whatever it is asked is spared:
    n requests are at most 2·log2(n) + 1 calls. Requests are joined where their rows have one shape.
    """
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(requests)
    for group in _alike(requests, names):
        answers = _ask_or_halve(ask, [requests[place] for place in group], names)
        for place, answer in zip(group, answers, strict=True):
            outcomes[place] = answer
    return outcomes


def _alike(requests: Sequence[Arrays], names: Sequence[str]) -> Iterator[list[int]]:
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for place, request in enumerate(requests):
        groups.setdefault(tuple(request[name].shape[1:] for name in names), []).append(place)
    yield from groups.values()


def _ask_or_halve(ask: Ask, requests: Sequence[Arrays], names: Sequence[str]) -> list[Outcome]:
    """Halve what fails, widest first, as often as finding one bad request takes; what is left then fails together."""
    outcomes: list[Outcome] = [CallError(FailureKind.FAILED, "not asked")] * len(requests)
    halvings = (len(requests) - 1).bit_length()
    waiting = deque([(0, len(requests))])
    while waiting:
        begin, end = waiting.popleft()
        group = requests[begin:end]
        try:
            outcomes[begin:end] = _split(ask(_join(group, names)), group)
        except CallError as error:
            outcomes[begin:end] = [error] * len(group)
            if len(group) > 1 and error.worth_halving and halvings:
                halvings -= 1
                middle = begin + len(group) // 2
                waiting += (begin, middle), (middle, end)
    return outcomes


def _join(requests: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    if len(requests) == 1:
        return {name: requests[0][name] for name in names}
    return {name: np.concatenate([request[name] for request in requests]) for name in names}


def _split(answer: Arrays, requests: Sequence[Arrays]) -> Iterator[Arrays]:
    sizes = [rows_of(request) for request in requests]
    for name, array in answer.items():
        if array.ndim == 0 or len(array) != sum(sizes):
            raise CallError(
                FailureKind.FAILED,
                f"output {name} has shape {list(array.shape)} for {sum(sizes)} rows: the model must answer row by row",
            )
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(array, ends) for name, array in answer.items()}
    for place in range(len(requests)):
        yield {name: pieces[place] for name, pieces in parts.items()}
