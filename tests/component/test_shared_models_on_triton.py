"""One real Triton serves models of several Inferences: versions change and models come and go, and no answer is lost or wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from builders.load import answered_by, load_on
from builders.probe_model import publish_for_one_row
from builders.waiting import wait_until
from fixtures.shared_pod import SharedPod, a_shared_pod
from fixtures.triton import TritonFiles
from tidegate_dataplane.contract import AgentPhase, FailureReason, SharedOrders

pytestmark = [pytest.mark.triton]


@pytest.fixture
def shared(triton_files: TritonFiles, tmp_path: Path) -> Iterator[SharedPod]:
    with a_shared_pod(triton_files, tmp_path) as pod:
        yield pod


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_models_come_go_and_change_their_versions_and_the_others_answer_throughout(shared: SharedPod) -> None:
    pod = shared.pod
    assert pod.probe("/readyz") == 503
    shared.order(ctr=1, cvr=5)
    pod.takes_requests()
    address = pod.triton.grpc
    with load_on(address, "ctr", threads=2) as ctr_load, load_on(address, "cvr", threads=2) as cvr_load:
        ctr_load.wait_for("1", 20)
        shared.order(ctr=1, cvr=5, ltr=3)
        shared.order(ctr=2, cvr=5, ltr=3)
        shared.order(ctr=2, cvr=5)
        # Without the agent, and after its restart: the server goes on, and nothing is loaded again.
        pod.stop_agent()
        pod.start_agent()
        shared.wait_for(ctr=2, cvr=5)
        ctr_load.wait_for("2", 20)
        cvr_load.wait_for("5", 20)

    # Every answer was checked by value against the version that gave it.
    assert answered_by(ctr_load) == {"1", "2"}
    assert answered_by(cvr_load) == {"5"}
    loads = pod.triton.log.read_text().count("TRITONBACKEND_ModelInstanceInitialize: cvr_")
    assert loads == 1
    wait_until(lambda: shared.list_loaded() == {"ctr", "cvr"}, what="ltr is unloaded")
    assert not (pod.triton.repository / "ltr").exists()
    wait_until(
        lambda: 'tidegate_agent_serving_version{inference="ads/ctr"} 2.0' in pod.metrics(),
        what="the metrics follow the report",
    )

    # The negative: a model that is not ordered answers nothing.
    client = triton_grpc.InferenceServerClient(address)
    with pytest.raises(InferenceServerException, match="ltr"):
        client.get_model_metadata("ltr")


def test_a_version_that_does_not_load_stays_a_problem_of_its_model(shared: SharedPod) -> None:
    shared.order(ctr=1, cvr=1)
    publish_for_one_row(shared.pod.models / "cvr", 2)
    shared.changes["cvr"] = {"warmup_requests": 2, "max_batch_size": 8}
    with load_on(shared.pod.triton.grpc, "ctr", threads=2) as load:
        assert shared.put(ctr=1, cvr=2).status == 200
        wait_until(
            lambda: shared.read_reports().reports["ads/cvr"].phase is AgentPhase.FAILED,
            what="version 2 of cvr is refused",
        )
    reports = shared.read_reports().reports
    failure = reports["ads/cvr"].failure
    assert failure is not None
    assert failure.reason is FailureReason.WARMUP_FAILED
    # Version 1 of cvr still answers, which routing sees from the report: it is not the ordered one.
    assert reports["ads/cvr"].serving == 1
    assert reports["ads/ctr"].phase is AgentPhase.READY
    assert answered_by(load) == {"1"}


def test_more_inferences_than_the_pod_has_room_for_and_an_older_leader_are_refused(shared: SharedPod) -> None:
    shared.order(ctr=1)
    full = shared.put(ctr=1, cvr=1, ltr=1, ranker=1)
    assert (full.status, "4 Inferences are ordered, and the pod has room for 3" in full.body) == (422, True)
    assert shared.put(epoch=0, ctr=2).status == 409
    twice = SharedOrders(epoch=1).model_dump(by_alias=True) | {
        "orders": [json.loads(shared.pod.order(1).to_json())] * 2
    }
    refused = shared.pod.call("PUT", "/v1/shared/desired", json.dumps(twice))
    assert (refused.status, "has 2 orders" in refused.body) == (422, True)
    # A shared pod takes no order for a pod of one Inference.
    assert shared.pod.put(shared.pod.order(1)).status == 404
    shared.wait_for(ctr=1)
