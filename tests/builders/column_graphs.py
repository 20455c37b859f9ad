"""Random graphs of embedding columns, as exporters write them, for property tests of graph passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
MATRIX: Final = "ids"
WIDTHS: Final = (1, 3, 4, 8, 12, 16)
REDUCTIONS: Final = ("ReduceSum", "ReduceMean", "ReduceMax")


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """How one column is written down."""

    width: int
    entries: int
    table: int
    """Columns with the same number, width and entries share a table."""
    ids: str
    """own: an input of shape [rows]; list: an input [rows, 1] or [rows, hots]; gather, slice, split: part of the matrix."""
    hots: int
    chain: str
    """none, mod, clip, missing (negative ids become 0), or shift."""
    pooling: str
    """none, or a reduction over the hots."""
    keepdims: bool
    weights: str
    """none, input, or mask (of the ids)."""
    bias: int


COLUMNS: Final = st.builds(
    ColumnSpec,
    width=st.sampled_from(WIDTHS),
    entries=st.integers(1, 20),
    table=st.integers(0, 2),
    ids=st.sampled_from(("own", "list", "gather", "slice", "split")),
    hots=st.integers(1, 4),
    chain=st.sampled_from(("none", "none", "mod", "clip", "missing", "shift")),
    pooling=st.sampled_from(("none", *REDUCTIONS)),
    keepdims=st.booleans(),
    weights=st.sampled_from(("none", "none", "input", "mask")),
    bias=st.integers(0, 3),
)


@dataclass
class ColumnGraph:
    """A model of columns, and requests for it."""

    columns: Sequence[ColumnSpec]
    int32: bool
    dense: bool
    """Whether a dense input lies between the columns in the Concat."""
    pairs: bool
    """Whether neighbours of the same width are also added to each other, outside of the Concat."""
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])
    inputs: dict[str, tuple[int, list[int | str]]] = field(
        default_factory=dict[str, tuple[int, list[int | str]]]
    )
    valid: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])
    """By integer input: least and greatest id of each of its columns."""

    def build(self) -> onnx.ModelProto:
        """Return the model; its outputs are `out` and, with pairs, `sums`."""
        random = np.random.default_rng(self.seed)
        outputs = [self._write_column(number, column, random) for number, column in enumerate(self.columns)]
        if MATRIX in self.valid:
            self.inputs[MATRIX] = (self._id_type(), ["rows", len(self.valid[MATRIX])])
            self._write_split(len(self.valid[MATRIX]))
        flat = [name for name, _ in outputs]
        if self.dense:
            self.inputs["dense"] = (TensorProto.FLOAT, ["rows", 3])
            flat.insert(len(flat) // 2, "dense")
        self._add("Concat", flat, "out", axis=1)
        results = ["out"]
        by_width: dict[int, list[str]] = {}
        for name, width in outputs:
            by_width.setdefault(width, []).append(name)
        if self.pairs and (pair := next((names for names in by_width.values() if len(names) > 1), None)):
            self._add("Add", pair[:2], "sums")
            results.append("sums")
        graph = helper.make_graph(
            self.nodes,
            "columns",
            [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", None]) for name in results],
            list(self.weights.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def request(self, rows: int, random: np.random.Generator, *, invalid: bool = False) -> dict[str, Array]:
        """Return inputs with valid ids, negative ones among them; with `invalid`, one id of one column is out of range."""
        values: dict[str, Array] = {}
        for name, (kind, shape) in self.inputs.items():
            dims = [rows, *(int(dim) for dim in shape[1:])]
            if kind == TensorProto.FLOAT:
                values[name] = random.standard_normal(dims).astype(np.float32)
                continue
            bounds = self.valid[name]
            columns = [random.integers(low, high + 1, size=rows) for low, high in bounds]
            values[name] = (
                np.stack(columns, axis=1).reshape(dims).astype(np.int32 if self.int32 else np.int64)
            )
        if invalid:
            names = sorted(self.valid)
            name = names[int(random.integers(len(names)))]
            flat = values[name].reshape(rows, -1)
            column = int(random.integers(flat.shape[1]))
            low, high = self.valid[name][column]
            flat[int(random.integers(rows)), column] = high + 1 if random.random() < 0.5 else low - 1
        return values

    def _id_type(self) -> int:
        return TensorProto.INT32 if self.int32 else TensorProto.INT64

    def _add(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def _constant(self, name: str, values: Array) -> str:
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def _scalar(self, name: str, number: int) -> str:
        return self._constant(name, np.array(number, dtype=np.int32 if self.int32 else np.int64))

    def _write_column(self, number: int, column: ColumnSpec, random: np.random.Generator) -> tuple[str, int]:
        table = f"table.{column.table}.{column.entries}.{column.width}"
        self._constant(table, random.standard_normal((column.entries, column.width)).astype(np.float32))
        pooled = column.ids in ("list", "slice")
        hots = column.hots if pooled else 1
        source, is_vector = self._write_source(number, column, hots)
        index = self._write_chain(number, column, source)
        rows = self._add("Gather", [table, index], f"rows.{number}", axis=0)
        if is_vector:
            return rows, column.width
        if column.weights != "none":
            rows = self._write_weights(number, column, rows, index, hots)
        axes = self._constant("axis.1", np.array([1]))
        if column.pooling == "none" and hots > 1:
            shape = self._constant(f"shape.{hots * column.width}", np.array([-1, hots * column.width]))
            return self._add("Reshape", [rows, shape], f"flat.{number}"), hots * column.width
        if column.pooling == "none":
            return self._add("Squeeze", [rows, axes], f"vector.{number}"), column.width
        keepdims = int(column.keepdims)
        inputs = [rows, axes] if column.pooling == "ReduceSum" else [rows]
        attributes = {} if column.pooling == "ReduceSum" else {"axes": [1]}
        rows = self._add(column.pooling, inputs, f"pooled.{number}", keepdims=keepdims, **attributes)
        if column.keepdims:
            rows = self._add("Flatten", [rows], f"flat.{number}", axis=1)
        return rows, column.width

    def _write_source(self, number: int, column: ColumnSpec, hots: int) -> tuple[str, bool]:
        """Return the ids, and whether they have one dimension alone."""
        low, high = self._bounds(column)
        if column.ids in ("own", "list"):
            name = f"input.{number}"
            self.inputs[name] = (self._id_type(), ["rows"] if column.ids == "own" else ["rows", hots])
            self.valid[name] = [(low, high)] * hots
            return name, column.ids == "own"
        columns = self.valid.setdefault(MATRIX, [])
        first = len(columns)
        columns.extend([(low, high)] * hots)
        name = f"source.{number}"
        if column.ids == "gather":
            return self._add(
                "Gather", [MATRIX, self._constant(f"at.{first}", np.array(first))], name, axis=1
            ), True
        if column.ids == "slice":
            bounds = [self._constant(f"at.{at}.list", np.array([at])) for at in (first, first + hots, 1)]
            return self._add("Slice", [MATRIX, *bounds], name), False
        return self._add("Squeeze", [f"split.{first}", self._constant("axis.1", np.array([1]))], name), True

    def _write_split(self, columns: int) -> None:
        sizes = self._constant("split.sizes", np.ones(columns, dtype=np.int64))
        node = helper.make_node("Split", [MATRIX, sizes], [f"split.{at}" for at in range(columns)], axis=1)
        self.nodes.insert(0, node)

    def _bounds(self, column: ColumnSpec) -> tuple[int, int]:
        """Return the ids that the column accepts, as its callers see them."""
        low, high = -column.entries, column.entries - 1
        match column.chain:
            case "mod" | "clip":
                return -1000, 1000
            case "missing":
                return -1000, high
            case "shift":
                return low - column.bias, high - column.bias
            case _:
                return low, high

    def _write_chain(self, number: int, column: ColumnSpec, source: str) -> str:
        name = f"index.{number}"
        last = self._scalar(f"number.{column.entries - 1}", column.entries - 1)
        zero = self._scalar("number.0", 0)
        match column.chain:
            case "mod":
                return self._add(
                    "Mod", [source, self._scalar(f"number.{column.entries}", column.entries)], name
                )
            case "clip":
                return self._add("Clip", [source, zero, last], name)
            case "missing":
                is_missing = self._add("Less", [source, zero], f"missing.{number}")
                return self._add("Where", [is_missing, zero, source], name)
            case "shift":
                return self._add("Add", [source, self._scalar(f"number.{column.bias}", column.bias)], name)
            case _:
                return source

    def _write_weights(self, number: int, column: ColumnSpec, rows: str, index: str, hots: int) -> str:
        if column.weights == "input":
            self.inputs[f"weights.{number}"] = (TensorProto.FLOAT, ["rows", hots])
            weights = f"weights.{number}"
        else:
            empty = self._add("Equal", [index, self._scalar("number.0", 0)], f"empty.{number}")
            present = self._add("Not", [empty], f"present.{number}")
            weights = self._add("Cast", [present], f"mask.{number}", to=TensorProto.FLOAT)
        weights = self._add(
            "Unsqueeze", [weights, self._constant("axis.2", np.array([2]))], f"factor.{number}"
        )
        return self._add("Mul", [rows, weights], f"weighted.{number}")


GRAPHS: Final = st.builds(
    ColumnGraph,
    columns=st.lists(COLUMNS, min_size=1, max_size=12),
    int32=st.booleans(),
    dense=st.booleans(),
    pairs=st.booleans(),
    seed=st.integers(0, 2**31),
)
