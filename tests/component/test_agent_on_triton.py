from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper

from builders.load import answered_by, load_on
from builders.probe_model import STEP, publish, publish_for_one_row, publish_unloadable
from builders.waiting import LONGEST_S, wait_until
from fixtures.agent import ModelPod, serves_version
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    BatchingMode,
    FailureReason,
    ModelFormat,
)

pytestmark = [pytest.mark.triton]


def failed(report: AgentReport) -> bool:
    return report.phase is AgentPhase.FAILED


@pytest.fixture
def serving_pod(shared_pod: ModelPod, request: pytest.FixtureRequest) -> ModelPod:
    """A pod that serves version 1 of a probe model of this test's own; version 2 is published."""
    shared_pod.begin(request.node.name)
    publish(shared_pod.artefact, 1)
    publish(shared_pod.artefact, 2)
    shared_pod.put(shared_pod.order())
    shared_pod.wait_for("version 1 serves", serves_version(1))
    return shared_pod


def test_a_pod_starts_with_its_first_order_and_serves_it(model_pod: ModelPod) -> None:
    publish(model_pod.artefact, 1)
    model_pod.start_agent(model_pod.order())
    assert model_pod.probe("/startedz") == 200
    assert model_pod.probe("/readyz") == 503
    model_pod.triton.start()

    report = model_pod.wait_for("version 1 serves", serves_version(1))

    assert (report.serving, report.loaded, report.failure) == (1, (1,), None)
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in report.inputs] == [("x", "FP32", (-1, 1))]
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in report.outputs] == [
        ("score", "FP32", (-1, 1))
    ]
    model_pod.takes_requests()


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_swaps_and_rollbacks_under_load_lose_nothing(serving_pod: ModelPod) -> None:
    with load_on(serving_pod.triton.grpc, serving_pod.model, pause_s=0) as load:
        for version in (2, 1, 2, 1, 2):
            assert serving_pod.put(serving_pod.order(version)).status == 200
            serving_pod.wait_for(f"version {version} serves", serves_version(version))
            answered = load.report().versions.get(str(version), 0)
            load.wait_for(str(version), answered + 20)

    assert answered_by(load) == {"1", "2"}


def test_the_old_version_stays_warm_when_going_up_and_a_kept_one_is_not_loaded_again(
    serving_pod: ModelPod,
) -> None:
    serving_pod.put(serving_pod.order(2))
    report = serving_pod.wait_for("version 2 serves", serves_version(2))

    assert report.loaded == (1, 2)
    # One load each: the server would say so again if it had loaded version 1 a second time.
    loads = serving_pod.triton.log.read_text().count(
        f"TRITONBACKEND_ModelInstanceInitialize: {serving_pod.model}_"
    )
    assert loads == 2


def test_only_as_many_versions_as_ordered_stay_warm(serving_pod: ModelPod) -> None:
    publish(serving_pod.artefact, 3)
    for version in (2, 3):
        serving_pod.put(serving_pod.order(version))
        report = serving_pod.wait_for(f"version {version} serves", serves_version(version))

    assert report.loaded == (2, 3)


def test_with_one_kept_version_the_old_one_leaves_memory_and_disk(serving_pod: ModelPod) -> None:
    serving_pod.put(serving_pod.order(1, keep_versions=1))
    serving_pod.wait_for("version 1 serves", serves_version(1))
    serving_pod.put(serving_pod.order(2, keep_versions=1))
    report = serving_pod.wait_for("version 2 serves", serves_version(2))

    assert report.loaded == (2,)
    folder = serving_pod.triton.repository / serving_pod.model
    wait_until(
        lambda: [path.name for path in folder.iterdir() if path.is_dir()] == ["2"],
        what="the disk has version 2 alone",
    )


@pytest.mark.produces(FailureReason.WARMUP_FAILED)
def test_a_version_that_fails_its_warm_up_takes_no_traffic(serving_pod: ModelPod) -> None:
    publish_for_one_row(serving_pod.artefact, 2)
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        serving_pod.put(serving_pod.order(2, warmup_requests=2, max_batch_size=8))
        report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.WARMUP_FAILED
    assert "failed warm-up request 2 of 2, zeros of shape {'x': [8, 1]}" in report.failure.message
    assert "model.py(" not in report.failure.message
    assert report.serving == 1
    assert answered_by(load) == {"1"}

    # The negative: without as many warm-up requests the same version is taken.
    serving_pod.put(serving_pod.order(2, warmup_requests=1, max_batch_size=8))
    serving_pod.wait_for("version 2 serves", serves_version(2))


@pytest.mark.produces(FailureReason.SERVER_ENDED)
def test_a_version_that_ends_the_server_twice_is_given_up_and_another_serves(model_pod: ModelPod) -> None:
    publish(model_pod.artefact, 1)
    publish_python(model_pod.models / "deadly", initialize="import os; os.kill(os.getppid(), 9)")
    deadly = {"uri": f"file://{model_pod.models}/deadly", "format": ModelFormat.PYTHON, "allow_python": True}
    model_pod.start_agent(model_pod.order(2, **deadly))
    for _ in range(2):
        model_pod.triton.begin()
        wait_until(model_pod.triton.has_ended, what="the version has ended the server")
    report = model_pod.wait_for("version 2 is given up", failed)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.SERVER_ENDED
    assert "Triton ended twice" in report.failure.message

    model_pod.put(model_pod.order(1))
    model_pod.triton.start()
    model_pod.wait_for("version 1 serves", serves_version(1))


@pytest.mark.produces(FailureReason.LOAD_TIMED_OUT)
def test_a_version_that_hangs_while_it_is_loaded_is_given_up(model_pod: ModelPod) -> None:
    publish(model_pod.artefact, 1)
    model_pod.start_agent(model_pod.order())
    model_pod.triton.start()
    model_pod.wait_for("version 1 serves", serves_version(1))
    # Only now: a busy machine may take longer for the first load.
    model_pod.kill_agent()
    model_pod.settings["TIDEGATE_AGENT_LOAD_TIMEOUT_S"] = "12"
    model_pod.start_agent()
    model_pod.wait_for("version 1 still serves", serves_version(1))
    publish_python(model_pod.models / "stuck", initialize="import time; time.sleep(100)")
    with load_on(model_pod.triton.grpc, model_pod.model, threads=1, pause_s=0.02) as load:
        model_pod.put(
            model_pod.order(
                2, uri=f"file://{model_pod.models}/stuck", format=ModelFormat.PYTHON, allow_python=True
            )
        )
        report = model_pod.wait_for("version 2 is given up", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.LOAD_TIMED_OUT
    assert "no answer within 12 s" in report.failure.message
    assert answered_by(load) == {"1"}
    model_pod.put(model_pod.order(1))
    model_pod.wait_for("version 1 serves as ordered", serves_version(1))
    model_pod.triton.kill()  # which would wait for the version that hangs


@pytest.mark.produces(FailureReason.ARTEFACT_INVALID)
def test_a_truncated_model_leaves_the_old_one_serving_and_says_why(serving_pod: ModelPod) -> None:
    model = serving_pod.artefact / "2" / "model.onnx"
    model.write_bytes(model.read_bytes()[:60])
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        serving_pod.put(serving_pod.order(2))
        report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.failure is not None
    assert (report.failure.version, report.failure.reason) == (2, FailureReason.ARTEFACT_INVALID)
    assert "truncated" in report.failure.message
    assert (report.serving, report.target) == (1, 2)
    assert answered_by(load) == {"1"}
    serving_pod.takes_requests()


@pytest.mark.produces(FailureReason.LOAD_FAILED)
def test_a_model_that_triton_cannot_load_is_reported_in_its_own_words(serving_pod: ModelPod) -> None:
    publish_unloadable(serving_pod.artefact, 2)
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        serving_pod.put(serving_pod.order(2))
        report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.LOAD_FAILED
    assert "NoSuchOperator" in report.failure.message
    assert report.serving == 1
    assert answered_by(load) == {"1"}


def test_a_wrong_checksum_leaves_the_old_one_serving(serving_pod: ModelPod) -> None:
    serving_pod.put(serving_pod.order(2, sha256="0" * 64))
    report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.CHECKSUM_MISMATCH
    assert report.serving == 1


def test_going_back_from_a_failed_version_is_ready_at_once(serving_pod: ModelPod) -> None:
    serving_pod.put(serving_pod.order(2, sha256="0" * 64))
    serving_pod.wait_for("version 2 is refused", failed)
    serving_pod.put(serving_pod.order(1))

    report = serving_pod.wait_for("version 1 serves", serves_version(1))

    assert report.failure is None


def test_correcting_the_checksum_recovers(serving_pod: ModelPod) -> None:
    serving_pod.put(serving_pod.order(2, sha256="0" * 64))
    serving_pod.wait_for("version 2 is refused", failed)
    content = (serving_pod.artefact / "2" / "model.onnx").read_bytes()

    serving_pod.put(serving_pod.order(2, sha256=hashlib.sha256(content).hexdigest()))

    serving_pod.wait_for("version 2 serves", serves_version(2))


def test_a_version_with_another_signature_replaces_the_old_one_without_a_gap(serving_pod: ModelPod) -> None:
    publish_wider(serving_pod.artefact, 2)
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=1):
        serving_pod.put(serving_pod.order(2))
        report = serving_pod.wait_for("version 2 serves", serves_version(2))
        assert report.loaded == (2,)
        assert [tensor.name for tensor in report.inputs] == ["x", "bias"]
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=1) as refused:
        serving_pod.put(serving_pod.order(1))
        serving_pod.wait_for("version 1 serves again", serves_version(1))

    # Requests with one input are wrong for version 2 and only for it.
    assert all("expected 2 inputs" in error for error in refused.report().failures)


def test_a_failing_version_with_another_signature_does_not_disturb(serving_pod: ModelPod) -> None:
    publish_unloadable(serving_pod.artefact, 2, extra_input=True)
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        serving_pod.put(serving_pod.order(2))
        report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.serving == 1
    assert [tensor.name for tensor in report.inputs] == ["x"]
    assert answered_by(load) == {"1"}


def test_another_artefact_under_the_same_version_is_loaded_in_place_or_put_back(
    serving_pod: ModelPod,
) -> None:
    other = serving_pod.models / "other"
    publish(other, 7)
    (other / "7").rename(other / "1")
    moved = serving_pod.order(uri=f"file://{other}")
    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        load.wait_for("1", 1)
        serving_pod.put(moved)
        serving_pod.wait_for("the other artefact serves", serves_version(1))
        load.wait_for("7", 1)
        publish_unloadable(serving_pod.models / "bad", 1)
        serving_pod.put(serving_pod.order(uri=f"file://{serving_pod.models}/bad"))
        serving_pod.wait_for("the bad one is refused", failed)
        serving_pod.triton.kill()
        serving_pod.triton.start()
        serving_pod.wait_for("what was proven is loaded again", lambda report: report.serving == 1)

    assert load.report().versions.keys() == {"1", "7"}


def test_a_restarted_triton_gets_its_models_back(serving_pod: ModelPod) -> None:
    serving_pod.triton.kill()
    serving_pod.wait_for("the server is gone", lambda report: report.serving is None)
    assert serving_pod.probe("/readyz") == 503

    serving_pod.triton.start()

    serving_pod.wait_for("version 1 serves again", serves_version(1))
    serving_pod.takes_requests()


def test_a_restarted_triton_gets_the_proven_version_when_the_ordered_one_fails(serving_pod: ModelPod) -> None:
    publish_unloadable(serving_pod.artefact, 2)
    serving_pod.put(serving_pod.order(2))
    serving_pod.wait_for("version 2 is refused", failed)
    serving_pod.triton.kill()
    serving_pod.triton.start()

    report = serving_pod.wait_for("version 1 serves again", lambda report: report.serving == 1)

    assert (report.phase, report.target) == (AgentPhase.FAILED, 2)


def test_a_restarted_agent_goes_on_with_what_it_had_accepted(serving_pod: ModelPod) -> None:
    loaded = f"successfully loaded '{serving_pod.model}'"
    first = serving_pod.order(1)
    serving_pod.epoch += 1
    serving_pod.put(serving_pod.order(2, generation=9))
    serving_pod.wait_for("version 2 serves", serves_version(2))
    before = serving_pod.triton.log.read_text().count(loaded)

    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=2) as load:
        serving_pod.kill_agent()
        serving_pod.start_agent(first)
        report = serving_pod.wait_for("version 2 still serves", serves_version(2))

    assert (report.epoch, report.generation) == (serving_pod.epoch, 9)
    assert answered_by(load) == {"2"}
    assert serving_pod.triton.log.read_text().count(loaded) == before


def test_an_older_leader_is_refused(serving_pod: ModelPod) -> None:
    former = serving_pod.epoch
    serving_pod.epoch += 1
    assert serving_pod.put(serving_pod.order(1, generation=2)).status == 200

    answer = serving_pod.put(serving_pod.order(2, epoch=former, generation=3))

    assert answer.status == 409
    assert (answer.report.epoch, answer.report.target) == (serving_pod.epoch, 1)


def test_requests_of_one_batch_are_answered_apart(serving_pod: ModelPod) -> None:
    fixed = {"batching": BatchingMode.FIXED, "max_queue_delay_us": 20_000, "max_batch_size": 64}
    serving_pod.put(serving_pod.order(1, **fixed))
    serving_pod.wait_for("version 1 serves with batching", serves_version(1))

    with load_on(serving_pod.triton.grpc, serving_pod.model, threads=8) as load:
        serving_pod.put(serving_pod.order(2, **fixed))
        serving_pod.wait_for("version 2 serves", serves_version(2))

    assert load.report().problems == ()
    with triton_grpc.InferenceServerClient(serving_pod.triton.grpc) as client:
        entries = client.get_inference_statistics(serving_pod.model, as_json=True)["model_stats"]
    runs = sum(int(entry.get("execution_count", 0)) for entry in entries)
    assert runs < load.report().sent / 2


def test_fixed_batching_of_a_model_without_a_batch_dimension_is_refused(serving_pod: ModelPod) -> None:
    publish_unbatched(serving_pod.artefact, 2)
    serving_pod.put(serving_pod.order(2, batching=BatchingMode.FIXED))
    report = serving_pod.wait_for("version 2 is refused", failed)

    assert report.failure is not None
    assert "free first dimension" in report.failure.message

    serving_pod.put(serving_pod.order(2))
    report = serving_pod.wait_for("version 2 serves without batching", serves_version(2))
    assert [tensor.shape for tensor in report.inputs] == [(4,)]


def test_python_code_is_run_only_where_it_is_allowed(serving_pod: ModelPod) -> None:
    publish_python(serving_pod.models / "code")
    python = {"uri": f"file://{serving_pod.models}/code", "format": ModelFormat.PYTHON, "version": 2}
    serving_pod.put(serving_pod.order(**python))
    report = serving_pod.wait_for("code is refused", failed)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.FORMAT_NOT_ALLOWED

    serving_pod.put(serving_pod.order(**python, allow_python=True))
    serving_pod.wait_for("code serves", serves_version(2))


@pytest.mark.produces(FailureReason.BACKEND_MISSING)
@pytest.mark.parametrize(
    ("model_format", "said"),
    [
        # This server is older than the platform, and has neither backend.
        (ModelFormat.TORCH_EXPORT, "does not know platform 'torch_aoti' of backend 'pytorch'"),
        (ModelFormat.TENSORRT, "has no backend 'tensorrt'"),
    ],
)
def test_a_format_without_its_backend_is_refused_by_the_server_and_the_old_version_serves_on(
    serving_pod: ModelPod, model_format: ModelFormat, said: str
) -> None:
    folder = serving_pod.models / model_format
    publish_compiled(folder, 2)
    serving_pod.put(serving_pod.order(2, uri=f"file://{folder}", format=model_format, allow_python=True))
    report = serving_pod.wait_for("the server has no such backend", failed)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.BACKEND_MISSING
    assert said in report.failure.message
    assert "export the model to ONNX" in report.failure.message
    assert report.serving == 1

    serving_pod.put(serving_pod.order(2))
    serving_pod.wait_for("version 2 serves as ONNX", serves_version(2))


def test_another_served_name_takes_the_old_ones_place(serving_pod: ModelPod) -> None:
    serving_pod.put(serving_pod.order(1, model=f"{serving_pod.model}-next"))
    serving_pod.wait_for("the new name serves", serves_version(1))

    with triton_grpc.InferenceServerClient(serving_pod.triton.grpc) as client:
        assert client.is_model_ready(f"{serving_pod.model}-next")

        def gone(_: AgentReport) -> bool:
            return not client.is_model_ready(serving_pod.model)

        serving_pod.wait_for("the old name is gone", gone)
    folder = serving_pod.triton.repository / serving_pod.model / "1"
    wait_until(lambda: not folder.exists(), what="its version has left the disk")


def test_a_bad_row_fails_its_own_request_only(serving_pod: ModelPod) -> None:
    publish_gather(serving_pod.artefact, 2)
    serving_pod.put(serving_pod.order(2, batching=BatchingMode.FIXED, max_queue_delay_us=100_000))
    serving_pod.wait_for("version 2 serves", serves_version(2))

    with triton_grpc.InferenceServerClient(serving_pod.triton.grpc) as client:
        results: list[object] = [None, None, None]
        done = [threading.Event() for _ in results]
        for place, ids in enumerate(([[0], [1]], [[99]], [[2]])):

            def finished(result: object, error: object, place: int = place) -> None:
                results[place] = error or result.as_numpy("y").ravel().tolist()  # type: ignore[attr-defined]
                done[place].set()

            client.async_infer(serving_pod.model, [ids_tensor(ids)], callback=finished)
        assert all(event.wait(LONGEST_S) for event in done)

    assert results[0] == [10.0, 11.0]
    assert "indices element out of data bounds" in str(results[1])
    assert results[2] == [12.0]


def test_rows_of_one_number_and_strings_go_in_and_out(serving_pod: ModelPod) -> None:
    nodes = [helper.make_node("Identity", ["n"], ["m"]), helper.make_node("Identity", ["t"], ["u"])]
    inputs = [
        floats("n", ["rows"]),
        helper.make_tensor_value_info("t", TensorProto.STRING, ["rows", "words"]),
    ]
    outputs = [
        floats("m", ["rows"]),
        helper.make_tensor_value_info("u", TensorProto.STRING, ["rows", "words"]),
    ]
    save(serving_pod.artefact, 2, helper.make_graph(nodes, "g", inputs, outputs))
    serving_pod.put(serving_pod.order(2))
    serving_pod.wait_for("version 2 serves", serves_version(2))

    numbers, texts = (
        np.array([[1.5], [2.5]], dtype=np.float32),
        np.array([["ä", ""], ["b", "c"]], dtype=object),
    )
    tensors = [
        triton_grpc.InferInput("n", [2, 1], "FP32"),
        triton_grpc.InferInput("t", [2, 2], "BYTES"),
    ]
    tensors[0].set_data_from_numpy(numbers)
    tensors[1].set_data_from_numpy(texts)
    with triton_grpc.InferenceServerClient(serving_pod.triton.grpc) as client:
        answer = client.infer(serving_pod.model, tensors)

    assert answer.as_numpy("m").tolist() == numbers.tolist()
    assert [[text.decode() for text in row] for row in answer.as_numpy("u")] == texts.tolist()


def test_warming_up_does_not_count_as_traffic(serving_pod: ModelPod) -> None:
    with triton_grpc.InferenceServerClient(serving_pod.triton.grpc) as client:
        (entry,) = client.get_inference_statistics(serving_pod.model, as_json=True)["model_stats"]

    assert int(entry.get("inference_count", 0)) == 0


def test_the_agent_stays_small(serving_pod: ModelPod) -> None:
    assert serving_pod.process is not None
    status = Path(f"/proc/{serving_pod.process.pid}/status").read_text()
    (peak_kib,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]

    assert peak_kib < 120 * 1024


def ids_tensor(ids: list[list[int]]) -> triton_grpc.InferInput:
    values = np.array(ids, dtype=np.int64)
    tensor = triton_grpc.InferInput("ids", list(values.shape), "INT64")
    tensor.set_data_from_numpy(values)
    return tensor


def save(folder: Path, version: int, graph: onnx.GraphProto) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / "model.onnx").write_bytes(model.SerializeToString())


def floats(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def publish_wider(folder: Path, version: int) -> None:
    offset = numpy_helper.from_array(np.array([STEP * version], dtype=np.float32), "offset")
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["sum"]),
        helper.make_node("Add", ["sum", "offset"], ["score"]),
    ]
    inputs = [floats("x", ["rows", 1]), floats("bias", ["rows", 1])]
    save(folder, version, helper.make_graph(nodes, "wider", inputs, [floats("score", ["rows", 1])], [offset]))


def publish_unbatched(folder: Path, version: int) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["score"])], "fixed", [floats("x", [4])], [floats("score", [4])]
    )
    save(folder, version, graph)


def publish_gather(folder: Path, version: int) -> None:
    table = numpy_helper.from_array(np.array([[10], [11], [12]], dtype=np.float32), "table")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0),
            helper.make_node("Flatten", ["rows"], ["y"], axis=1),
        ],
        "gather",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 1])],
        [floats("y", ["n", 1])],
        [table],
    )
    save(folder, version, graph)


def publish_python(folder: Path, *, initialize: str = "pass") -> None:
    (folder / "2").mkdir(parents=True)
    (folder / "2" / "model.py").write_text(
        "import triton_python_backend_utils as pb\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        {initialize}\n"
        "    def execute(self, requests):\n"
        "        return [pb.InferenceResponse([pb.Tensor('y', pb.get_input_tensor_by_name(r, 'x').as_numpy())])"
        " for r in requests]\n"
    )
    (folder / "config.pbtxt").write_text(
        'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [1] }\n'
    )


def publish_compiled(folder: Path, version: int) -> None:
    """A version in both compiled formats, whole as far as can be told without their libraries."""
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / "model.plan").write_bytes(b"ptrt")
    with zipfile.ZipFile(folder / str(version) / "model.pt2", "w") as archive:
        archive.writestr("model/data/aotinductor/model/model.so", "code")
    (folder / "config.pbtxt").write_text(
        'input { name: "x" data_type: TYPE_FP32 dims: [4] } output { name: "y" data_type: TYPE_FP32 dims: [4] }'
    )
