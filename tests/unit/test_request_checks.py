"""A served graph is compared on requests of clients, and withdrawn once it answers one of them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from builders.columns_model import COLUMNS, publish_columns
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.compare_requests import compare_files
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.exchange import CompileFolder, CompileJob, CompileResult
from tidegate_dataplane.compiler.request_checks import MAX_PAUSE_S, MIN_PAUSE_S, RequestChecks
from tidegate_dataplane.compiler.shared_graphs import WITHDRAWAL_S, SharedGraphs, make_cache_key
from tidegate_dataplane.graph_passes.pipeline import optimize_model
from tidegate_dataplane.sampling.kept_requests import RequestKeeper, list_requests

DIGEST = "d1"


class CheckedVersion:
    """A version of columns whose compiled graph is in the compiler's folder and in the node's cache."""

    def __init__(self, folder: Path) -> None:
        for version in (1, 2):
            publish_columns(folder / "models", version)
        self.root, self.now_s, self.runs = folder / "compile", 0.0, 0
        self.folder = CompileFolder(self.root)
        self.job = CompileJob(
            model="ctr", version=1, digest=DIGEST, source=folder / "models" / "1" / "model.onnx"
        )
        self.other = folder / "models" / "2" / "model.onnx"
        self.shared = SharedGraphs(CompileCache(NodeCache(folder / "node", 64 << 20)), lambda: self.now_s)
        (folder / "scratch").mkdir()
        self.crashes = False
        self.while_comparing: Callable[[], None] = lambda: None
        self.checks = RequestChecks(
            self.folder, folder / "scratch", self.shared, self.run_module, lambda: self.now_s
        )

    def serve(self, model: onnx.ModelProto) -> None:
        graph = self.root.parent / "graph.onnx"
        onnx.save(model, graph)
        result = CompileResult(graph_sha256=hash_file(graph), nodes_after=len(model.graph.node))
        self.shared.store_result(make_cache_key(self.job), result, graph)
        self.folder.write_result(DIGEST, result, graph)

    def serve_optimized(self) -> None:
        self.serve(optimize_model(onnx.load(self.job.source), measured_rows=(1,)).model)

    def keep(self, rows: int = 2) -> None:
        self.folder.ask_for_requests(DIGEST)
        keeper = RequestKeeper(self.root / DIGEST, "ctr_0")
        keeper.offer_request({"ids": np.random.default_rng(rows).integers(0, 50, (rows, COLUMNS))})
        keeper.finish_writing()

    def run_module(self, job: CompileJob, module: str, arguments: Sequence[str]) -> int | None:
        assert (job, module) == (self.job, "tidegate_dataplane.compiler.compare_requests")
        self.runs += 1
        self.while_comparing()
        return 9 if self.crashes else compare_files(arguments)

    def load_shared(self, target: Path) -> CompileResult:
        """What the next pod of the node gets."""
        shared = self.shared.load_result(make_cache_key(self.job), target)
        assert shared is not None
        return shared

    def count_compared(self) -> int:
        return self.folder.count_compared(DIGEST)

    def result(self) -> CompileResult:
        result = self.folder.read_result(DIGEST)
        assert result is not None
        return result


@pytest.fixture
def version(tmp_path: Path) -> CheckedVersion:
    return CheckedVersion(tmp_path)


def test_requests_that_are_answered_alike_are_counted_and_removed(version: CheckedVersion) -> None:
    version.serve_optimized()
    assert not version.checks.check_next(version.job), "no request has come"
    for number in (1, 2):
        version.keep()
        assert version.checks.check_next(version.job)
        assert version.count_compared() == number
        assert list_requests(version.root / DIGEST) == []
        version.now_s += MIN_PAUSE_S
    assert version.result().graph_sha256


def test_a_graph_that_answers_a_request_otherwise_is_withdrawn_for_all_pods_of_the_node(
    version: CheckedVersion, tmp_path: Path
) -> None:
    version.serve(onnx.load(version.other))
    engines = version.root / DIGEST / "engines-1"
    engines.mkdir()
    version.keep()
    assert version.load_shared(tmp_path / "copy").graph_sha256
    assert version.checks.check_next(version.job)
    result = version.result()
    assert result.graph_sha256 == ""
    assert "answered requests of clients otherwise: numbers differ by 1.0e+00" in result.message
    assert "tidegate optimize --requests" in result.message
    assert not engines.exists()
    shared = version.load_shared(tmp_path / "other")
    assert (shared.graph_sha256, shared.message) == ("", result.message), (
        "the next pod does not compile it again"
    )
    assert not (tmp_path / "other").exists()
    version.keep()
    version.now_s += MAX_PAUSE_S
    assert not version.checks.check_next(version.job), "the published graph needs no comparison"
    assert not (version.root / DIGEST / "requests").exists(), "and no requests"


@pytest.mark.parametrize(
    ("pauses", "is_kept"),
    [([0.0], False), ([0.0, MAX_PAUSE_S], False), ([0.0, WITHDRAWAL_S], True)],
    ids=["one pod", "two pods of one trial", "a second trial"],
)
def test_a_withdrawal_of_the_node_ends_after_a_day_unless_a_second_trial_confirms_it(
    version: CheckedVersion, tmp_path: Path, pauses: list[float], is_kept: bool
) -> None:
    began_at_s = version.now_s + MAX_PAUSE_S
    version.now_s = began_at_s
    for pause_s in pauses:
        version.now_s += pause_s
        version.serve(onnx.load(version.other))
        version.keep()
        assert version.checks.check_next(version.job)
        assert version.load_shared(tmp_path / "copy").graph_sha256 == ""
    version.now_s = max(version.now_s, began_at_s + WITHDRAWAL_S - 1)
    assert version.load_shared(tmp_path / "copy").graph_sha256 == ""
    version.now_s += 1 + (WITHDRAWAL_S if is_kept else 0)
    shared = version.load_shared(tmp_path / "copy")
    assert (shared.graph_sha256 == "") == is_kept
    assert (tmp_path / "copy").exists() != is_kept


def test_a_difference_is_found_again_if_it_could_not_be_written(
    version: CheckedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    version.serve(onnx.load(version.other))
    version.keep()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(version.folder, "write_result", fail)
        with pytest.raises(OSError, match="No space left"):
            version.checks.check_next(version.job)
    assert not version.checks.check_next(version.job), "not again at once"
    version.now_s += MIN_PAUSE_S
    assert version.checks.check_next(version.job)
    assert version.result().graph_sha256 == ""


def test_what_the_agent_has_given_up_meanwhile_stays_given_up(version: CheckedVersion) -> None:
    version.serve(onnx.load(version.other))
    version.keep()
    refused = version.result().model_copy(
        update={"graph_sha256": "", "message": "the server does not load it"}
    )
    version.while_comparing = lambda: version.folder.write_result(DIGEST, refused)
    assert version.checks.check_next(version.job)
    assert version.result() == refused


def test_requests_that_the_published_graph_refuses_prove_nothing(version: CheckedVersion) -> None:
    version.serve_optimized()
    version.folder.ask_for_requests(DIGEST)
    keeper = RequestKeeper(version.root / DIGEST, "ctr_0")
    keeper.offer_request({"ids": np.zeros((2, COLUMNS + 1), np.int64)})
    keeper.finish_writing()
    assert version.checks.check_next(version.job)
    assert version.result().graph_sha256
    assert version.count_compared() == 0


def test_comparisons_become_rarer(version: CheckedVersion) -> None:
    version.serve_optimized()
    pauses: list[float] = []
    begun = 0.0
    for _ in range(11):
        version.keep()
        while not version.checks.check_next(version.job):
            version.now_s += MIN_PAUSE_S
        pauses.append(version.now_s - begun)
        begun = version.now_s
    assert pauses[:4] == [0, 10, 20, 40]
    assert pauses[-1] == MAX_PAUSE_S


def test_a_comparison_that_ends_without_a_result_changes_nothing_and_is_not_repeated_at_once(
    version: CheckedVersion,
) -> None:
    version.serve_optimized()
    before = version.result()
    version.crashes = True
    version.keep()
    assert version.checks.check_next(version.job)
    version.keep()
    assert not version.checks.check_next(version.job)
    assert version.result() == before
    assert version.runs == 1


def test_a_version_that_serves_again_is_compared_at_once(version: CheckedVersion) -> None:
    version.serve_optimized()
    version.keep()
    assert version.checks.check_next(version.job)
    version.keep()
    assert not version.checks.check_next(version.job)
    assert not version.checks.check_next(version.job.model_copy(update={"digest": "d2"})), "it has no graph"
    (version.root / "d2").mkdir()
    version.folder.write_result("d2", version.result())
    assert not version.checks.check_next(version.job.model_copy(update={"digest": "d2"})), (
        "no request has come"
    )
    assert version.checks.check_next(version.job)


def test_damaged_requests_are_left_out(version: CheckedVersion) -> None:
    version.serve_optimized()
    version.keep()
    (version.root / DIGEST / "requests" / "other.npz").write_bytes(b"no archive")
    assert version.checks.check_next(version.job)
    assert version.count_compared() == 1
    assert list_requests(version.root / DIGEST) == []
