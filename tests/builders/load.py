"""A bounded load of small requests against one model, and what came back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc as triton_grpc

from builders.probe_model import STEP


@dataclass(slots=True)
class Answers:
    """How often each version answered, and what was refused."""

    versions: Counter[int] = field(default_factory=Counter[int])
    errors: list[str] = field(default_factory=list[str])
    wrong: int = 0

    @property
    def total(self) -> int:
        """Requests that were answered."""
        return sum(self.versions.values())


@contextmanager
def load_on(address: str, model: str, *, threads: int = 4, pause_s: float = 0.005) -> Iterator[Answers]:
    """Ask from several threads for as long as the block lasts; versions are told by the scores.

    `pause_s` is from an answer to the next request: some hundred requests a second leave the processor to the others.
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
                version = int(scores[0, 0] // STEP)
                fits = np.allclose(scores, rows + np.float32(STEP * version))
                with lock:
                    answers.versions[version] += 1
                    answers.wrong += not fits

    workers = [threading.Thread(target=ask, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield answers
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
