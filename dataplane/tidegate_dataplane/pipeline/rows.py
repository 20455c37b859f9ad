"""Requests joined to one call and its answer split again, so that all that wait together cost one call."""

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

    What the model refuses is asked for again in halves, down to the one request that it is about:
    nobody's answer suffers from a neighbour's input. Requests are joined where their rows have one shape.
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
    try:
        return list(_split(ask(_join(requests, names)), requests))
    except CallError as error:
        if len(requests) == 1 or not error.lies_in_the_input:
            return [error] * len(requests)
    half = len(requests) // 2
    return [*_ask_or_halve(ask, requests[:half], names), *_ask_or_halve(ask, requests[half:], names)]


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
