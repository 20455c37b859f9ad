"""Requests of several clients share executions on the cluster, and the condition says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from builders import sequence_model
from builders.sequence_model import ENTRIES, Pooling, publish_sequences
from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate.api.reasons import Reason

CLIENTS = 8
LENGTHS = (5, 9, 20, 33)


def deploy(space: Space, pooling: Pooling) -> None:
    publish_sequences(space.folder("sequences"), 1, pooling=pooling)
    space.apply(
        "Inference",
        "probe",
        {
            "model": {"name": "sequences", "uri": space.uri("sequences"), "version": "1"},
            "resources": {"cpu": "50m", "memory": "512Mi"},
            "batching": {"mode": "Adaptive"},
        },
    )
    space.access()
    space.ready()


def find_wrong_answers(space: Space, pooling: Pooling, requests_per_client: int) -> Sequence[str]:
    """Send requests through the gateway; return the answers that are wrong."""
    random = np.random.default_rng(1)
    requests = [
        random.integers(1, ENTRIES, size=(1 + number % 4, LENGTHS[number // CLIENTS % len(LENGTHS)]))
        for number in range(CLIENTS * requests_per_client)
    ]
    return sequence_model.find_wrong_answers(
        space.installed.endpoints.gateway,
        "sequences",
        requests,
        pooling=pooling,
        clients=CLIENTS,
        headers={"x-tidegate-access": f"{space.namespace}/probe"},
    )


def find_batched(space: Space, reason: Reason) -> Mapping[str, Any] | None:
    """Return the condition Batched if it has this reason."""
    condition = space.condition("inference", "probe", "Batched")
    return condition if condition.get("reason") == reason.value else None


@pytest.mark.no_rerun("a wrong answer")
def test_requests_of_different_lengths_share_executions(space: Space) -> None:
    deploy(space, Pooling.MASKED_SUM)
    assert find_wrong_answers(space, Pooling.MASKED_SUM, 100) == []

    def joined() -> Mapping[str, Any] | None:
        assert find_wrong_answers(space, Pooling.MASKED_SUM, 5) == []
        return find_batched(space, Reason.REQUESTS_JOINED)

    condition = wait_until(joined, "the condition Batched is RequestsJoined", timeout_s=120)
    assert condition["status"] == "True"


@pytest.mark.no_rerun("a wrong answer")
@pytest.mark.produces(Reason.REQUESTS_ALONE)
def test_a_model_that_ranks_rows_answers_each_request_alone_and_the_condition_says_so(space: Space) -> None:
    deploy(space, Pooling.SHARE_OF_BATCH)

    def alone() -> Mapping[str, Any] | None:
        assert find_wrong_answers(space, Pooling.SHARE_OF_BATCH, 20) == []
        return find_batched(space, Reason.REQUESTS_ALONE)

    condition = wait_until(alone, "the condition Batched is RequestsAlone", timeout_s=120)
    assert "changes with the other rows" in condition["message"]
    # The only pod may have missed a probe under this load.
    space.ready("inference/probe")
