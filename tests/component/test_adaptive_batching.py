"""Adaptive batching on a real Triton: fewer executions than requests, and each answer as if its request had come alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from builders import sequence_model
from builders.metrics_page import metric
from builders.sequence_model import ENTRIES, Pooling, publish_sequences
from builders.waiting import wait_until
from fixtures.agent import ModelPod, serves_version
from tidegate_dataplane.contract import BatchingMode, JoinLimit

pytestmark = [pytest.mark.triton]

CLIENTS = 8
Histories = NDArray[np.int64]


def serve(pod: ModelPod, pooling: Pooling, batching: BatchingMode = BatchingMode.ADAPTIVE) -> None:
    publish_sequences(pod.artefact, 1, pooling=pooling)
    pod.put(pod.order(1, batching=batching))

    pod.wait_for("version 1 serves", serves_version(1))


def histories(seed: int, lengths: Sequence[int]) -> list[Histories]:
    """Return requests of one to four rows, of these lengths in turn, without the id that pads."""
    random = np.random.default_rng(seed)
    return [
        random.integers(1, ENTRIES, size=(1 + number % 4, length)) for number, length in enumerate(lengths)
    ]


def find_wrong_answers(pod: ModelPod, pooling: Pooling, requests: Sequence[Histories]) -> list[str]:
    """Send the requests to the pod; return the answers that are wrong."""
    return sequence_model.find_wrong_answers(
        pod.triton.grpc, pod.model, requests, pooling=pooling, clients=CLIENTS
    )


def count(pod: ModelPod, name: str, **labels: str) -> float:
    """Return a count of the model from the server's own metrics."""
    return metric(
        pod.triton.read_metrics_page(), f"tidegate_model_{name}", model=pod.model, version="1", **labels
    )


def reports_limit(pod: ModelPod, limit: JoinLimit) -> Callable[[], bool]:
    def holds() -> bool:
        batching = pod.report().batching
        return batching is not None and batching.limit is limit

    return holds


@pytest.mark.no_rerun("a wrong answer")
def test_requests_of_all_lengths_share_executions_and_every_answer_is_right(pod: ModelPod) -> None:
    serve(pod, Pooling.MASKED_SUM)
    requests = histories(1, [5, 9, 20, 33] * 200)
    assert find_wrong_answers(pod, Pooling.MASKED_SUM, requests) == []
    sent = len(requests)

    def has_counted() -> bool:
        # The runner sends its counts with the first answer after a second.
        nonlocal sent
        sent += CLIENTS
        return (
            find_wrong_answers(pod, Pooling.MASKED_SUM, requests[:CLIENTS]) == []
            and count(pod, "joined_requests_total", way="padding") > 0
        )

    wait_until(has_counted, what="padded requests are counted")
    # Measured, idle and busy: 0.45 to 0.65 executions for each request, and 208 or more that were padded.
    assert count(pod, "executions_total") < 0.8 * sent
    assert count(pod, "joined_requests_total", way="padding") >= 50
    assert count(pod, "join_mismatches_total", way="rows") == 0
    assert count(pod, "join_mismatches_total", way="padding") == 0
    wait_until(reports_limit(pod, JoinLimit.ANY_SHAPE), what="the agent reports that all may be joined")


@pytest.mark.no_rerun("a wrong answer")
def test_a_model_that_ranks_the_rows_of_a_request_never_gets_those_of_another(pod: ModelPod) -> None:
    serve(pod, Pooling.SHARE_OF_BATCH)
    requests = histories(2, [7] * 400)
    assert find_wrong_answers(pod, Pooling.SHARE_OF_BATCH, requests) == []
    wait_until(reports_limit(pod, JoinLimit.ALONE), what="the agent reports that requests are alone")
    assert count(pod, "joined_requests_total", way="rows") == 0


@pytest.mark.no_rerun("a wrong answer")
def test_a_mean_without_a_mask_is_joined_with_its_own_length_alone_also_after_a_new_agent(
    pod: ModelPod,
) -> None:
    serve(pod, Pooling.MEAN)
    send = partial(find_wrong_answers, pod, Pooling.MEAN)
    assert send(histories(3, [5, 9] * 300)) == []
    wait_until(reports_limit(pod, JoinLimit.SAME_SHAPE), what="the agent reports that padding is refused")
    pod.kill_agent()
    assert send(histories(4, [5, 9] * 100)) == []
    pod.start_agent()
    wait_until(reports_limit(pod, JoinLimit.SAME_SHAPE), what="the next agent is told so too")
    assert count(pod, "joined_requests_total", way="padding") == 0


def test_fixed_batching_compares_nothing_which_is_what_the_trials_are_for(pod: ModelPod) -> None:
    serve(pod, Pooling.SHARE_OF_BATCH, BatchingMode.FIXED)
    wait_until(
        lambda: find_wrong_answers(pod, Pooling.SHARE_OF_BATCH, histories(5, [7] * 200)) != [],
        what="rows of another request change an answer",
    )
    assert pod.report().batching is None


def test_a_model_without_a_free_first_dimension_serves_and_the_report_says_why_nothing_is_joined(
    pod: ModelPod,
) -> None:
    publish_sequences(pod.artefact, 1, rows=2)
    pod.put(pod.order(1, batching=BatchingMode.ADAPTIVE))
    report = pod.wait_for("version 1 serves", serves_version(1))
    assert report.batching is not None
    assert report.batching.limit is JoinLimit.ALONE
    assert "free first dimension" in report.batching.message
