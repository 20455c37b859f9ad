"""Inputs with one row per request on a real Triton: sent once or repeated, before and after the graph is compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builders.http_call import read_page
from builders.metrics_page import metric
from builders.probe_model import publish_for_one_row
from builders.scoring_client import ScoringClient
from builders.sequence_model import publish_sequences
from builders.user_model import (
    USER_INPUTS,
    make_user_request,
    publish_user_model,
    repeat_user,
    score_user,
)
from builders.waiting import wait_until
from fixtures.agent import ModelPod, serves_version
from fixtures.compiler import run_compiler, wait_for_compile
from tidegate_dataplane.contract import CompilePhase, FailureReason

pytestmark = [pytest.mark.triton]

Request = Mapping[str, NDArray[np.int64]]


@pytest.fixture
def client(pod: ModelPod) -> Iterator[ScoringClient]:
    """A client of the pod's server."""
    client = ScoringClient(pod.triton.grpc, pod.model)
    yield client
    client.close()


def serve(pod: ModelPod, **changes: object) -> None:
    """Serve a version with shared inputs."""
    publish_user_model(pod.artefact, 1, mark=pod.model)
    pod.put(pod.order(1, **{"shared_inputs": USER_INPUTS, "max_batch_size": 100, **changes}))
    pod.wait_for("version 1 serves", serves_version(1))


def make_different_rows(request: Request) -> dict[str, NDArray[np.int64]]:
    """Return the request with a user of its own in the last row."""
    repeated = repeat_user(request)
    repeated["user"][-1] = (repeated["user"][-1] + 1) % 50
    return repeated


def assert_answers(client: ScoringClient) -> None:
    """Check the answers to each form of a request by value."""
    for rows in (1, 2, 30):
        once = make_user_request(rows, rows)
        for request in (once, repeat_user(once), make_different_rows(once)):
            scores = client.score(request).scores
            assert scores.tolist() == score_user(request, 1).tolist()
    mixed = {**repeat_user(make_user_request(4, 5)), "user": np.array([[7]])}
    assert client.score(mixed).scores.tolist() == score_user(mixed, 1).tolist()


def count_shared(pod: ModelPod) -> dict[str, float]:
    """Return from the server's own metrics how many requests were executed with one row of the user, by how they came."""
    page = pod.triton.read_metrics_page()
    name = "tidegate_model_shared_requests_total"
    return {way: metric(page, name, model=pod.model, version="1", way=way) for way in ("sent", "equal")}


@pytest.mark.no_rerun("a wrong answer")
def test_the_published_graph_answers_users_that_are_sent_once(pod: ModelPod, client: ScoringClient) -> None:
    serve(pod)
    assert_answers(client)
    assert count_shared(pod) == {"sent": 0, "equal": 0}


@pytest.mark.no_rerun("a wrong answer")
def test_the_compiled_graph_takes_one_row_of_the_user_unless_the_rows_differ(
    pod: ModelPod, client: ScoringClient
) -> None:
    with run_compiler(pod):
        serve(pod, graph_passes=True)
        compiled = wait_for_compile(pod, 1, CompilePhase.COMPILED)
    assert compiled.shared_inputs == USER_INPUTS
    assert compiled.speedups[100] > 2, "at the most rows that a request may have"
    assert_answers(client)
    once = make_user_request(9, 40)
    for request in [make_different_rows(once)] * 20:
        client.score(request)

    def has_counted() -> bool:
        # The runner sends its counts with the first answer after a second.
        client.score(make_user_request(1, 1))
        return count_shared(pod) == {"sent": 2, "equal": 3}

    wait_until(has_counted, what="requests of several rows and one user are counted, and no others")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user": [[1], [2]]}, "shared input 'user' has 2 rows: send one, or as many as 'item' has, 3"),
        ({"item": [[1]] * 101}, "the request has 101 rows, and spec.batching.maxBatchSize is 100"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(
    pod: ModelPod, client: ScoringClient, changes: Mapping[str, list[list[int]]], message: str
) -> None:
    serve(pod)
    request = make_user_request(1, 3)
    with pytest.raises(InferenceServerException, match=message) as refused:
        client.score({**request, **{name: np.array(rows) for name, rows in changes.items()}})
    # A gateway counts internal errors against the pod.
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert client.score(request).scores.tolist() == score_user(request, 1).tolist()


def test_a_version_without_a_shared_input_is_refused_and_the_one_before_it_stays(
    pod: ModelPod, client: ScoringClient
) -> None:
    serve(pod)
    publish_sequences(pod.artefact, 2)
    pod.put(pod.order(2, shared_inputs=USER_INPUTS, max_batch_size=100))
    report = pod.wait_for("version 2 is refused", lambda report: report.failure is not None)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.ARTEFACT_INVALID
    assert report.failure.message == "spec.model.sharedInputs: the model has no input user; it has history"
    request = make_user_request(1, 3)
    assert client.score(request).scores.tolist() == score_user(request, 1).tolist()


def test_the_warm_up_has_as_many_rows_as_a_request_may_have(pod: ModelPod) -> None:
    publish_for_one_row(pod.artefact, 1, user=True)
    pod.put(pod.order(1, shared_inputs=("user",), max_batch_size=8, warmup_requests=2))
    report = pod.wait_for("the version is refused", lambda report: report.failure is not None)
    assert report.failure is not None
    message = "failed warm-up request 2 of 2, zeros of shape {'x': [8, 1], 'user': [8, 1]}"
    assert message in report.failure.message


def test_requests_have_the_same_form_as_without_shared_inputs(pod: ModelPod) -> None:
    shapes = []
    for names in ((), USER_INPUTS):
        serve(pod, shared_inputs=names)
        page = read_page(f"http://127.0.0.1:{pod.triton.http_port}/v2/models/{pod.model}")
        metadata = json.loads(page)
        tensors = (*metadata["inputs"], *metadata["outputs"])
        shapes.append({tensor["name"]: tensor["shape"] for tensor in tensors})
    assert shapes[0] == shapes[1] == {"user": [-1, 1], "history": [-1, -1], "item": [-1, 1], "score": [-1, 1]}
