"""Load on the probe model: its client, what is asked, and which answer of each version is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builders import probe_model
from builders.waiting import LIMIT_S, wait_until
from tidegate_localcluster.demo.load import CheckedLoad, Scorer, ScoringBatch
from tidegate_localcluster.demo.scoring import ScoredAnswer

BATCHES: Final = 16
_MOST_ROWS: Final = 8
_VERSIONS: Final = range(1, 10)
"""All that a test publishes for one Triton."""


class ProbeClient:
    """One gRPC connection that asks for the probe model."""

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str],
        *,
        model: str = "probe",
        timeout_s: float = LIMIT_S,
        **options: Any,
    ) -> None:
        """`options` are those of Triton's client."""
        self._client = triton.InferenceServerClient(address, **options)
        self._headers = dict(headers)
        self._model = model
        self._timeout_s = timeout_s

    def score(self, inputs: Mapping[str, Any]) -> ScoredAnswer:
        """Return scores float32 [rows] as they came, for a Load, which checks them. Raises InferenceServerException."""
        tensor = triton.InferInput("x", list(inputs["x"].shape), "FP32")
        tensor.set_data_from_numpy(inputs["x"])
        result: Any = self._client.infer(
            self._model, [tensor], headers=self._headers, client_timeout=self._timeout_s
        )
        return ScoredAnswer(
            np.asarray(result.as_numpy("score")).ravel(), str(result.get_response().model_version)
        )

    def ask(self, x: float = 0.0, rows: int = 1) -> ScoredAnswer:
        """Send one request of so many rows of `x`; an answer that is not exactly the named version's fails the test. Raises InferenceServerException."""
        inputs = np.full((rows, 1), x, dtype=np.float32)
        answer = self.score({"x": inputs})
        assert probe_model.is_answer(answer.scores, inputs, answer.version), answer
        return answer

    def outcome(self, x: float = 0.0, rows: int = 1) -> str:
        """Return the version that answered such a request, or the name of the status that refused it."""
        try:
            return self.ask(x, rows).version
        except InferenceServerException as error:
            return str(error.status()).removeprefix("StatusCode.")

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def access_client(
    address: str, access: str, headers: Mapping[str, str] | None = None, **options: Any
) -> ProbeClient:
    """Return a client of a gateway that asks for a ModelAccess, `namespace/name`."""
    return ProbeClient(address, {"x-tidegate-access": access, **(headers or {})}, **options)


class _TritonClient(ProbeClient):
    """A client that tells versions by their scores: two artefacts may have served under one version."""

    def score(self, inputs: Mapping[str, Any]) -> ScoredAnswer:
        answer = super().score(inputs)
        known = answer.scores.size and np.isfinite(answer.scores[0])
        return replace(answer, version=str(int(answer.scores[0] // probe_model.STEP))) if known else answer


@dataclass(frozen=True, slots=True)
class _Answers(Mapping[str, NDArray[np.float32]]):
    """The right answers to `rows`, by version."""

    rows: NDArray[np.float32]
    versions: Collection[int]

    def __getitem__(self, version: str) -> NDArray[np.float32]:
        if not version.isdecimal() or int(version) not in self.versions:
            raise KeyError(version)
        return probe_model.answer(self.rows, int(version))

    def __iter__(self) -> Iterator[str]:
        return map(str, self.versions)

    def __len__(self) -> int:
        return len(self.versions)


def probe_batches(versions: Collection[int]) -> Sequence[ScoringBatch]:
    """Return requests of one to eight rows that no other of them has: the answer to another request is a wrong one.

    `versions` are those that may answer; a set may grow while the load goes on.
    """
    return [_batch(number, versions) for number in range(BATCHES)]


def _batch(number: int, versions: Collection[int]) -> ScoringBatch:
    first = number * _MOST_ROWS
    rows = np.arange(first, first + 1 + number % _MOST_ROWS, dtype=np.float32)[:, None]
    return ScoringBatch({"x": rows}, _Answers(rows, versions))


class PatientLoad(CheckedLoad):
    """A load that lasts as long as its block, and whose waits count on the clock of all waits."""

    def __init__(
        self, scorers: Callable[[], Scorer], batches: Sequence[ScoringBatch], **options: Any
    ) -> None:
        """`options` are those of CheckedLoad."""
        super().__init__(scorers, batches, **{"max_seconds": math.inf, **options})

    def wait_for(self, version: str, count: int, timeout_s: float = LIMIT_S) -> None:
        """Wait until `version` has given `count` correct answers."""
        self._wait_patiently(
            lambda: self.report().versions.get(version, 0) >= count,
            f"version {version} gives {count} answers",
            timeout_s,
        )

    def wait_sent(self, count: int, timeout_s: float = LIMIT_S) -> None:
        """Wait until `count` requests were sent in total."""
        self._wait_patiently(lambda: self.report().sent >= count, f"{count} requests are sent", timeout_s)

    def wait_failed(self, count: int, timeout_s: float = LIMIT_S) -> None:
        """Wait until `count` requests have failed."""
        self._wait_patiently(lambda: self.report().failed >= count, f"{count} requests fail", timeout_s)

    def _wait_patiently(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        def describe() -> object:
            report = self.report()
            return dict(report.versions), *report.problems

        wait_until(holds, what, timeout_s=timeout_s, evidence=describe)


@contextmanager
def load_on(address: str, model: str, *, threads: int = 4, pause_s: float = 0.005) -> Iterator[CheckedLoad]:
    """Ask one Triton for as long as the block lasts.

    `pause_s` is from an answer to the next request: some hundred requests a second leave the processor to the others.
    A wrong answer fails the test, also where requests are expected to fail.
    """
    with PatientLoad(
        lambda: _TritonClient(address, {}, model=model),
        probe_batches(_VERSIONS),
        threads=threads,
        pause_s=pause_s,
    ) as load:
        yield load
    assert load.report().wrong == 0, load.report().problems


def answered_by(load: CheckedLoad) -> set[str]:
    """Return the versions that answered a load of which no request may have failed."""
    report = load.finish()
    assert report.problems == ()
    return set(report.versions)
