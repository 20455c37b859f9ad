"""An ONNX model of embedding columns, as exporters write them: one lookup per column, which a graph pass fuses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegate_localcluster.demo.load import ScoringBatch

COLUMNS: Final = 60
ENTRIES: Final = 50
WIDTH: Final = 8
STEP: Final = 1e6
"""A version's scores begin at this times its number; every other number is a small integer, so that sums are exact."""


def publish_columns(folder: Path, version: int, *, mark: str = "") -> None:
    """Write `<folder>/<version>/model.onnx`: ids int64 [rows, COLUMNS] → score float32 [rows]; `mark` changes its content alone."""
    nodes: list[onnx.NodeProto] = []
    weights = {"offset": np.array(STEP * version, np.float32), "axis": np.array([1], np.int64)}
    for number, table in enumerate(_make_tables()):
        weights |= {f"table{number}": table, f"index{number}": np.array(number, np.int64)}
        nodes += [
            helper.make_node("Gather", ["ids", f"index{number}"], [f"id{number}"], axis=1),
            helper.make_node("Gather", [f"table{number}", f"id{number}"], [f"row{number}"]),
        ]
    nodes += [
        helper.make_node("Concat", [f"row{number}" for number in range(COLUMNS)], ["rows"], axis=1),
        helper.make_node("ReduceSum", ["rows", "axis"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "offset"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "columns",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", COLUMNS])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        doc_string=mark,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    target = folder / str(version) / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target)


def score_ids(ids: NDArray[np.int64], version: int) -> NDArray[np.float32]:
    """Return what a version answers to ids int64 [rows, COLUMNS], as float32 [rows]."""
    rows = np.stack([table[column].sum(axis=-1) for table, column in zip(_make_tables(), ids.T, strict=True)])
    return (rows.sum(axis=0) + np.float32(STEP * version)).astype(np.float32)


def column_batches(versions: tuple[int, ...], count: int = 8) -> list[ScoringBatch]:
    """Return requests of one to eight rows that no other of them has, with the right answers of each version."""
    random = np.random.default_rng(0)
    requests = [random.integers(0, ENTRIES, (1 + number % 8, COLUMNS)) for number in range(count)]
    return [
        ScoringBatch({"ids": ids}, {str(version): score_ids(ids, version) for version in versions})
        for ids in requests
    ]


def _make_tables() -> list[NDArray[np.float32]]:
    random = np.random.default_rng(1)
    return [random.integers(0, 10, (ENTRIES, WIDTH)).astype(np.float32) for _ in range(COLUMNS)]
