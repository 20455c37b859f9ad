"""A graph is compiled once there are requests of clients to prove it on, or none have come for a while."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders.columns_model import COLUMNS, publish_columns
from tidegate_dataplane.compiler.exchange import (
    GRAPH_FILE,
    CompileFolder,
    CompileJob,
    read_comparison,
)
from tidegate_dataplane.compiler.optimize import compile_file
from tidegate_dataplane.compiler.request_wait import RequestWait
from tidegate_dataplane.sampling.kept_requests import MAX_FILES, RequestKeeper

LIMIT_S = 30.0


class WaitWorld:
    """A version of columns that serves as published, and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        for version in (1, 2):
            publish_columns(folder / "models", version)
        self.now_s, self.root, self.output = 0.0, folder / "compile", folder / "out"
        self.output.mkdir()
        self.folder = CompileFolder(self.root)
        self.source, self.other = (folder / "models" / number / "model.onnx" for number in ("1", "2"))
        self.job = CompileJob(model="ctr", version=1, digest="d1", source=self.source)
        self.wait = RequestWait(self.folder, LIMIT_S, lambda: self.now_s)
        self.keeper = RequestKeeper(self.root / "d1", "ctr_0", lambda: self.now_s)

    def keep_requests(self, count: int, number: int = 0) -> None:
        for _ in range(count):
            self.keeper.offer_request({"ids": np.full((2, COLUMNS), number)})
            self.keeper.finish_writing()

    def list_options(self) -> list[str]:
        return [f"--request={path}" for path in self.folder.list_requests("d1")]


@pytest.fixture
def world(tmp_path: Path) -> WaitWorld:
    return WaitWorld(tmp_path)


def test_a_graph_is_compiled_once_eight_requests_have_come(world: WaitWorld) -> None:
    assert not world.wait.is_over(world.job)
    world.keep_requests(MAX_FILES - 1)
    assert not world.wait.is_over(world.job)
    world.keep_requests(1)
    assert world.wait.is_over(world.job)


def test_without_requests_it_is_compiled_after_a_while(world: WaitWorld) -> None:
    assert not world.wait.is_over(world.job)
    world.now_s += LIMIT_S - 1
    assert not world.wait.is_over(world.job)
    other = world.job.model_copy(update={"digest": "d2"})
    assert not world.wait.is_over(other), "each version waits for its own requests"
    world.now_s += LIMIT_S
    assert world.wait.is_over(other)


def test_an_attempt_that_is_repeated_does_not_wait_again(world: WaitWorld) -> None:
    world.folder.begin_attempt("d1")
    assert world.wait.is_over(world.job)


def make_rarely_wrong(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that answers otherwise where all ids of a row are 7, which no random request has."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    constants = {"columns": [1], "rare": [7 * COLUMNS]}
    wrong.graph.initializer.extend(
        numpy_helper.from_array(np.array(numbers, np.int64), name) for name, numbers in constants.items()
    )
    wrong.graph.node[-1].output[0] = "right"
    wrong.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["ids", "columns"], ["total"], keepdims=0),
            helper.make_node("Equal", ["total", "rare"], ["is_rare"]),
            helper.make_node("Cast", ["is_rare"], ["error"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["right", "error"], ["less"]),
            helper.make_node("Where", ["is_rare", "error", "less"], ["score"]),
        ]
    )
    return wrong


@pytest.mark.parametrize(
    ("number", "is_wrong", "error"), [(3, False, ""), (3, True, ""), (7, False, ""), (7, True, "differ by")]
)
def test_a_graph_of_the_node_is_proved_on_requests_of_clients_before_it_serves(
    world: WaitWorld, number: int, is_wrong: bool, error: str
) -> None:
    world.wait.is_over(world.job)
    world.keep_requests(3, number)
    candidate = world.output / GRAPH_FILE
    published = onnx.load(world.source)
    onnx.save(make_rarely_wrong(published) if is_wrong else published, candidate)
    options = [f"--candidate={candidate}", *world.list_options()]
    assert compile_file([str(world.source), str(world.output), *options]) == 0
    comparison = read_comparison(world.output)
    assert comparison is not None
    assert comparison.answered == 3
    assert error in comparison.error
    assert bool(comparison.error) == bool(error)


def test_a_graph_of_the_node_that_random_requests_show_to_be_wrong_is_not_used(world: WaitWorld) -> None:
    options = [f"--candidate={world.other}"]
    assert compile_file([str(world.source), str(world.output), *options]) == 0
    comparison = read_comparison(world.output)
    assert comparison is not None
    assert comparison.error.startswith("random requests differ by")
