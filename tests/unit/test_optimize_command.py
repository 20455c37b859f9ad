"""`tidegate optimize`: what it prints and writes, and how it ends for files that it cannot optimize."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from builders.column_graphs import ColumnGraph, ColumnSpec
from tidegate.main import app
from tidegate_dataplane.graph_passes.proof import Session

COLUMNS = 24
COLUMN = ColumnSpec(
    width=8, entries=10, table=0, ids="gather", hots=1, chain="none", pooling="none", keepdims=False, weights="none",
    bias=0,
)  # fmt: skip


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["optimize", *map(str, arguments)])


def a_graph() -> ColumnGraph:
    columns = [replace(COLUMN, entries=10 + number) for number in range(COLUMNS)]
    return ColumnGraph(columns, int32=False, dense=False, pairs=False, seed=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "ctr.onnx"
    onnx.save(a_graph().build(), path)
    return path


def test_a_model_is_written_that_answers_the_same(model: Path, tmp_path: Path) -> None:
    before, output = model.read_bytes(), tmp_path / "fast.onnx"
    done = run(model, "--write", output, "--rows", "1", "--rows", "4", "-o", "json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    fused = next(each for each in answer["passes"] if each["name"] == "fuseEmbeddings")
    assert (fused["applied"], fused["changes"], fused["maxError"]) == (True, COLUMNS, 0.0)
    assert set(fused["speedups"]) == set(answer["speedups"]) == {"1", "4"}
    assert answer["output"] == str(output)
    assert answer["nodesAfter"] == len(onnx.load(output).graph.node) < 20 < answer["nodesBefore"]
    request = a_graph()
    request.build()
    values = request.request(6, np.random.default_rng(2))
    expected, answered = (
        Session(onnx.load(model)).run_request(values),
        Session(onnx.load(output)).run_request(values),
    )
    assert expected is not None
    assert answered is not None
    assert np.array_equal(expected[0], answered[0])
    assert model.read_bytes() == before


def test_text_has_a_line_for_each_pass_and_operators_when_wide(model: Path) -> None:
    lines = run(model, "--rows", "1", "-o", "wide").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == [
        "simplify",
        "splitProducts",
        "dropRepetitions",
        "fuseEmbeddings",
    ]
    assert lines[2].endswith("nothing to change")
    assert any(line.split() == ["Gather", str(2 * COLUMNS), "1"] for line in lines)


def test_nothing_is_written_for_a_model_that_no_pass_changes(tmp_path: Path) -> None:
    path, output = tmp_path / "plain.onnx", tmp_path / "out.onnx"
    shape = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "plain",
        [shape("x", TensorProto.FLOAT, ["rows", 3])],
        [shape("y", TensorProto.FLOAT, ["rows", 3])],
    )
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(plain, path)
    done = run(path, "--write", output, "--rows", "1", "-o", "json")
    assert done.exit_code == 0, done.output
    assert not any(each["applied"] for each in json.loads(done.stdout)["passes"])
    assert json.loads(done.stdout)["output"] is None
    assert not output.exists()


def log_request(ids: list[list[object]], *, name: str = "ids") -> str:
    """Return a line of the sample log."""
    data = [number for row in ids for number in row]
    tensor = {"name": name, "datatype": "INT64", "shape": [len(ids), len(ids[0])], "data": data}
    return json.dumps({"id": "r-1", "inputs": [tensor], "outputs": []}) + "\n"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_answers_are_compared_on_logged_requests(model: Path, tmp_path: Path, suffix: str) -> None:
    lines = "".join(log_request([[row] * COLUMNS]) for row in (1, 2, 9)).encode() + b"\n"
    path = tmp_path / f"samples{suffix}"
    path.write_bytes(gzip.compress(lines) if suffix.endswith(".gz") else lines)
    done = run(model, "--requests", path, "--rows", "1", "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["loggedRequests"] == 3
    assert "logged requests compared: 3" in run(model, "--requests", path, "--rows", "1").stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no requests"),
        (log_request([[1] * COLUMNS]) + "nonsense\n", "line 2, is no record of the sample log: "),
        ('{"inputs": 3}\n', "line 1, is no record of the sample log: "),
        (log_request([["x"]]), "line 1, is no record of the sample log: "),
        (log_request([[1]], name="age"), "line 1: the request lacks the model's inputs ids"),
    ],
)
def test_a_file_without_requests_for_the_model_is_named_with_its_line(
    model: Path, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(content)
    done = run(model, "--requests", path, "--rows", "1")
    assert done.exit_code == 3
    assert "samples.jsonl" in done.stderr
    assert message in done.stderr.replace("\n", " ")


def test_requests_of_another_model_are_an_error(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(log_request([[1] * 7]))
    done = run(model, "--requests", path, "--rows", "1")
    assert done.exit_code == 3
    assert "refuses all 1 requests of" in done.stderr.replace("\n", " ")


def test_a_damaged_archive_of_requests_is_named(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(log_request([[1] * COLUMNS]).encode())[:-9])
    done = run(model, "--requests", path, "--rows", "1")
    assert done.exit_code == 3
    assert "samples.jsonl.gz cannot be read" in done.stderr.replace("\n", " ")


def test_graphs_are_drawn_before_and_after(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "graphs"
    assert run(model, "--rows", "1", "--graphs", folder).exit_code == 0
    before, after = ((folder / f"{name}.dot").read_text() for name in ("before", "after"))
    assert before.count('label="Gather"') == 2 * COLUMNS
    assert after.count('label="Gather"') == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a model", "bad.onnx cannot be read as an ONNX model: "),
        (b"", "bad.onnx: ONNX Runtime does not load it: "),
    ],
)
def test_what_is_no_model_ends_with_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    done = run(path)
    assert done.exit_code == 3
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_an_input_that_cannot_be_shared_is_named(model: Path) -> None:
    done = run(model, "--shared-input", "age", "--rows", "1")
    assert done.exit_code == 0
    assert "no input 'age'; the model has ['ids']" in done.stdout
