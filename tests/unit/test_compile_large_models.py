"""A model that is too large for the compiler, or whose passes are, ends in a reason with a way out, and is served as published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from builders.engine_models import build_history_model
from builders.onnx_models import a_model, a_tensor, with_external_data, write_artefact
from tidegate_dataplane.compiler import model_file
from tidegate_dataplane.compiler.compile_engine import compile_bucket_file
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.compiler.model_file import ModelNotCompiledError, read_model
from tidegate_dataplane.compiler.optimize import compile_file
from tidegate_dataplane.engines.engine_folder import EngineFolder

BYTES = 4000
SHAPE = json.dumps([["x", [2, 1]]])


def write_external(folder: Path, content: bytes | None = None, location: str = "model.data") -> Path:
    """Write a model whose one weight of 4,000 bytes lies in another file; return the graph's file."""
    model, weights = with_external_data(location)
    place = write_artefact(folder, 1, model)
    path = place / location
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(weights if content is None else content)
    return place / "model.onnx"


def compile_model(source: Path, output: Path) -> CompileResult:
    output.mkdir(exist_ok=True)
    assert compile_file([str(source), str(output)]) == 0
    return CompileResult.model_validate_json((output / "result.json").read_bytes())


def test_external_data_is_compiled_with_the_graph(tmp_path: Path) -> None:
    source = write_external(tmp_path)
    assert compile_model(source, tmp_path / "out").message == ""
    assert read_model(source).ByteSize() > BYTES


@pytest.mark.parametrize("location", ["model.data", "weights/part.data"])
def test_weights_beyond_the_limit_of_protobuf_are_refused_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    source = write_external(tmp_path, location=location)
    limit = source.stat().st_size + BYTES
    monkeypatch.setattr(model_file, "MAX_MODEL_BYTES", limit)
    assert compile_model(source, tmp_path / "fits").message == ""
    monkeypatch.setattr(model_file, "MAX_MODEL_BYTES", limit - 1)
    message = compile_model(source, tmp_path / "out").message
    assert "GiB with its weights" in message
    assert message.endswith("remove spec.compile")
    # An engine of it is left out at once, and not tried again until the compiler ends.
    assert compile_bucket_file([str(source), str(tmp_path / "out"), "OpenVINO", "FP32", SHAPE]) == 0
    [bucket] = EngineFolder(tmp_path / "out").read_buckets()
    assert (bucket.file, bucket.reason) == ("", message)


def test_files_that_the_graph_does_not_read_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_external(tmp_path)
    with (source.parent / "assets.bin").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(model_file, "MAX_MODEL_BYTES", 1 << 20)
    assert compile_model(source, tmp_path / "out").message == ""


def a_sparse_model(folder: Path, size: int) -> Path:
    """Write a graph that reads `size` bytes of a file of zeros that takes no space."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1, size // 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "model.data"), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=value)
    model = a_model(
        [a_tensor("x", ["n", 1])],
        [a_tensor("y", ["n", 1])],
        nodes=[
            helper.make_node("MatMul", ["x", "w"], ["z"]),
            helper.make_node("ReduceSum", ["z"], ["y"], keepdims=1),
        ],
        weights=[weight],
    )
    place = write_artefact(folder, 1, model)
    with (place / "model.data").open("wb") as file:
        file.truncate(size)
    return place / "model.onnx"


def test_external_data_of_more_than_2_gib_is_refused_before_it_is_read(tmp_path: Path) -> None:
    source = a_sparse_model(tmp_path, (2 << 30) + (200 << 20))
    assert compile_model(source, tmp_path / "out").message == (
        "the graph has 2.2 GiB with its weights, and none of more than 2 GiB is compiled: remove spec.compile"
    )


@pytest.mark.parametrize("cut", [0, BYTES - 1])
def test_external_data_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    source = write_external(tmp_path, bytes(cut))
    message = compile_model(source, tmp_path / "out").message
    assert message.startswith("the model cannot be read")
    with pytest.raises(ModelNotCompiledError, match="cannot be read"):
        read_model(tmp_path / "absent.onnx")


PLANTED = """
import resource, sys
from tidegate_dataplane.compiler import optimize, compile_engine

def take_memory(*_, **__):
    return bytearray(1 << 30)

{module}.{function} = take_memory
from pathlib import Path
used = next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (600 << 20), used + (600 << 20)))
sys.exit({command}(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("module", "function", "command"),
    [
        ("optimize", "optimize_model", "optimize.compile_file"),
        ("compile_engine", "split_graph", "compile_engine.compile_bucket_file"),
    ],
)
def test_a_step_that_takes_more_memory_than_the_compiler_has_names_the_limit_to_raise(
    tmp_path: Path, module: str, function: str, command: str
) -> None:
    """The limit is that of the process, as the compiler sets it from the limit of its container."""
    source, output = tmp_path / "model.onnx", tmp_path / "out"
    output.mkdir()
    onnx.save(build_history_model(), source)
    program = PLANTED.format(module=module, function=function, command=command)
    shape = json.dumps([["history", [2, 3]], ["item", [2]]])
    options = [] if module == "optimize" else ["OpenVINO", "FP32", shape]
    ended = subprocess.run(
        [sys.executable, "-c", program, str(source), str(output), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    if module == "optimize":
        text = CompileResult.model_validate_json((output / "result.json").read_bytes()).message
    else:
        [bucket] = EngineFolder(output).read_buckets()
        text = bucket.reason
    assert "MiB that it may take" in text
    assert text.endswith("raise spec.compile.memory")
