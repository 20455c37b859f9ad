"""The graph of a served version is compiled beside a real Triton, by the compiler as a real process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from builders import probe_model
from builders.columns_model import COLUMNS, column_batches, publish_columns
from builders.load import PatientLoad
from builders.metrics_page import metric
from builders.scoring_client import ScoringClient
from builders.waiting import wait_until
from fixtures.agent import ModelPod, serves_version
from fixtures.compiler import forget_compiled, hold_compilations, run_compiler, wait_for_compile
from fixtures.object_store import CREDENTIALS
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.formats import SERVED_GRAPH
from tidegate_dataplane.agent.repository import COMPILED_DIR
from tidegate_dataplane.compiler.exchange import CompileFolder
from tidegate_dataplane.contract import CompilePhase, CompileReport, DesiredState
from tidegate_dataplane.sampling.kept_requests import MAX_FILES
from tidegate_localcluster.demo.load import CheckedLoad

pytestmark = [pytest.mark.triton]


def publish(pod: ModelPod, version: int) -> None:
    """Publish a version of columns with a content of this test's own."""
    publish_columns(pod.artefact, version, mark=pod.model)


@contextmanager
def column_load(pod: ModelPod, *versions: int) -> Iterator[CheckedLoad]:
    with PatientLoad(
        lambda: ScoringClient(pod.triton.grpc, pod.model),
        column_batches(versions),
        threads=2,
        pause_s=0.005,
    ) as load:
        yield load


def served_nodes(pod: ModelPod, version: int) -> int:
    path = pod.triton.repository / pod.model / str(version) / SERVED_GRAPH
    return len(onnx.load(path).graph.node)


@pytest.mark.slow(
    "tests/e2e/test_engines.py swaps compiled versions and goes back under load; unit/test_request_wait.py has the wait"
)
@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_versions_get_their_compiled_graphs_under_load_and_nothing_is_lost_or_wrong(pod: ModelPod) -> None:
    publish(pod, 1)
    publish(pod, 2)
    pod.put(pod.order(1, graph_passes=True))
    pod.wait_for("version 1 serves", serves_version(1))
    with column_load(pod, 1, 2) as load, run_compiler(pod, TIDEGATE_COMPILER_REQUEST_WAIT_S="60"):
        report = wait_for_compile(pod, 1, CompilePhase.COMPILED)
        assert count_proved_on(pod) == MAX_FILES, "no client gets an answer of a graph that was not compared"
        assert [(each.name, each.changes) for each in report.passes if each.applied] == [
            ("fuseEmbeddings", COLUMNS)
        ], report
        assert report.speedups[1] > 1
        nodes = served_nodes(pod, 1)
        assert nodes == report.nodes_after < report.nodes_before == 2 * COLUMNS + 3

        pod.put(pod.order(2, graph_passes=True))
        assert wait_for_compile(pod, 2, CompilePhase.COMPILED).nodes_after == nodes
        load.wait_for("2", 50)
        # Back again: the older version was kept with its compiled graph.
        pod.put(pod.order(1, graph_passes=True))
        wait_for_compile(pod, 1, CompilePhase.COMPILED)
        assert served_nodes(pod, 1) == nodes
        load.wait_for("1", 50)
        # The compiler says so after the agent has its graph, and is killed at the end of the block.
        wait_until(lambda: count_compiled(pod) >= 2, what="both compilations are in the log")
    results = load.finish()
    assert results.problems == ()
    assert set(results.versions) == {"1", "2"}
    assert count_compiled(pod) == 2


def count_compiled(pod: ModelPod) -> int:
    """Return how many compilations of the pod's model the log has."""
    return sum('"event": "compiled"' in line for line in logs_of(pod))


def count_proved_on(pod: ModelPod) -> int:
    """Return on how many requests of clients the passes of the ordered version were proved."""
    folder = CompileFolder(pod.folder / "cache" / "compile")
    job = folder.read_job()
    result = None if job is None else folder.read_result(job.digest)
    assert result is not None
    return result.compared_requests


def logs_of(pod: ModelPod) -> list[str]:
    return [
        line
        for line in (pod.folder / "compiler.log").read_text().splitlines()
        if f'"model": "{pod.model}"' in line
    ]


def test_a_graph_that_no_pass_improves_is_served_as_published(pod: ModelPod) -> None:
    probe_model.publish(pod.artefact, 1)
    pod.put(pod.order(1, graph_passes=True))
    with run_compiler(pod):
        report = wait_for_compile(pod, 1, CompilePhase.UNCHANGED)
    assert {each.reason for each in report.passes} == {"nothing to change"}
    assert served_nodes(pod, 1) == 1


def test_without_an_order_for_it_no_graph_is_compiled(pod: ModelPod) -> None:
    publish(pod, 1)
    pod.put(pod.order(1))
    with run_compiler(pod):
        report = pod.wait_for("version 1 serves", serves_version(1))
        assert report.compile is None
    assert served_nodes(pod, 1) == 2 * COLUMNS + 3
    assert logs_of(pod) == []


def test_a_compiler_that_is_killed_again_and_again_is_given_up_and_the_published_graph_serves(
    pod: ModelPod, tmp_path: Path
) -> None:
    publish(pod, 1)
    pod.put(pod.order(1, graph_passes=True))
    for attempt in (1, 2):
        with hold_compilations(tmp_path) as held, run_compiler(pod, **held):
            wait_for_attempt(pod, attempt)
            wait_for_compile(pod, 1, CompilePhase.COMPILING)
    with run_compiler(pod):
        report = wait_for_compile(pod, 1, CompilePhase.FAILED)
    assert "ended 2 times" in report.message
    assert "raise spec.compile.memory" in report.message
    with column_load(pod, 1) as load:
        wait_until(lambda: load.report().versions.get("1", 0) > 20, what="version 1 answers")
    assert load.finish().problems == ()


def test_a_compilation_that_gives_way_to_another_version_is_no_attempt(pod: ModelPod, tmp_path: Path) -> None:
    folder = CompileFolder(pod.folder / "cache" / "compile")
    publish(pod, 1)
    publish(pod, 2)
    pod.put(pod.order(1, graph_passes=True))
    with hold_compilations(tmp_path) as held, run_compiler(pod, **held):
        wait_for_attempt(pod, 1)
        job = folder.read_job()
        assert job is not None
        pod.put(pod.order(2, graph_passes=True))
        wait_until(lambda: folder.read_job() not in (None, job), what="version 2 is compiled instead")
        wait_until(lambda: folder.count_attempts(job.digest) == 0, what="the attempt is not counted")
    with run_compiler(pod):
        pod.put(pod.order(1, graph_passes=True))
        wait_for_compile(pod, 1, CompilePhase.COMPILED)


@pytest.mark.slow("unit/test_shared_graphs.py: what a second pod takes and what not; here it compiles twice")
def test_a_second_pod_of_the_node_takes_the_graph_that_the_first_compiled_and_no_damaged_one(
    pod: ModelPod, tmp_path: Path
) -> None:
    cache = {
        "TIDEGATE_COMPILER_NODE_CACHE_DIR": str(tmp_path / "node"),
        "TIDEGATE_COMPILER_NODE_CACHE_BYTES": str(64 << 20),
    }
    (tmp_path / "node").mkdir()
    publish(pod, 1)
    pod.put(pod.order(1, graph_passes=True))
    with run_compiler(pod, **cache):
        assert not wait_for_compile(pod, 1, CompilePhase.COMPILED).cached

    content = pod.model

    def as_another_pod() -> CompileReport:
        pod.model += "x"
        forget_compiled(pod)
        publish_columns(pod.artefact, 1, mark=content)
        pod.put(pod.order(1, graph_passes=True))
        with run_compiler(pod, **cache):
            return wait_for_compile(pod, 1, CompilePhase.COMPILED)

    assert as_another_pod().cached
    for blob in (tmp_path / "node" / "blobs").iterdir():
        blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert not as_another_pod().cached


@pytest.mark.slow(
    "unit/test_compile_store.py: what another node takes; test_agent_s3_source.py: the store; here it compiles"
)
def test_a_pod_of_another_node_takes_the_graph_from_an_object_store(pod: ModelPod, bucket: str) -> None:
    def order() -> DesiredState:
        return pod.order(1, graph_passes=True, compile_cache="s3://models/compiled")

    content, settings = pod.model, pod.settings
    pod.stop_agent()
    pod.settings = {**settings, **CREDENTIALS, "AWS_ENDPOINT_URL": bucket.removesuffix("/models")}
    pod.settings["TIDEGATE_AGENT_ALLOW_LOOPBACK"] = "true"
    pod.start_agent()
    try:
        publish(pod, 1)
        pod.put(order())
        outgoing = pod.folder / "cache" / COMPILED_DIR / "outgoing"
        with run_compiler(pod):
            assert not wait_for_compile(pod, 1, CompilePhase.COMPILED).cached
            wait_until(lambda: not list(outgoing.iterdir()), what="the graph and its result are in the store")
        pod.model += "x"
        forget_compiled(pod)
        publish_columns(pod.artefact, 1, mark=content)
        pod.put(order())
        with run_compiler(pod):
            report = wait_for_compile(pod, 1, CompilePhase.COMPILED)
        assert (report.cached, report.cache_problem) == (True, "")
        with column_load(pod, 1) as load:
            load.wait_for("1", 20)
        assert load.finish().problems == ()
    finally:
        pod.stop_agent()
        pod.settings = settings
        pod.start_agent()


def make_hungry(published: bytes) -> bytes:
    """Return the graph with an operation that needs 64 TiB for each request, as a pass that unrolls a table might add."""
    model = onnx.load_from_string(published)
    size = numpy_helper.from_array(np.array([1 << 44], np.int64), "size")
    model.graph.initializer.append(size)
    model.graph.node[-1].output[0] = "little"
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
            helper.make_node("Add", ["little", "zero"], ["score"]),
        ]
    )
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("make_graph", "text"),
    [
        pytest.param(lambda _: b"no graph", "Protobuf parsing failed", id="damaged"),
        pytest.param(
            make_hungry,
            "Failed to allocate memory",
            id="more memory than there is",
            marks=pytest.mark.slow("the damaged graph is refused and given up in the same way"),
        ),
    ],
)
def test_a_graph_that_the_server_refuses_is_given_up_and_the_published_one_goes_on_serving(
    pod: ModelPod, make_graph: Callable[[bytes], bytes], text: str
) -> None:
    publish(pod, 1)
    pod.put(pod.order(1, graph_passes=True))
    pod.wait_for("version 1 serves", serves_version(1))
    refused_before = metric(pod.metrics(), "tidegate_agent_graphs_refused_total")
    with column_load(pod, 1) as load:
        with run_compiler(pod):
            wait_for_compile(pod, 1, CompilePhase.COMPILED)
        return_graph(pod, make_graph((pod.artefact / "1" / "model.onnx").read_bytes()))
        report = wait_for_compile(pod, 1, CompilePhase.FAILED)
        assert "the server does not load the compiled graph" in report.message
        assert text in report.message
        assert served_nodes(pod, 1) == 2 * COLUMNS + 3
        before = load.report().versions["1"]
        wait_until(lambda: load.report().versions["1"] > before + 20, what="version 1 answers")
    assert load.finish().problems == ()
    assert metric(pod.metrics(), "tidegate_agent_graphs_refused_total") == refused_before + 1


@pytest.mark.slow(
    "unit/test_request_checks.py compares and withdraws on real requests; here are the pauses between comparisons"
)
@pytest.mark.no_rerun("a wrong answer")
def test_a_graph_that_answers_clients_otherwise_is_withdrawn_and_equal_answers_are_counted(
    pod: ModelPod,
) -> None:
    publish(pod, 1)
    publish(pod, 2)
    pod.put(pod.order(1, graph_passes=True))
    [batch] = column_batches((1, 2), count=1)
    with closing(ScoringClient(pod.triton.grpc, pod.model)) as client:

        def has_scores_of(version: str) -> bool:
            return np.array_equal(client.score(batch.inputs).scores, batch.expected[version])

        with run_compiler(pod):
            wait_for_compile(pod, 1, CompilePhase.COMPILED)
            wait_until(
                lambda: has_scores_of("1") and compiled_of(pod).compared_requests > 1,
                what="answers are compared",
            )
        # A graph with the answers of another version, as a wrong pass would make it.
        return_graph(pod, (pod.artefact / "2" / "model.onnx").read_bytes())
        wait_until(lambda: has_scores_of("2"), what="the wrong graph answers")
        with run_compiler(pod):
            report = wait_for_compile(pod, 1, CompilePhase.FAILED)
            assert "answered requests of clients otherwise: numbers differ by" in report.message
            wait_until(lambda: has_scores_of("1"), what="the published graph answers")
        assert served_nodes(pod, 1) == report.nodes_before


def compiled_of(pod: ModelPod) -> CompileReport:
    """Return what the agent says about the graph."""
    report = pod.report().compile
    assert report is not None
    return report


def wait_for_attempt(pod: ModelPod, number: int) -> None:
    """Wait until the compilation of the pod's job has begun so often."""
    folder = CompileFolder(pod.folder / "cache" / "compile")

    def has_begun() -> bool:
        job = folder.read_job()
        return job is not None and job.model == pod.model and folder.count_attempts(job.digest) == number

    wait_until(has_begun, what=f"attempt {number} has begun")


def return_graph(pod: ModelPod, content: bytes) -> None:
    """Let the compiler's result be such a graph."""
    folder = CompileFolder(pod.folder / "cache" / "compile")
    job = folder.read_job()
    assert job is not None
    result = folder.read_result(job.digest)
    assert result is not None
    graph = pod.folder / "returned.onnx"
    graph.write_bytes(content)
    returned = result.model_copy(update={"graph_sha256": hash_file(graph)})
    folder.write_result(job.digest, returned, graph)
