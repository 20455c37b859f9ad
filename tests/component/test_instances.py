"""Several processes of one version on a real Triton: each answers requests of its own, and the end of one is mended."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from builders import sequence_model
from builders.metrics_page import metric
from builders.sequence_model import ENTRIES, Pooling, publish_sequences
from builders.waiting import wait_until
from fixtures.agent import ModelPod, serves_version
from tidegate_dataplane.contract import BatchingMode

pytestmark = [pytest.mark.triton]

CLIENTS = 4


def serve(pod: ModelPod, instances: int, **changes: object) -> None:
    publish_sequences(pod.artefact, 1)
    pod.put(pod.order(1, instances=instances, **changes))
    pod.wait_for("version 1 serves", serves_version(1))


def find_wrong_answers(pod: ModelPod) -> Sequence[str]:
    """Send 200 requests to the pod; return the answers that are wrong."""
    random = np.random.default_rng(1)
    requests: list[NDArray[np.int64]] = [random.integers(1, ENTRIES, size=(2, 9)) for _ in range(200)]
    return sequence_model.find_wrong_answers(
        pod.triton.grpc, pod.model, requests, pooling=Pooling.MASKED_SUM, clients=CLIENTS
    )


def read_metric(pod: ModelPod, name: str) -> float:
    """Return a metric of the version from the server's own page."""
    return metric(pod.triton.read_metrics_page(), f"tidegate_model_{name}", model=pod.model, version="1")


def test_two_processes_answer_and_their_counts_and_memory_are_added(pod: ModelPod) -> None:
    before = pod.triton.model_processes()
    serve(pod, 2)
    processes = pod.triton.model_processes() - before
    assert len(processes) == 2
    ticks = {pid: read_ticks(pid) for pid in processes}
    assert find_wrong_answers(pod) == []
    assert all(read_ticks(pid) > ticks[pid] for pid in processes), "both have worked"

    def are_counted() -> bool:
        # The runner sends its counts with the first answer after a second.
        return find_wrong_answers(pod) == [] and read_metric(pod, "executions_total") >= 200

    wait_until(are_counted, what="the executions of both are counted")
    memory = read_metric(pod, "memory_bytes")
    private = sum(read_private_bytes(pid) for pid in processes)
    assert 0.5 * private < memory < 1.5 * private


def test_the_end_of_one_process_is_mended(pod: ModelPod) -> None:
    before = pod.triton.model_processes()
    serve(pod, 2, batching=BatchingMode.ADAPTIVE)
    first = pod.triton.model_processes() - before
    os.kill(min(first), signal.SIGKILL)
    wait_until(
        lambda: len(pod.triton.model_processes() - before - first) == 2,
        what="both processes are new",
    )
    pod.wait_for("version 1 serves", serves_version(1))
    assert find_wrong_answers(pod) == []


def read_ticks(pid: int) -> int:
    """Return the processor time of a process, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def read_private_bytes(pid: int) -> int:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
