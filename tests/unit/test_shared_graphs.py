"""Compiled graphs that the pods of a node share: one pod compiles, the others take its graph unless it is damaged."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.compiler.shared_graphs import WITHDRAWAL_S, SharedGraphs

KEY = "k1"


@pytest.fixture
def stored(tmp_path: Path) -> CompileResult:
    """The result of the first pod, stored with its graph."""
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"a graph")
    result = CompileResult(graph_sha256=hash_file(graph), nodes_after=7, compared_requests=3)
    share(tmp_path).store_result(KEY, result, graph)
    return result


def share(folder: Path, clock: Callable[[], float] = time.time) -> SharedGraphs:
    """Open the node's cache as one pod does."""
    return SharedGraphs(open_cache(folder), clock)


def open_cache(folder: Path) -> CompileCache:
    return CompileCache(NodeCache(folder / "node", 1 << 20))


def test_a_second_pod_takes_the_graph_of_the_first(tmp_path: Path, stored: CompileResult) -> None:
    target = tmp_path / "second.onnx"
    result = share(tmp_path).load_result(KEY, target)
    assert result == stored.model_copy(update={"cached": True, "compared_requests": 0})
    assert target.read_bytes() == b"a graph"


@pytest.mark.usefixtures("stored")
def test_a_damaged_graph_and_one_of_another_key_are_not_taken(tmp_path: Path) -> None:
    target = tmp_path / "second.onnx"
    assert share(tmp_path).load_result("k2", target) is None
    for blob in (tmp_path / "node" / "blobs").iterdir():
        blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert share(tmp_path).load_result(KEY, target) is None
    assert not target.exists()


@pytest.mark.usefixtures("stored")
def test_a_withdrawal_of_an_earlier_release_holds_for_its_day(tmp_path: Path) -> None:
    """They replaced the result by one without a graph."""
    target = tmp_path / "second.onnx"
    withdrawn = CompileResult(message="answered otherwise")
    open_cache(tmp_path).add_file(f"{KEY}.result", withdrawn.model_dump_json().encode())
    assert share(tmp_path).load_result(KEY, target) == withdrawn.model_copy(update={"cached": True})
    later = share(tmp_path, lambda: time.time() + WITHDRAWAL_S)
    assert later.load_result(KEY, target) is None, "so that it is compiled again"


def test_a_withdrawal_of_a_clock_that_was_wrong_ends(tmp_path: Path, stored: CompileResult) -> None:
    target = tmp_path / "second.onnx"
    share(tmp_path, lambda: 4e9).withdraw_result(KEY, CompileResult(message="answered otherwise"))
    result = share(tmp_path).load_result(KEY, target)
    assert result is not None
    assert result.graph_sha256 == stored.graph_sha256
