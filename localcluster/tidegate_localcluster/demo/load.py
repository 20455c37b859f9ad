"""Send requests while something changes, and count the result of each."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.scoring import TOLERANCE, ScoredAnswer

THREADS: Final = 4
MAX_SECONDS: Final = 120.0
POLL_INTERVAL_S: Final = 0.05
JOIN_TIMEOUT_S: Final = 30.0
TEXTS_SHOWN: Final = 3
TEXTS_KEPT: Final = 100
"""Bound per client for different texts of failures, and of wrong answers: they may name a port or a time."""
OTHER_TEXTS: Final = "others"
BUCKET_GROWTH: Final = math.log(1.01)
VALUES_SHOWN: Final = 4

Tensors = Mapping[str, NDArray[Any]]
Key = TypeVar("Key")


class Scorer(Protocol):
    """One client, used by one thread only."""

    def score(self, inputs: Tensors) -> ScoredAnswer:
        """Send one request; raises what its client raises."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class ScoringBatch:
    """One request, and the correct scores of each published version: float32 [rows]."""

    inputs: Tensors
    expected: Mapping[str, NDArray[np.float32]]

    def describe_wrong(self, answer: ScoredAnswer) -> str | None:
        """Describe what is wrong with `answer`, or return None if it is exactly that of the version it names."""
        expected = self.expected.get(answer.version)
        if expected is None:
            return f"an answer of version {answer.version!r}, which was never published"
        if _scores_match(answer.scores, expected):
            return None
        return (
            f"an answer of version {answer.version} that is not that version's: "
            f"{_format_scores(answer.scores)} instead of {_format_scores(expected)}"
        )


class LatencyHistogram:
    """Histogram of latencies in buckets that grow by 1 %, so memory does not grow with the number of answers."""

    def __init__(self, buckets: Mapping[int, int] | None = None) -> None:
        """Start with these counts by bucket."""
        self._buckets: Counter[int] = Counter(buckets)

    def count_answer(self, seconds: float) -> None:
        """Count one answer."""
        self._buckets[round(math.log(max(seconds, 1e-9)) / BUCKET_GROWTH)] += 1

    def copy_counts(self) -> Mapping[int, int]:
        """Return the counts by bucket; safe while another thread adds."""
        return dict(self._buckets)

    def quantile_s(self, quantile: float) -> float:
        """Return the latency in seconds, within 0.5 %; 0 if nothing was counted."""
        rank = quantile * (self._buckets.total() - 1)
        for bucket, count in sorted(self._buckets.items()):
            rank -= count
            if rank < 0:
                return math.exp(bucket * BUCKET_GROWTH)
        return 0.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Results of all requests: correct answers by version, failures and wrong answers by text."""

    versions: Mapping[str, int]
    failures: Mapping[str, int]
    wrong_answers: Mapping[str, int]
    latencies: LatencyHistogram
    seconds: float

    @property
    def sent(self) -> int:
        """Return the number of requests sent; each was answered correctly, answered wrongly, or failed."""
        return sum(self.versions.values()) + self.failed + self.wrong

    @property
    def failed(self) -> int:
        """Return the number of requests that got an error or a rejection instead of an answer."""
        return sum(self.failures.values())

    @property
    def wrong(self) -> int:
        """Return the number of answers that differ from those of the version they name, or name an unknown one."""
        return sum(self.wrong_answers.values())

    @property
    def errors(self) -> Sequence[str]:
        """Return the most frequent errors, with their counts."""
        return _format_most_frequent(self.failures)

    @property
    def problems(self) -> Sequence[str]:
        """Return the most frequent errors and wrong answers; empty if every answer was correct."""
        failed = [f"{self.failed} of {self.sent} failed", *self.errors] if self.failed else []
        wrong = [f"{self.wrong} of {self.sent} wrong", *_format_most_frequent(self.wrong_answers)]
        return (*failed, *(wrong if self.wrong else ()))

    def quantile_ms(self, quantile: float) -> float:
        """Return the latency of correct answers in milliseconds; 0 if there was none."""
        return self.latencies.quantile_s(quantile) * 1000

    def since_report(self, earlier: "LoadReport") -> "LoadReport":
        """Return the results of the requests after an earlier report of the same load."""
        return LoadReport(
            versions=Counter(self.versions) - Counter(earlier.versions),
            failures=Counter(self.failures) - Counter(earlier.failures),
            wrong_answers=Counter(self.wrong_answers) - Counter(earlier.wrong_answers),
            latencies=LatencyHistogram(
                Counter(self.latencies.copy_counts()) - Counter(earlier.latencies.copy_counts())
            ),
            seconds=self.seconds - earlier.seconds,
        )


@dataclass(slots=True)
class _LoadWorker:
    """One closed loop: send, wait for the answer, pause. Only its own thread writes its counters."""

    scorer: Scorer
    batches: Sequence[ScoringBatch]
    pause_s: float
    say: Callable[[str], None]
    versions: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    wrong_answers: Counter[str] = field(default_factory=Counter[str])
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    sent_at: dict[str, float] = field(default_factory=dict[str, float])
    """Time of sending of the newest request that a version has answered correctly."""

    def run(self, stop_event: threading.Event, deadline: float) -> None:
        index = 0
        while not stop_event.is_set() and time.monotonic() < deadline:
            self._send_batch(self.batches[index % len(self.batches)])
            index += 1
            stop_event.wait(self.pause_s)

    def _send_batch(self, batch: ScoringBatch) -> None:
        sent_at = time.monotonic()
        try:
            answer = self.scorer.score(batch.inputs)
        except Exception as error:  # noqa: BLE001 - any exception means that the request is lost
            text = str(error) or repr(error)
            _keep_count(self.failures, text)
            self.say(f"failed after {time.monotonic() - sent_at:.3f} s: {text}")
            return
        seconds = time.monotonic() - sent_at
        if (wrong := batch.describe_wrong(answer)) is not None:
            _keep_count(self.wrong_answers, wrong)
            self.say(f"wrong: {wrong}")
            return
        self.versions[answer.version] += 1
        self.sent_at[answer.version] = sent_at
        self.latencies.count_answer(seconds)


class CheckedLoad:
    """A few clients in closed loops, for as long as the context lasts and at most for `max_seconds`."""

    def __init__(
        self,
        scorers: Callable[[], Scorer],
        batches: Sequence[ScoringBatch],
        *,
        threads: int = THREADS,
        max_seconds: float = MAX_SECONDS,
        pause_s: float = 0.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Give each of `threads` clients its own scorer and its own share of `batches`.

        With `pause_s` between its requests a load leaves the machine to what is measured; without, it uses all of it.
        `say` gets a line for each request that fails or is answered wrongly, from the thread of its client.
        """
        self._workers = [
            _LoadWorker(scorers(), batches[index::threads], pause_s, say) for index in range(threads)
        ]
        self._max_seconds = max_seconds
        self._stop_event = threading.Event()
        self._threads: list[threading.Thread] = []
        self._started_at = 0.0
        self._stopped_at: float | None = None

    def __enter__(self) -> Self:
        """Start the clients."""
        self._started_at = time.monotonic()
        deadline = self._started_at + self._max_seconds
        for index, worker in enumerate(self._workers):
            thread = threading.Thread(
                target=worker.run, args=(self._stop_event, deadline), name=f"load-{index}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clients once their requests in flight are answered."""
        self._stop_workers()

    def wait_for(self, version: str, count: int, timeout_s: float) -> None:
        """Wait until `version` has given `count` correct answers. Raises DemoError with the answers by version."""
        self._wait_until(
            lambda: sum(worker.versions[version] for worker in self._workers) >= count,
            lambda report: (
                f"version {version} gave {report.versions.get(version, 0)} of {count} answers "
                f"in {timeout_s:.0f} s; answers by version: {dict(report.versions)}"
            ),
            timeout_s,
        )

    def wait_sent(self, count: int, timeout_s: float) -> None:
        """Wait until `count` requests were sent in total. Raises DemoError after `timeout_s`."""
        self._wait_until(
            lambda: self.report().sent >= count,
            lambda report: f"not in {timeout_s:.0f} s: {count} requests sent; sent: {report.sent}",
            timeout_s,
        )

    def wait_failed(self, count: int, timeout_s: float) -> None:
        """Wait until `count` requests have failed. Raises DemoError after `timeout_s`."""
        self._wait_until(
            lambda: sum(worker.failures.total() for worker in self._workers) >= count,
            lambda report: f"not in {timeout_s:.0f} s: {count} requests failed; sent: {report.sent}",
            timeout_s,
        )

    def last_sent_at(self, version: str) -> float:
        """Return when the newest request that `version` answered correctly was sent (time.monotonic), or 0."""
        return max(worker.sent_at.get(version, 0.0) for worker in self._workers)

    def report(self) -> LoadReport:
        """Return the results so far; the cost does not grow with the number of requests."""
        return LoadReport(
            versions=dict(sorted(_sum_counts(worker.versions for worker in self._workers).items())),
            failures=_sum_counts(worker.failures for worker in self._workers),
            wrong_answers=_sum_counts(worker.wrong_answers for worker in self._workers),
            latencies=LatencyHistogram(
                _sum_counts(worker.latencies.copy_counts() for worker in self._workers)
            ),
            seconds=(self._stopped_at or time.monotonic()) - self._started_at,
        )

    def finish(self) -> LoadReport:
        """Stop the clients and return the results; a request without an answer by then counts as failed."""
        self._stop_workers()
        report = self.report()
        unanswered = sum(thread.is_alive() for thread in self._threads)
        if not unanswered:
            return report
        text = f"no answer {JOIN_TIMEOUT_S:g} s after the load ended"
        return replace(report, failures={**report.failures, text: unanswered})

    def _wait_until(
        self, holds: Callable[[], bool], describe: Callable[[LoadReport], str], timeout_s: float
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline or not any(thread.is_alive() for thread in self._threads):
                report = self.report()
                raise DemoError(
                    f"{describe(report)}, failed: {report.failed}, wrong: {report.wrong} {list(report.problems)}"
                )
            time.sleep(POLL_INTERVAL_S)

    def _stop_workers(self) -> None:
        if self._stop_event.is_set():
            return
        self._stop_event.set()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped_at = time.monotonic()
        for worker in self._workers:
            worker.scorer.close()


def _scores_match(scores: NDArray[Any], expected: NDArray[np.float32]) -> bool:
    """Return whether an answer is the expected one: same shape, same type, no NaN."""
    if (scores.shape, scores.dtype) != (expected.shape, expected.dtype):
        return False
    return bool((np.abs(scores - expected) <= TOLERANCE).all())


def _format_scores(scores: NDArray[Any]) -> str:
    suffix = f" and {scores.size - VALUES_SHOWN} more" if scores.size > VALUES_SHOWN else ""
    return f"{scores.ravel()[:VALUES_SHOWN].tolist()}{suffix}"


def _keep_count(counts: Counter[str], text: str) -> None:
    """Count `text`; count texts beyond TEXTS_KEPT together."""
    counts[text if text in counts or len(counts) < TEXTS_KEPT else OTHER_TEXTS] += 1


def _sum_counts(counters: Iterable[Mapping[Key, int]]) -> Mapping[Key, int]:
    """Return the sum of counts. Copy each first, because another thread may still count."""
    total: Counter[Key] = Counter()
    for counts in counters:
        total.update(dict(counts))
    return total


def _format_most_frequent(counts: Mapping[str, int]) -> Sequence[str]:
    return tuple(f"{count} × {text}" for text, count in Counter(counts).most_common(TEXTS_SHOWN))
