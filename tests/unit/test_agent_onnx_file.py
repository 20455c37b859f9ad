from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from builders.onnx_models import a_model, a_tensor, with_external_data
from stages.examples import examples
from tidegate_dataplane.agent.artefacts.facts import is_batched
from tidegate_dataplane.agent.artefacts.onnx_file import DTYPES, OnnxFacts, read_onnx
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

NAMES = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8)
DIMENSIONS = st.integers(1, 2**40) | NAMES | st.none()
TENSORS = st.lists(
    st.tuples(NAMES, st.lists(DIMENSIONS, max_size=4), st.sampled_from(sorted(DTYPES))),
    min_size=1,
    max_size=4,
    unique_by=lambda tensor: tensor[0],
)


def read(folder: Path, model: onnx.ModelProto | bytes) -> OnnxFacts:
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return read_onnx(path)


def refused(folder: Path, model: onnx.ModelProto | bytes) -> str:
    with pytest.raises(ArtefactError) as raised:
        read(folder, model)
    assert raised.value.refusal.reason is FailureReason.ARTEFACT_INVALID
    return raised.value.refusal.message


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inputs=TENSORS, outputs=TENSORS)
def test_it_reads_what_the_onnx_package_wrote(
    tmp_path: Path,
    inputs: Sequence[tuple[str, list[int | str | None], int]],
    outputs: Sequence[tuple[str, list[int | str | None], int]],
) -> None:
    facts = read(
        tmp_path, a_model([a_tensor(*each) for each in inputs], [a_tensor(*each) for each in outputs])
    )

    for tensors, written in ((facts.inputs, inputs), (facts.outputs, outputs)):
        assert [tensor.spec.name for tensor in tensors] == [name for name, _, _ in written]
        assert [tensor.spec.dtype for tensor in tensors] == [DTYPES[kind] for _, _, kind in written]
        for tensor, (_, shape, _) in zip(tensors, written, strict=True):
            assert tensor.spec.shape == tuple(size if isinstance(size, int) else -1 for size in shape)
            assert tensor.symbols == tuple(size if isinstance(size, str) else None for size in shape)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200)
)
@given(data=st.data())
def test_no_piece_of_a_model_passes_for_a_whole_one(tmp_path: Path, data: st.DataObject) -> None:
    model, _ = with_external_data("w.data")
    whole = model.SerializeToString()
    cut = data.draw(st.integers(0, len(whole) - 1))

    message = refused(tmp_path, whole[:cut])

    assert any(word in message for word in ("truncated", "empty", "not an ONNX model"))


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200)
)
@given(content=st.binary(max_size=300))
def test_whatever_the_bytes_the_answer_is_a_refusal_or_facts(tmp_path: Path, content: bytes) -> None:
    with contextlib.suppress(ArtefactError):
        read(tmp_path, content)


def test_a_web_page_is_not_a_model(tmp_path: Path) -> None:
    refused(tmp_path, b"<!doctype html><html><body>Not Found</body></html>")


def test_initializers_are_not_inputs(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((1, 1), dtype=np.float32), "w")
    inputs = [a_tensor("x", ["n", 1]), a_tensor("w", [1, 1])]

    facts = read(tmp_path, a_model(inputs, [a_tensor("y", ["n", 1])], weights=[weight]))

    assert [tensor.spec.name for tensor in facts.inputs] == ["x"]


def test_external_data_is_named_with_the_bytes_it_must_have(tmp_path: Path) -> None:
    model, data = with_external_data("parts/w.data")

    assert read(tmp_path, model).external == {"parts/w.data": len(data)}


def test_external_data_of_a_subgraph_is_found(tmp_path: Path) -> None:
    inner, _ = with_external_data("inner.data")
    branch = inner.graph
    del branch.input[:]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)

    facts = read(
        tmp_path, a_model([a_tensor("c", [1], TensorProto.BOOL)], [a_tensor("y", ["n", 1000])], nodes=[node])
    )

    assert set(facts.external) == {"inner.data"}


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "/etc/passwd",
        "a/../../b",
        "..",
        "a\\..\\b",
        "numpy.py",
        "lib/evil.SO",
        "model.onnx",
        "x\n",
        "__pycache__/x",
    ],
)
def test_external_data_stays_in_its_folder_and_is_no_code(tmp_path: Path, location: str) -> None:
    model, _ = with_external_data(location)

    assert "external data file" in refused(tmp_path, model)


@pytest.mark.parametrize(("key", "value"), [("offset", "-1"), ("length", "many"), ("location", "")])
def test_external_data_with_nonsense_is_refused(tmp_path: Path, key: str, value: str) -> None:
    model, _ = with_external_data("w.data")
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value

    assert "tensor 'w'" in refused(tmp_path, model)


def test_what_is_not_a_tensor_is_refused_with_the_cure(tmp_path: Path) -> None:
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)

    assert "zipmap=False" in refused(tmp_path, a_model([a_tensor("x", ["n"])], [output]))


def test_an_output_without_a_shape_is_refused_with_the_cure(tmp_path: Path) -> None:
    assert "infer_shapes" in refused(tmp_path, a_model([a_tensor("x", ["n"])], [a_tensor("y", None)]))


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    model = a_model([a_tensor("x", ["n"])], [a_tensor("y", ["n"])])
    del model.graph.output[:]

    assert "no outputs" in refused(tmp_path, model)


def test_an_element_type_that_triton_lacks_is_refused(tmp_path: Path) -> None:
    model = a_model(
        [a_tensor("x", ["n"], TensorProto.COMPLEX64)], [a_tensor("y", ["n"], TensorProto.COMPLEX64)]
    )

    assert "element type 14" in refused(tmp_path, model)


def test_weights_are_stepped_over(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((2000, 2000), dtype=np.float32), "w")
    inputs, outputs = [a_tensor("x", ["n", 2000])], [a_tensor("y", ["n", 2000])]

    facts = read(tmp_path, a_model(inputs, outputs, weights=[weight]))

    assert facts.inputs[0].spec.shape == (-1, 2000)


@pytest.mark.parametrize(
    ("inputs", "outputs", "batched"),
    [
        ([["n", 3]], [["n"]], True),
        ([["n", 3], ["n"]], [["m", 2]], True),
        ([[None, 3], ["n"]], [[None]], True),
        ([["n"], ["tidegate_shared_rows", 3]], [["n"]], True),
        ([["n"], ["m"]], [["n"]], False),
        ([[1, 3]], [[1]], False),
        ([["n"]], [[1]], False),
        ([["n"], []], [["n"]], False),
    ],
)
def test_requests_are_joined_only_along_a_shared_free_dimension(
    tmp_path: Path,
    inputs: list[list[int | str | None]],
    outputs: list[list[int | str | None]],
    *,
    batched: bool,
) -> None:
    model = a_model(
        [a_tensor(f"x{place}", shape) for place, shape in enumerate(inputs)],
        [a_tensor(f"y{place}", shape) for place, shape in enumerate(outputs)],
    )

    assert is_batched(read(tmp_path, model)) is batched
