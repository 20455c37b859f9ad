"""Compiled graphs that the pods of a node share: one pod compiles, the others take its graph unless it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.compiler.shared_graphs import SharedGraphs

KEY = "k1"


@pytest.fixture
def stored(tmp_path: Path) -> CompileResult:
    """The result of the first pod, stored with its graph."""
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"a graph")
    result = CompileResult(graph_sha256=hash_file(graph), nodes_after=7, compared_requests=3)
    share(tmp_path).store_result(KEY, result, graph)
    return result


def share(folder: Path) -> SharedGraphs:
    """Open the node's cache as one pod does."""
    return SharedGraphs(NodeCache(folder / "node", 1 << 20))


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
