"""Shapes that come often are compiled for OpenVINO beside a real Triton, and their requests are answered by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builders.columns_model import COLUMNS, ENTRIES, publish_columns, score_ids
from builders.engine_models import ITEMS, build_history_model, make_history_request
from builders.metrics_page import metric
from builders.scoring_client import ScoringClient
from builders.waiting import wait_until
from fixtures.agent import ModelPod, serves_version
from fixtures.compiler import CompilerProcess, forget_compiled, run_compiler
from tidegate_dataplane.contract import AgentReport, EngineMode, EngineOrder, EngineReport
from tidegate_dataplane.graph_passes.proof import Session

pytestmark = [pytest.mark.triton]

ORDER = EngineOrder(engine=EngineMode.OPENVINO)


@pytest.fixture
def client(pod: ModelPod) -> Iterator[ScoringClient]:
    pytest.importorskip("openvino")
    client = ScoringClient(pod.triton.grpc, pod.model)
    yield client
    client.close()


def serve_history(pod: ModelPod, engine: EngineOrder = ORDER) -> onnx.ModelProto:
    """Serve a version with a content of this test's own, and order an engine for it."""
    model = build_history_model()
    model.doc_string = pod.model
    path = pod.artefact / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    pod.put(pod.order(1, graph_passes=True, engine=engine))
    pod.wait_for("version 1 serves", serves_version(1))
    return model


def send_request(client: ScoringClient, request: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the scores; Triton wants a second dimension of an input that has none."""
    return client.score({**request, "item": request["item"].reshape(-1, 1)}).scores.reshape(-1)


def assert_scores(client: ScoringClient, session: Session, rows: int, length: int, seed: int) -> None:
    request = make_history_request(rows, length, seed)
    expected = session.run_request(request)
    assert expected is not None
    scores = send_request(client, request)
    np.testing.assert_allclose(scores, expected[0], rtol=1e-4, atol=1e-5 * float(np.abs(expected[0]).max()))


def count_ways(pod: ModelPod) -> dict[str, float]:
    page = pod.triton.read_metrics_page()
    name = "tidegate_model_bucket_requests_total"
    return {
        way: metric(page, name, model=pod.model, version="1", way=way) for way in ("hit", "miss", "original")
    }


def wait_for_hits(pod: ModelPod, client: ScoringClient, session: Session, rows: int, length: int) -> None:
    """Send requests of one shape, all of which are answered rightly, until its engine answers them."""
    seeds = iter(range(100_000))
    before = count_ways(pod)["hit"]

    def is_hit() -> bool:
        assert_scores(client, session, rows, length, next(seeds))
        return count_ways(pod)["hit"] > before

    wait_until(is_hit, what=f"an engine answers {rows} rows of length {length}", timeout_s=90)


def engines_of(report: AgentReport) -> EngineReport:
    engines = report.compile.engines if report.compile is not None else None
    return engines if engines is not None else EngineReport()


def has_engine(report: AgentReport) -> bool:
    return any(bucket.engine for bucket in engines_of(report).buckets)


def count_compiled(compiler: CompilerProcess, model: str) -> int:
    lines = [line for line in compiler.logs.splitlines() if '"event": "engine_compiled"' in line]
    return sum(f'"model": "{model}"' in line for line in lines)


@pytest.mark.no_rerun("a wrong answer")
def test_a_shape_that_comes_often_gets_an_engine_and_every_other_is_answered_at_once(
    pod: ModelPod, client: ScoringClient
) -> None:
    session = Session(serve_history(pod))
    with run_compiler(pod) as compiler:
        wait_for_hits(pod, client, session, 16, 20)
        report = pod.wait_for("the bucket has an engine", has_engine)
        [bucket] = engines_of(report).buckets
        assert (bucket.shape, bucket.engine, bucket.reason) == ("history 16x20, item 16", "OpenVINO", "")
        assert bucket.max_error is not None
        assert bucket.max_error < 1e-5
        # Fewer rows are padded, other lengths go to the original.
        for rows in range(9, 16):
            assert_scores(client, session, rows, 20, rows)
        for length in range(21, 40):
            assert_scores(client, session, 16, length, length)
        # ONNX Runtime refuses an id outside of its table; OpenVINO would answer.
        request = make_history_request(16, 20)
        request["item"][0] = ITEMS
        with pytest.raises(InferenceServerException, match="indices element out of data bounds"):
            send_request(client, request)
        # The compiler says so after the runner has its engine.
        wait_until(
            lambda: count_compiled(compiler, pod.model) == 1, what="the compilation of one engine is logged"
        )

    def has_counted() -> bool:
        assert_scores(client, session, 16, 20, 0)
        return count_ways(pod)["miss"] >= 19

    wait_until(has_counted, what="the misses are counted")


@pytest.mark.slow(
    "unit/test_compile_engine.py: a second pod of the node compiles nothing; here four compilers run"
)
def test_engines_survive_a_restart_of_the_compiler_and_serve_another_pod_of_the_node(
    pod: ModelPod, client: ScoringClient, tmp_path: Path
) -> None:
    cache = {
        "TIDEGATE_COMPILER_NODE_CACHE_DIR": str(tmp_path / "node"),
        "TIDEGATE_COMPILER_NODE_CACHE_BYTES": str(64 << 20),
    }
    (tmp_path / "node").mkdir()
    session = Session(serve_history(pod))
    with run_compiler(pod, **cache) as compiler:
        wait_for_hits(pod, client, session, 4, 20)
        assert count_compiled(compiler, pod.model) == 1
    with run_compiler(pod, **cache) as compiler:
        wait_for_hits(pod, client, session, 4, 20)
        assert count_compiled(compiler, pod.model) == 1
    # As in a new pod, which has nothing but the node's cache.
    forget_compiled(pod)
    pod.put(pod.order(1, engine=ORDER))
    pod.put(pod.order(1, graph_passes=True, engine=ORDER.model_copy(update={"rows": (4,)})))

    def gets_cached_engine(report: AgentReport) -> bool:
        # The order's other sizes load the version again, with nothing but what its requests show.
        assert_scores(client, session, 4, 20, 1)
        return [bucket.cached for bucket in engines_of(report).buckets if bucket.engine] == [True]

    with run_compiler(pod, **cache):
        pod.wait_for("the bucket has the engine of the node", gets_cached_engine)
        wait_for_hits(pod, client, session, 4, 20)


@pytest.mark.slow(
    "unit/test_engine_router.py: listed sizes are the buckets; the test above asks a real engine"
)
def test_listed_lengths_are_padded_where_the_model_has_a_mask(pod: ModelPod, client: ScoringClient) -> None:
    order = ORDER.model_copy(update={"rows": (8,), "lengths": (32,)})
    session = Session(serve_history(pod, order))
    with run_compiler(pod):
        wait_for_hits(pod, client, session, 7, 25)
        report = pod.wait_for("the bucket has an engine", has_engine)
    assert [bucket.shape for bucket in engines_of(report).buckets] == ["history 8x32, item 8"]
    assert engines_of(report).message == ""


@pytest.mark.slow("test_compile_on_triton.py fuses columns, and the test above gives a shape its engine")
@pytest.mark.no_rerun("a wrong answer")
def test_a_graph_with_fused_columns_gets_an_engine_and_refuses_what_the_model_refuses(
    pod: ModelPod, client: ScoringClient
) -> None:
    publish_columns(pod.artefact, 1, mark=pod.model)
    pod.put(pod.order(1, graph_passes=True, engine=ORDER))
    pod.wait_for("version 1 serves", serves_version(1))
    random = np.random.default_rng(3)

    def is_hit() -> bool:
        ids = random.integers(-ENTRIES, ENTRIES, (8, COLUMNS))
        np.testing.assert_array_equal(client.score({"ids": ids}).scores.reshape(-1), score_ids(ids, 1))
        return count_ways(pod)["hit"] > 20

    with run_compiler(pod):
        wait_until(is_hit, what="an engine answers", timeout_s=90)
        report = pod.wait_for("the bucket has an engine", has_engine)
    assert report.compile is not None
    assert [result.changes for result in report.compile.passes if result.name == "fuseEmbeddings"] == [
        COLUMNS
    ]
    for number in (ENTRIES, -ENTRIES - 1, 2**31, 2**40, -(2**33)):
        ids = random.integers(0, ENTRIES, (8, COLUMNS))
        ids[3, 7] = number
        # Of one in the middle, the fused table has a row.
        with pytest.raises(InferenceServerException, match="indices element out of data bounds"):
            client.score({"ids": ids})
    hits = count_ways(pod)["hit"]
    wait_until(lambda: is_hit() and count_ways(pod)["hit"] > hits, what="the engine is still used")
