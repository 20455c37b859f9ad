"""Keeps requests coming while something changes, and counts what became of every one of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException  # type: ignore[import-untyped]  # publishes no types

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.scoring import TOLERANCE, Answer

THREADS: Final = 4
MAX_SECONDS: Final = 120.0
POLL_INTERVAL_S: Final = 0.05
JOIN_TIMEOUT_S: Final = 30.0
ERRORS_SHOWN: Final = 3

Tensors = Mapping[str, NDArray[Any]]


class Scorer(Protocol):
    """One client, used by one thread alone."""

    def score(self, inputs: Tensors) -> Answer:
        """One request; raises InferenceServerException."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One request, and the right answer of each version: float32 [rows]."""

    inputs: Tensors
    expected: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of one request: the version that answered, or an error."""

    seconds: float
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of all of them."""

    samples: Sequence[Sample]
    seconds: float

    @property
    def sent(self) -> int:
        """How many were sent; every one of them was answered or failed."""
        return len(self.samples)

    @property
    def failed(self) -> int:
        """How many got an error, or an answer that is not exactly the named version's."""
        return sum(sample.error is not None for sample in self.samples)

    @property
    def versions(self) -> Mapping[str, int]:
        """Right answers by version."""
        found = Counter(sample.version for sample in self.samples if sample.error is None)
        return {str(version): count for version, count in sorted(found.items(), key=str)}

    @property
    def errors(self) -> Sequence[str]:
        """The most frequent errors, with their counts."""
        counts = Counter(sample.error for sample in self.samples if sample.error is not None)
        return tuple(f"{count} × {error}" for error, count in counts.most_common(ERRORS_SHOWN))

    def quantile_ms(self, quantile: float) -> float:
        """Latency of right answers in milliseconds; 0 when there was none."""
        latencies = [sample.seconds for sample in self.samples if sample.error is None]
        return float(np.quantile(latencies, quantile)) * 1000 if latencies else 0.0


@dataclass(slots=True)
class _Worker:
    """One closed loop: send, wait for the answer, send again."""

    scorer: Scorer
    batches: Sequence[Batch]
    samples: list[Sample] = field(default_factory=list[Sample])

    def run(self, ended: threading.Event, deadline: float) -> None:
        at = 0
        while not ended.is_set() and time.monotonic() < deadline:
            self.samples.append(_send(self.scorer, self.batches[at % len(self.batches)]))
            at += 1


class Load:
    """A few clients in closed loop, for as long as the context lasts and never longer than `max_seconds`."""

    def __init__(
        self,
        scorers: Callable[[], Scorer],
        batches: Sequence[Batch],
        *,
        threads: int = THREADS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Each of `threads` clients gets a scorer of its own and walks through its own share of `batches`."""
        self._workers = [_Worker(scorers(), batches[index::threads]) for index in range(threads)]
        self._max_seconds = max_seconds
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began = 0.0

    def __enter__(self) -> Self:
        """Begins."""
        self._began = time.monotonic()
        deadline = self._began + self._max_seconds
        for index, worker in enumerate(self._workers):
            thread = threading.Thread(
                target=worker.run, args=(self._ended, deadline), name=f"load-{index}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends; requests in flight are answered first."""
        self._end()

    def wait_for(self, version: str, count: int, timeout_s: float) -> None:
        """Returns once `version` has given `count` right answers; raises DemoError that says who answers instead."""
        deadline = time.monotonic() + timeout_s
        while self._count(version) < count:
            if time.monotonic() > deadline or not any(thread.is_alive() for thread in self._threads):
                report = self._report()
                raise DemoError(
                    f"version {version} gave {self._count(version)} of {count} answers in {timeout_s:.0f} s; "
                    f"answers by version: {dict(report.versions)}, failed: {report.failed} {list(report.errors)}"
                )
            time.sleep(POLL_INTERVAL_S)

    def wait_sent(self, count: int, timeout_s: float) -> None:
        """Returns once `count` requests were sent in all; raises DemoError when that takes longer."""
        self._wait(lambda report: report.sent >= count, f"{count} requests sent", timeout_s)

    def wait_failed(self, count: int, timeout_s: float) -> None:
        """Returns once `count` requests have failed; raises DemoError when they do not."""
        self._wait(lambda report: report.failed >= count, f"{count} requests failed", timeout_s)

    def finish(self) -> LoadReport:
        """Ends and reports."""
        self._end()
        return self._report()

    def _wait(self, holds: Callable[[LoadReport], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds(report := self._report()):
            if time.monotonic() > deadline or not any(thread.is_alive() for thread in self._threads):
                raise DemoError(
                    f"not in {timeout_s:.0f} s: {what}; sent: {report.sent}, failed: {report.failed} "
                    f"{list(report.errors)}"
                )
            time.sleep(POLL_INTERVAL_S)

    def _count(self, version: str) -> int:
        return sum(
            sample.version == version and sample.error is None
            for worker in self._workers
            for sample in tuple(worker.samples)
        )

    def _report(self) -> LoadReport:
        samples = [sample for worker in self._workers for sample in tuple(worker.samples)]
        return LoadReport(samples, time.monotonic() - self._began)

    def _end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
        for worker in self._workers:
            worker.scorer.close()


def _send(scorer: Scorer, batch: Batch) -> Sample:
    began = time.monotonic()
    try:
        answer = scorer.score(batch.inputs)
    except InferenceServerException as error:
        return Sample(time.monotonic() - began, error=str(error))
    seconds = time.monotonic() - began
    expected = batch.expected.get(answer.version)
    if expected is None:
        return Sample(
            seconds,
            answer.version,
            error=f"an answer of version {answer.version!r}, which was never published",
        )
    difference = float(np.abs(answer.scores - expected).max())
    if not difference <= TOLERANCE:
        return Sample(
            seconds, answer.version, error=f"an answer of version {answer.version} that is not that version's"
        )
    return Sample(seconds, answer.version)
