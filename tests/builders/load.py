"""A bounded load of small requests against one model, and what came back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray

from builders.probe_model import STEP


@dataclass(slots=True)
class Answers:
    """How often each version answered rightly, what was refused, and how many answers are no version's."""

    versions: Counter[int] = field(default_factory=Counter[int])
    errors: list[str] = field(default_factory=list[str])
    wrong: int = 0

    @property
    def total(self) -> int:
        """Requests that were answered rightly."""
        return sum(self.versions.values())


@contextmanager
def load_on(address: str, model: str, *, threads: int = 4, pause_s: float = 0.005) -> Iterator[Answers]:
    """Ask from several threads for as long as the block lasts; versions are told by the scores.

    `pause_s` is from an answer to the next request: some hundred requests a second leave the processor to the others.
    A wrong answer fails the test, also where requests are expected to fail.
    """
    answers, stop, lock = Answers(), threading.Event(), threading.Lock()

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        with triton_grpc.InferenceServerClient(address) as client:
            while not stop.wait(pause_s):
                rows = random.random((int(random.integers(1, 5)), 1), dtype=np.float32)
                tensor = triton_grpc.InferInput("x", list(rows.shape), "FP32")
                tensor.set_data_from_numpy(rows)
                try:
                    scores = client.infer(model, [tensor]).as_numpy("score")
                except triton_grpc.InferenceServerException as error:
                    with lock:
                        answers.errors.append(str(error))
                    continue
                version = _version_of(scores, rows)
                with lock:
                    if version is None:
                        answers.wrong += 1
                    else:
                        answers.versions[version] += 1

    workers = [threading.Thread(target=ask, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield answers
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
    assert answers.wrong == 0, answers


def _version_of(scores: NDArray[np.float32] | None, rows: NDArray[np.float32]) -> int | None:
    """The version whose answer to `rows` (float32 [rows, 1], below STEP) these scores are exactly; None for no version's."""
    if scores is None or scores.shape != rows.shape or not np.isfinite(scores).all():
        return None
    version = int(scores[0, 0] // STEP)
    return version if np.array_equal(scores, rows + np.float32(STEP * version)) else None
