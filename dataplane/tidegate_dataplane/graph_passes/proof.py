"""Prove a rewritten graph against the original one: the same answers on the same requests, and not more time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, log, sqrt
from typing import Any, Final, Protocol

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.samples import Request

MIN_RUNS: Final = 7
RUN_SECONDS: Final = 0.2
"""Most processor time for the measurement of one request on one graph, unless MIN_RUNS take longer."""
MIN_RUN_SECONDS: Final = 0.02
MIN_PRECISE_RUNS: Final = 32
FINEST: Final = 0.005
COARSEST: Final = 0.02
"""A measurement ends early, but not before MIN_RUN_SECONDS and MIN_PRECISE_RUNS, once the standard error of the ratio is a
twentieth of the ratio's distance from 1, and between these."""
MAX_WAITING: Final = 10
"""How many times as long a measurement may take by the clock on the wall."""
MEMORY_TEXTS: Final = ("bad_alloc", "Failed to allocate memory")
"""Parts of ONNX Runtime's messages when an allocation fails."""


class GraphRefusedError(ValueError):
    """ONNX Runtime does not accept a graph; the message is its own."""


class Session:
    """A graph in ONNX Runtime on one CPU thread."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Raise GraphRefusedError if ONNX Runtime does not load the graph, MemoryError if there is no memory for it."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            # ONNX Runtime raises a class of its own for each status, and has no common one.
            _raise_if_memory(error)
            raise GraphRefusedError(str(error)) from error

    def run_request(self, request: Request) -> list[Array] | None:
        """Return the outputs, or None if the graph refuses the request; raise MemoryError if there is no memory for it."""
        try:
            outputs: Any = self._session.run(None, dict(request))
        except Exception as error:  # noqa: BLE001  see above
            _raise_if_memory(error)
            return None
        return list(outputs)


class Answering(Protocol):
    """A graph that answers requests, in ONNX Runtime or elsewhere."""

    def run_request(self, request: Request) -> list[Array] | None:
        """Return the outputs, or None if it refuses the request."""
        ...


def _raise_if_memory(error: Exception) -> None:
    """Raise MemoryError for an error of ONNX Runtime that says nothing about the graph."""
    text = str(error)
    if isinstance(error, MemoryError) or not text or any(part in text for part in MEMORY_TEXTS):
        raise MemoryError(text) from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the answers of two graphs differ."""

    answered: int
    """Requests with rows that both graphs answered."""
    max_error: float
    """Largest difference of two numbers, as a share of the largest number of the output; infinite where an answer is missing."""
    problem: str = ""
    """What is infinite, for people."""


def compare_answers(
    original: Answering, rewritten: Answering, requests: Iterable[tuple[Request, Request]]
) -> Comparison:
    """Return the difference of the answers to pairs of requests, for the original and for the rewritten graph."""
    answered, error = 0, 0.0
    for request, other in requests:
        expected, answer = original.run_request(request), rewritten.run_request(other)
        if expected is None or answer is None:
            error = max(error, 0.0 if expected is answer else np.inf)
            continue
        answered += any(array.size for array in request.values())
        error = max(error, *map(measure_error, expected, answer))
    return Comparison(answered, error)


def compare_logged(
    original: Answering,
    rewritten: Answering,
    requests: Iterable[tuple[Request, Request]],
    samples: Iterable[Request] = (),
) -> Comparison:
    """Return the same for requests of clients, without those that the original refuses.

    An error is a share of the output's largest number in all of them and in the answers to `samples`: of one request alone, that
    number may be a score near zero, and the error of its rounding a large share of it.
    """
    answered, problem = 0, ""
    differences: dict[int, float] = {}
    largest: dict[int, float] = {}
    for request in samples:
        for output, array in enumerate(original.run_request(request) or ()):
            largest[output] = max(largest.get(output, 0.0), _measure_difference(array, array)[1])
    for request, other in requests:
        expected, answer = original.run_request(request), rewritten.run_request(other)
        if expected is None:
            continue
        if answer is None:
            problem = problem or "a request is refused"
            continue
        answered += 1
        for output, arrays in enumerate(zip(expected, answer, strict=True)):
            difference, number = _measure_difference(*arrays)
            if difference == np.inf:
                problem = problem or f"output {output + 1} {_explain_difference(*arrays)}"
            differences[output] = max(differences.get(output, 0.0), difference)
            largest[output] = max(largest.get(output, 0.0), number)
    errors = [
        difference / max(largest[output], float(np.finfo(np.float32).tiny))
        for output, difference in differences.items()
    ]
    return Comparison(answered, max([np.inf if problem else 0.0, *errors]), problem)


def measure_error(expected: Array, answer: Array) -> float:
    """Return the largest difference as a share of the largest expected number; 0.0 only for arrays that are equal, NaN included."""
    difference, largest = _measure_difference(expected, answer)
    is_share = 0.0 < difference < np.inf
    return difference / max(largest, float(np.finfo(expected.dtype).tiny)) if is_share else difference


def _measure_difference(expected: Array, answer: Array) -> tuple[float, float]:
    """Return the largest difference and the largest expected number; infinite and 1.0 for arrays that are not comparable."""
    if not isinstance(expected, np.ndarray) or not isinstance(answer, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        message = "an output is no tensor, so answers cannot be compared"
        raise TypeError(message)
    if expected.shape != answer.shape or expected.dtype != answer.dtype:
        return np.inf, 1.0
    if expected.dtype.kind != "f":
        return (0.0 if np.array_equal(expected, answer) else np.inf), 1.0
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(answer)):
        return np.inf, 1.0
    if not np.array_equal(expected[~finite], answer[~finite], equal_nan=True):
        return np.inf, 1.0
    if not finite.any():
        return 0.0, 0.0
    wide, other = expected[finite].astype(np.float64), answer[finite].astype(np.float64)
    return float(np.abs(wide - other).max()), float(np.abs(wide).max())


def _explain_difference(expected: Array, answer: Array) -> str:
    """Return how two outputs differ whose difference is no number."""
    if expected.shape != answer.shape or expected.dtype != answer.dtype:
        return f"is {answer.dtype}{list(answer.shape)} instead of {expected.dtype}{list(expected.shape)}"
    return "has numbers that are not finite" if expected.dtype.kind == "f" else "has other values"


def measure_speedups(
    original: Answering,
    rewritten: Answering,
    requests: Sequence[tuple[Request, Request]],
    clock: Callable[[], float] = time.thread_time,
) -> list[float]:
    """Return how many times faster the rewritten graph answers each request: medians of runs in turn.

    Processor time is measured, since a session runs on the calling thread alone: other work on the machine does not count, and
    leaves as many runs up to MAX_WAITING. On a machine without noise, a tenth of RUN_SECONDS is enough.
    """
    return [_measure_speedup(original, rewritten, pair, clock) for pair in requests]


def mean_speedup(speedups: Sequence[float]) -> float:
    """Return the geometric mean of speed-ups; 1.0 without any."""
    return exp(statistics.fmean(map(log, speedups))) if speedups else 1.0


def _measure_speedup(
    original: Answering, rewritten: Answering, pair: tuple[Any, Any], clock: Callable[[], float]
) -> float:
    times: tuple[list[float], list[float]] = ([], [])
    spent, end = 0.0, time.monotonic() + MAX_WAITING * 2 * RUN_SECONDS
    while len(times[0]) < MIN_RUNS or (
        spent < 2 * RUN_SECONDS and time.monotonic() < end and not _is_precise(times, spent)
    ):
        for session, request, taken in zip((original, rewritten), pair, times, strict=True):
            start = clock()
            answer = session.run_request(request)
            taken.append(clock() - start)
            spent += taken[-1]
            if answer is None:
                message = "a request that was to be measured was refused"
                raise ValueError(message)
    return statistics.median(times[0]) / statistics.median(times[1])


def _is_precise(times: tuple[list[float], list[float]], spent: float) -> bool:
    """Return whether the ratio of the medians is known well enough; judged whenever the number of runs has doubled."""
    runs = len(times[0])
    if runs < MIN_PRECISE_RUNS or runs & (runs - 1) or spent < 2 * MIN_RUN_SECONDS:
        return False
    error = hypot(*map(_estimate_error, times))
    if error > COARSEST:
        return False
    distance = abs(log(statistics.median(times[0]) / statistics.median(times[1])))
    return error <= max(FINEST, distance / 20)


def _estimate_error(taken: Sequence[float]) -> float:
    """Return the standard error of the median as a share of it.

    For n normal values it is 1.2533 σ / √n (Kendall and Stuart, The Advanced Theory of Statistics 1, 10.11), and σ is a
    1.349th of the distance between the quartiles, which outliers do not change.
    """
    lower, middle, upper = statistics.quantiles(taken, n=4)
    return 1.2533 / 1.349 * (upper - lower) / (middle * sqrt(len(taken))) if middle else inf
