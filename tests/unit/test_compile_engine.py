"""Engines are compiled for the shapes that are missed, and only those that answer alike are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass

from builders.engine_models import build_history_model, make_history_request
from builders.onnx_models import a_model, a_tensor, with_external_data, write_artefact
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler import compile_engine, engine_jobs, shared_graphs
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.compile_engine import (
    BucketLeftOutError,
    CompiledFiles,
    EngineSession,
    compare_engine,
    compile_bucket,
    compile_bucket_file,
    fix_dimensions,
)
from tidegate_dataplane.compiler.engine_jobs import MAX_ATTEMPTS, MAX_BUCKETS, EngineJobs, make_engine_key
from tidegate_dataplane.compiler.exchange import CompileFolder, CompileJob, CompileResult
from tidegate_dataplane.contract import EngineMode, EngineOrder, EnginePrecision
from tidegate_dataplane.engines.bucket_shapes import BucketShape
from tidegate_dataplane.engines.engine_folder import ENGINE_FILE, CompiledBucket, EngineFolder, RunnerNotes
from tidegate_dataplane.engines.split_engine import Lookups, SplitEngine, list_network_names
from tidegate_dataplane.graph_passes.proof import Session
from tidegate_dataplane.graph_passes.samples import make_edge_requests

Array = NDArray[Any]
SHAPE: BucketShape = (("history", (16, 20)), ("item", (16,)))
FORCED, AUTO, FP32, BF16 = EngineMode.OPENVINO, EngineMode.AUTO, EnginePrecision.FP32, EnginePrecision.BF16
ORDER = EngineOrder(engine=FORCED)


def engine_of(
    bucket: CompiledBucket, files: CompiledFiles, outputs: Sequence[str], precision: EnginePrecision = FP32
) -> SplitEngine:
    """Open an engine as a runner does, from its files alone."""
    from tidegate_dataplane.engines.openvino_engine import load_network

    lookups = Lookups(files.lookups, threads=1) if files.lookups else None
    names = list_network_names([name for name, _ in bucket.shape], outputs, lookups)
    network = load_network(files.engine, *names, precision=precision.value, threads=1)
    return SplitEngine(lookups, network, checked=bucket.checked, outputs=outputs)


@pytest.mark.parametrize(("precision", "tolerance"), [(FP32, 1e-5), (BF16, 2e-2)])
def test_openvino_answers_like_the_model_within_the_tolerance_of_its_precision(
    precision: EnginePrecision, tolerance: float
) -> None:
    pytest.importorskip("openvino")
    model = build_history_model()
    bucket, files = compile_bucket(model, SHAPE, FORCED, precision)
    assert (bucket.engine, bucket.reason) == ("OpenVINO", "")
    assert bucket.speedup > 0
    request = make_history_request(16, 20)
    expected = Session(model).run_request(request)
    assert expected is not None
    [answer] = engine_of(bucket, files, ["score"], precision).run_request(request)
    error = float(np.abs(answer - expected[0]).max() / np.abs(expected[0]).max())
    assert (error <= tolerance, error > 1e-5) == (True, precision is BF16)


def measure_slow(*_: object, **__: object) -> list[float]:
    return [0.8]


def test_auto_leaves_out_an_engine_that_is_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(compile_engine, "measure_speedups", measure_slow)
    with pytest.raises(BucketLeftOutError, match=r"no faster than ONNX Runtime: 0\.80x"):
        compile_bucket(build_history_model(), SHAPE, AUTO, FP32)
    assert compile_bucket(build_history_model(), SHAPE, FORCED, FP32)[0].speedup == 0.8


def test_an_engine_that_answers_wrongly_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_module = pytest.importorskip("tidegate_dataplane.engines.openvino_engine")
    export_right = engine_module.export_network

    def export_wrong(graph: bytes, precision: str) -> bytes:
        wrong = onnx.load_from_string(graph)
        [weight] = [tensor for tensor in wrong.graph.initializer if tensor.name == "second"]
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, "second"))
        exported: bytes = export_right(wrong.SerializeToString(), precision)
        return exported

    monkeypatch.setattr(engine_module, "export_network", export_wrong)
    with pytest.raises(BucketLeftOutError, match="the answers of OpenVINO differ"):
        compile_bucket(build_history_model(), SHAPE, FORCED, FP32)


def test_a_graph_that_openvino_does_not_compile_is_left_to_onnx_runtime_with_the_operator() -> None:
    pytest.importorskip("openvino")
    model = a_model(
        [a_tensor("x", ["n", 3, 3], TensorProto.FLOAT)],
        [a_tensor("y", ["n"], TensorProto.FLOAT)],
        nodes=[helper.make_node("Det", ["x"], ["y"])],
    )
    with pytest.raises(
        BucketLeftOutError, match=r"^OpenVINO does not compile the graph: No conversion rule .*: Det-\d+$"
    ):
        compile_bucket(model, (("x", (2, 3, 3)),), FORCED, FP32)


@pytest.mark.parametrize("operator", ["Mod", "Mul"])
def test_a_model_of_integers_alone_is_left_to_onnx_runtime(operator: str) -> None:
    model = a_model(
        [a_tensor("x", ["n", 2], TensorProto.INT64)],
        [a_tensor("y", ["n", 2], TensorProto.INT64)],
        nodes=[helper.make_node(operator, ["x", "x"], ["y"])],
    )
    with pytest.raises(BucketLeftOutError, match="every output is made of integers"):
        compile_bucket(model, (("x", (2, 2)),), FORCED, FP32)


def a_lookup_model(nodes: Sequence[onnx.NodeProto], dims: Sequence[str | int] = ("n",)) -> onnx.ModelProto:
    """Return `x` int64 → the rows of a table of 100,000 entries at `ids`, which `nodes` compute."""
    table = np.arange(200_000, dtype=np.float32).reshape(100_000, 2)
    constants = {
        "table": table,
        "one": np.array([1], np.int64),
        "zero": np.array(0, np.int64),
        "last": np.array(99_999, np.int64),
    }
    return a_model(
        [a_tensor("x", list(dims), TensorProto.INT64)],
        [a_tensor("y", ["n", 2], TensorProto.FLOAT)],
        nodes=[
            *nodes,
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Abs", ["rows"], ["y"]),
        ],
        weights=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


@pytest.mark.parametrize(
    ("nodes", "dims"),
    [
        ([helper.make_node("Identity", ["x"], ["ids"])], ()),
        ([helper.make_node("Add", ["x", "one"], ["ids"])], ()),
        ([helper.make_node("CumSum", ["x", "zero"], ["ids"])], ()),
        ([helper.make_node("Clip", ["x", "zero", "last"], ["ids"])], ()),
        ([helper.make_node("Gather", ["x", "zero"], ["ids"], axis=1)], (3,)),
        ([helper.make_node("Mul", ["x", "x"], ["p"]), helper.make_node("Mod", ["p", "last"], ["ids"])], ()),
    ],
    ids=["input", "shifted", "summed", "clipped", "column", "hashed in 64 bits"],
)
def test_an_engine_answers_every_id_as_the_model_does_or_refuses_it(
    nodes: Sequence[onnx.NodeProto], dims: tuple[int, ...]
) -> None:
    pytest.importorskip("openvino")
    model = a_lookup_model(nodes, ("n", *dims))
    bucket, files = compile_bucket(model, (("x", (2, *dims)),), FORCED, FP32)
    engine, original = EngineSession(engine_of(bucket, files, ["y"])), Session(model)
    refused = 0
    for number in (0, 1, 49_999, 99_998, 99_999, 100_000, 2**31, 2**40 + 7, -1, -100_000, -100_001, -(2**33)):
        request = {"x": np.full((2, *dims), number, np.int64)}
        expected, answer = original.run_request(request), engine.run_request(request)
        refused += expected is None
        assert (expected is None) == (answer is None), number
        if expected is not None and answer is not None:
            np.testing.assert_array_equal(answer[0], expected[0])
    assert (refused > 0) == (nodes[-1].op_type not in ("Clip", "Mod"))


def test_samples_have_ids_at_and_beyond_both_ends_of_a_table() -> None:
    model = ir.from_proto(a_lookup_model([helper.make_node("Identity", ["x"], ["ids"])]))
    ShapeInferencePass()(model)
    ids = {int(number) for request in make_edge_requests(model) for number in request["x"].reshape(-1)}
    assert {-100_001, -100_000, -1, 0, 99_999, 100_000} <= ids


@dataclass
class FixedSession:
    """Answers every request with what the test sets."""

    answer: list[Array] | None

    def run_request(self, _: Mapping[str, Array]) -> list[Array] | None:
        return self.answer


@pytest.mark.parametrize(
    ("original", "engine", "text"),
    [
        (None, [np.ones(1)], "answers requests that the model refuses"),
        ([np.ones(1)], None, "refuses requests that the model answers"),
        (None, None, "nothing could be compared"),
    ],
)
def test_an_engine_must_refuse_what_the_model_refuses(
    original: list[Array] | None, engine: list[Array] | None, text: str
) -> None:
    published: Any = FixedSession(original)
    compiled: Any = FixedSession(engine)
    with pytest.raises(BucketLeftOutError, match=text):
        compare_engine(published, compiled, [{"x": np.ones(1)}])


def test_a_shape_that_the_graph_does_not_have_is_left_out() -> None:
    with pytest.raises(BucketLeftOutError, match="no input item with 1 dimensions"):
        fix_dimensions(build_history_model(), (("history", (1, 2)), ("item", (1, 2))))


def test_the_process_writes_the_bucket_and_proves_one_from_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    source = tmp_path / "model.onnx"
    onnx.save(build_history_model(), source)
    arguments = [str(source), str(tmp_path), "OpenVINO", "FP32", json.dumps(SHAPE)]
    assert compile_bucket_file(arguments) == 0
    [bucket] = EngineFolder(tmp_path).read_buckets()
    assert bucket.shape == SHAPE
    candidate = f"--candidate={tmp_path / ENGINE_FILE}"
    assert compile_bucket_file([*arguments, candidate]) == 0
    onnx.save(build_history_model(seed=1), source)
    assert compile_bucket_file([*arguments, candidate]) == 1
    (tmp_path / ENGINE_FILE).write_bytes(b"no engine")
    assert compile_bucket_file([*arguments, candidate]) == 1


@dataclass
class FakeProcesses:
    """What the processes of the compiler would write, without running any."""

    reason: str = ""
    status: int | None = 0
    wrong_candidates: bool = False
    lookups: bytes = b"lookups"
    commands: list[Sequence[str]] = field(default_factory=list[Sequence[str]])

    def run_module(self, _: CompileJob, module: str, arguments: Sequence[str]) -> int | None:
        assert module == "tidegate_dataplane.compiler.compile_engine"
        self.commands.append(arguments)
        proves = arguments[-1].startswith("--candidate")
        if proves and self.wrong_candidates:
            return 1
        if self.status == 0:
            shape = tuple((name, tuple(sizes)) for name, sizes in json.loads(arguments[4]))
            file = "" if self.reason else ENGINE_FILE
            bucket = CompiledBucket(
                shape,
                "OpenVINO",
                file,
                reason=self.reason,
                speedup=0.0 if proves else 1.5,
                lookups=hashlib.sha256(self.lookups).hexdigest(),
            )
            folder = EngineFolder(Path(arguments[1]))
            folder.write_buckets([bucket])
            folder.lookups_path(bucket.lookups).write_bytes(self.lookups)
            (Path(arguments[1]) / ENGINE_FILE).write_bytes(arguments[4].encode())
        return self.status


class JobFixture:
    """A version whose graph is compiled, and the runner's notes about it."""

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.processes = FakeProcesses()
        self.exchange = CompileFolder(folder)
        (folder / "model.onnx").write_bytes(b"graph")
        self.job = CompileJob(model="m", version=1, digest="d", source=folder / "model.onnx", engine=ORDER)
        self.exchange.write_result("d", CompileResult())
        self.engines = self.exchange.find_engines("d", ORDER)
        node_cache = None if cache is None else NodeCache(cache, 1 << 20)
        shared = CompileCache(node_cache)
        self.jobs = EngineJobs(self.exchange, folder, shared, self.processes.run_module)

    def miss(self, *shapes: BucketShape) -> None:
        counts = tuple((shape, 100 - number) for number, shape in enumerate(shapes))
        self.engines.write_notes("a", RunnerNotes(missed=counts))

    def compile_next(self) -> bool:
        return self.jobs.compile_next(self.job)


def shape_of(rows: int) -> BucketShape:
    return (("x", (rows, 4)),)


def test_what_is_missed_most_is_compiled_once_and_no_more_than_the_limit(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    assert not fixture.compile_next()
    shapes = [shape_of(rows) for rows in range(1, MAX_BUCKETS + 9)]
    fixture.miss(*shapes)
    while fixture.compile_next():
        pass
    buckets = fixture.engines.read_buckets()
    assert [bucket.shape for bucket in buckets] == shapes[:MAX_BUCKETS]
    assert len(fixture.processes.commands) == MAX_BUCKETS
    assert all((fixture.engines.root / bucket.file).is_file() for bucket in buckets)
    # A compiler that starts again finds them.
    assert not EngineJobs(
        fixture.exchange, tmp_path, CompileCache(None), fixture.processes.run_module
    ).compile_next(fixture.job)


def test_a_shape_that_is_left_out_has_its_reason_and_is_not_tried_again(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.processes.reason = "no faster"
    fixture.miss(shape_of(1))
    assert fixture.compile_next()
    assert not fixture.compile_next()
    assert [(bucket.file, bucket.reason) for bucket in fixture.engines.read_buckets()] == [("", "no faster")]


def test_an_engine_that_a_runner_refuses_is_removed_with_its_reason(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.miss(shape_of(1))
    assert fixture.compile_next()
    [bucket] = fixture.engines.read_buckets()
    fixture.engines.write_notes("a", RunnerNotes(refused=((shape_of(1), "answers differ"),)))
    assert not fixture.compile_next()
    assert [entry.reason for entry in fixture.engines.read_buckets()] == ["answers differ"]
    assert not (fixture.engines.root / bucket.file).exists()


def test_a_compilation_that_ends_without_a_result_is_given_up(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.processes.status = 137
    fixture.miss(shape_of(1))
    for _ in range(MAX_ATTEMPTS):
        assert fixture.compile_next()
    assert not fixture.compile_next()
    assert "raise spec.compile.memory" in fixture.engines.read_buckets()[0].reason
    assert len(fixture.processes.commands) == MAX_ATTEMPTS


def test_a_compiler_killed_at_each_attempt_gives_the_shape_up(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.miss(shape_of(1))
    fixture.engines.write_buckets([CompiledBucket(shape_of(1), attempts=MAX_ATTEMPTS)])
    assert not fixture.compile_next()
    assert "raise spec.compile.memory" in fixture.engines.read_buckets()[0].reason


def test_a_withdrawn_job_counts_as_no_attempt(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.miss(shape_of(1))

    def withdraw(*_: object) -> int:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        EngineJobs(fixture.exchange, tmp_path, CompileCache(None), withdraw).compile_next(fixture.job)
    assert [bucket.attempts for bucket in fixture.engines.read_buckets()] == [0]
    assert list(tmp_path.glob(".scratch-*")) == []


def test_a_second_pod_of_the_node_compiles_nothing_and_takes_no_damaged_or_wrong_engine(
    tmp_path: Path,
) -> None:
    def compile_in(pod: str, *, wrong: bool = False) -> tuple[int, bool]:
        """Return how many processes compiled, and whether the engine came from the cache."""
        fixture = JobFixture(tmp_path / pod, tmp_path / "cache")
        fixture.processes.wrong_candidates = wrong
        fixture.miss(shape_of(1))
        assert fixture.compile_next()
        compiled = [command for command in fixture.processes.commands if not command[-1].startswith("--")]
        [bucket] = fixture.engines.read_buckets()
        assert (fixture.engines.root / bucket.file).is_file()
        return len(compiled), bucket.cached

    assert compile_in("first") == (1, False)
    assert compile_in("second") == (0, True)
    assert compile_in("third", wrong=True) == (1, False)
    for blob in (tmp_path / "cache" / "blobs").iterdir():
        blob.write_bytes(b"?" + blob.read_bytes()[1:])
    assert compile_in("fourth") == (1, False)


def test_an_engine_of_the_cache_has_the_lookups_of_the_graph_and_not_those_of_its_record(
    tmp_path: Path,
) -> None:
    first = JobFixture(tmp_path / "first", tmp_path / "cache")
    second = JobFixture(tmp_path / "second", tmp_path / "cache")
    second.processes.lookups = b"others"
    for fixture in (first, second):
        fixture.miss(shape_of(1))
        assert fixture.compile_next()
        [bucket] = fixture.engines.read_buckets()
        lookups = fixture.engines.lookups_path(bucket.lookups)
        assert lookups.read_bytes() == fixture.processes.lookups
        assert (bucket.cached, bucket.speedup) == (fixture is second, 1.5)


@pytest.mark.parametrize(
    ("record", "is_cached"),
    [
        (b'{"file": "engine", "sha256": "DIGEST", "speedup": 1.5}', True),
        (b'{"file": "../../victim", "sha256": "DIGEST", "speedup": 1.5}', True),
        (b'{"file": "no/such/folder", "sha256": "DIGEST", "speedup": 1.5}', True),
        (b'{"file": "engine", "sha256": "../../victim", "speedup": 1.5}', False),
        (b'{"file": "engine", "sha256": "", "speedup": 1.5}', False),
        (b'{"file": "engine", "speedup": 1.5}', False),
        (b'{"file": "", "sha256": "DIGEST", "speedup": 1.5}', False),
        (b'{"file": "engine", "sha256": "DIGEST", "speedup": NaN}', False),
        (b'{"file": "engine", "sha256": "DIGEST", "speedup": "fast"}', False),
        (b'{"file": "engine", "sha256": "DIGEST"}', False),
        (b"[]", False),
        (b"\xff\x00", False),
        (b"", False),
    ],
)
def test_a_record_of_the_cache_names_no_file_and_a_damaged_one_is_a_miss(
    tmp_path: Path, record: bytes, is_cached: bool
) -> None:
    first = JobFixture(tmp_path / "first", tmp_path / "cache")
    first.miss(shape_of(1))
    assert first.compile_next()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    [engine] = (tmp_path / "cache" / "names").glob("*.engine")
    record = record.replace(b"DIGEST", engine.stem.encode())
    [name] = (tmp_path / "cache" / "names").glob("*.bucket")
    name.write_text(hashlib.sha256(record).hexdigest())
    (tmp_path / "cache" / "blobs" / name.read_text()).write_bytes(record)
    second = JobFixture(tmp_path / "second", tmp_path / "cache")
    second.miss(shape_of(1))
    assert second.compile_next()
    [bucket] = second.engines.read_buckets()
    assert (bucket.cached, (second.engines.root / bucket.file).is_file()) == (is_cached, True)
    assert victim.read_bytes() == b"precious"


def test_a_cache_with_names_that_are_no_text_is_not_used(tmp_path: Path) -> None:
    first = JobFixture(tmp_path / "first", tmp_path / "cache")
    first.miss(shape_of(1))
    assert first.compile_next()
    for name in (tmp_path / "cache" / "names").iterdir():
        name.write_bytes(b"\xff\xfe")
    second = JobFixture(tmp_path / "second", tmp_path / "cache")
    second.miss(shape_of(1))
    assert second.compile_next()
    [bucket] = second.engines.read_buckets()
    assert (bucket.cached, (second.engines.root / bucket.file).is_file()) == (False, True)


def test_engines_share_their_lookups_which_go_with_the_last_of_them(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.miss(shape_of(1), shape_of(2))
    assert fixture.compile_next()
    assert fixture.compile_next()
    [path] = fixture.engines.root.glob("*.lookups")
    fixture.engines.write_notes("a", RunnerNotes(refused=((shape_of(1), "slower"),)))
    assert not fixture.compile_next()
    assert path.exists()
    fixture.engines.write_notes("b", RunnerNotes(refused=((shape_of(2), "slower"),)))
    assert not fixture.compile_next()
    assert not path.exists()


@pytest.mark.parametrize("changed", ["passes", "compiler"])
def test_other_passes_or_another_compiler_take_no_engine_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(b"graph")
    before = make_engine_key("d", source, ORDER, SHAPE)
    assert make_engine_key("d", source, ORDER, SHAPE) == before
    if changed == "passes":
        monkeypatch.setattr(shared_graphs, "LIBRARIES", ("onnx",))
    else:
        monkeypatch.setattr(engine_jobs, "_find_openvino", lambda: "another")
    assert make_engine_key("d", source, ORDER, SHAPE) != before


def test_other_weights_beside_the_same_graph_take_no_engine_of_the_cache(tmp_path: Path) -> None:
    """In 16 bits, an engine with the weights of the day before would pass the comparison."""
    model, _ = with_external_data("model.data")
    source = write_artefact(tmp_path, 1, model) / "model.onnx"
    assert make_engine_key("monday", source, ORDER, SHAPE) != make_engine_key("tuesday", source, ORDER, SHAPE)


def test_without_an_order_for_an_engine_nothing_is_compiled(tmp_path: Path) -> None:
    fixture = JobFixture(tmp_path)
    fixture.miss(shape_of(1))
    job = fixture.job.model_copy(update={"engine": None})
    assert not fixture.jobs.compile_next(job)
    assert asdict(fixture.engines.read_notes())["missed"]
