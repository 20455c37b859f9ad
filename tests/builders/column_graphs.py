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
TEXTS: Final = "texts"
TEXT_CHAINS: Final = ("text", "vocabulary")
WIDTHS: Final = (1, 3, 4, 8, 12, 16)
REDUCTIONS: Final = ("ReduceSum", "ReduceMean", "ReduceMax")
OPSETS: Final = {"com.microsoft": 1, "ai.onnx.ml": 3}


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """How one column is written down."""

    width: int
    entries: int
    table: int
    """Columns with the same number, width and entries share a table."""
    ids: str
    """own: an input of shape [rows]; list: an input [rows, 1] or [rows, hots]; gather, slice, split: part of the matrix.

    The chains text and vocabulary read strings, which have a matrix of their own.
    """
    hots: int
    chain: str
    """none, mod, clip, missing (negative ids become 0), shift, or what makes ids of something else: hash (a remainder of hashed
    numbers), bits (some bits of them), text (a remainder of hashed strings), vocabulary (positions of strings in a list)."""
    pooling: str
    """none, or a reduction over the hots."""
    keepdims: bool
    weights: str
    """none, input, or mask (of the ids)."""
    bias: int
    """What shift adds, the seed of a hash, and by how much a vocabulary is rotated; an odd one is larger than its table."""


COLUMNS: Final = st.builds(
    ColumnSpec,
    width=st.sampled_from(WIDTHS),
    entries=st.integers(1, 20),
    table=st.integers(0, 2),
    ids=st.sampled_from(("own", "list", "gather", "slice", "split")),
    hots=st.integers(1, 4),
    chain=st.sampled_from(
        ("none", "none", "mod", "clip", "missing", "shift", "hash", "bits", "text", "vocabulary")
    ),
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
    """By input of ids: least and greatest id of each of its columns; strings are numbers written down."""

    def build(self) -> onnx.ModelProto:
        """Return the model; its outputs are `out` and, with pairs, `sums`."""
        random = np.random.default_rng(self.seed)
        outputs = [self._write_column(number, column, random) for number, column in enumerate(self.columns)]
        for matrix, kind in ((MATRIX, self._id_type()), (TEXTS, TensorProto.STRING)):
            if matrix in self.valid:
                self.inputs[matrix] = (kind, ["rows", len(self.valid[matrix])])
                self._write_split(matrix, len(self.valid[matrix]))
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
        domains = {
            "": self._opset(),
            **{node.domain: OPSETS[node.domain] for node in self.nodes if node.domain},
        }
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid(*opset) for opset in domains.items()], ir_version=8
        )

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
            ids = np.stack(columns, axis=1).reshape(dims)
            values[name] = (
                ids.astype(str).astype(object) if kind == TensorProto.STRING else ids.astype(self._id_dtype())
            )
        if invalid:
            names = sorted(self.valid)
            name = names[int(random.integers(len(names)))]
            flat = values[name].reshape(rows, -1)
            column = int(random.integers(flat.shape[1]))
            low, high = self.valid[name][column]
            number = high + 1 if random.random() < 0.5 else low - 1
            flat[int(random.integers(rows)), column] = str(number) if flat.dtype == object else number
        return values

    def _id_type(self) -> int:
        return TensorProto.INT32 if self.int32 else TensorProto.INT64

    def _id_dtype(self) -> type[np.integer[Any]]:
        return np.int32 if self.int32 else np.int64

    def _opset(self) -> int:
        """Return the first opset with all operations."""
        return 18 if any(column.chain == "bits" for column in self.columns) else 17

    def _add(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def _constant(self, name: str, values: Array) -> str:
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def _scalar(self, name: str, number: int) -> str:
        return self._constant(name, np.array(number, dtype=self._id_dtype()))

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
        has_axes = column.pooling == "ReduceSum" or self._opset() >= 18
        inputs = [rows, axes] if has_axes else [rows]
        attributes = {} if has_axes else {"axes": [1]}
        rows = self._add(column.pooling, inputs, f"pooled.{number}", keepdims=keepdims, **attributes)
        if column.keepdims:
            rows = self._add("Flatten", [rows], f"flat.{number}", axis=1)
        return rows, column.width

    def _write_source(self, number: int, column: ColumnSpec, hots: int) -> tuple[str, bool]:
        """Return the ids, and whether they have one dimension alone."""
        low, high = self._bounds(column)
        is_text = column.chain in TEXT_CHAINS
        matrix = TEXTS if is_text else MATRIX
        if column.ids in ("own", "list"):
            name = f"input.{number}"
            kind = TensorProto.STRING if is_text else self._id_type()
            self.inputs[name] = (kind, ["rows"] if column.ids == "own" else ["rows", hots])
            self.valid[name] = [(low, high)] * hots
            return name, column.ids == "own"
        columns = self.valid.setdefault(matrix, [])
        first = len(columns)
        columns.extend([(low, high)] * hots)
        name = f"source.{number}"
        if column.ids == "gather":
            return self._add(
                "Gather", [matrix, self._constant(f"at.{first}", np.array(first))], name, axis=1
            ), True
        if column.ids == "slice":
            bounds = [self._constant(f"at.{at}.list", np.array([at])) for at in (first, first + hots, 1)]
            return self._add("Slice", [matrix, *bounds], name), False
        inputs = [f"{matrix}.{first}", self._constant("axis.1", np.array([1]))]
        return self._add("Squeeze", inputs, name), True

    def _write_split(self, matrix: str, columns: int) -> None:
        sizes = self._constant(f"{matrix}.sizes", np.ones(columns, dtype=np.int64))
        parts = [f"{matrix}.{at}" for at in range(columns)]
        node = helper.make_node("Split", [matrix, sizes], parts, axis=1)
        self.nodes.insert(0, node)

    def _bounds(self, column: ColumnSpec) -> tuple[int, int]:
        """Return the ids that the column accepts, as its callers see them."""
        low, high = -column.entries, column.entries - 1
        match column.chain:
            case "mod" | "clip" | "hash" | "bits" | "text":
                return -1000, 1000
            case "missing" | "vocabulary":
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
            case "hash" | "bits" | "text":
                return self._write_hash(number, column, source)
            case "vocabulary":
                return self._write_vocabulary(number, column, source)
            case _:
                return source

    def _write_hash(self, number: int, column: ColumnSpec, source: str) -> str:
        """Write a hash and what makes an id of it, in the three ways of exporters."""
        is_signed = column.chain == "text"
        hashed = self._add(
            "MurmurHash3",
            [source],
            f"hash.{number}",
            domain="com.microsoft",
            seed=column.bias,
            positive=int(not is_signed),
        )
        if column.chain == "hash":
            size = self._constant(f"size.{column.entries}", np.array(column.entries, dtype=np.uint32))
            return self._cast_id(self._add("Mod", [hashed, size], f"remainder.{number}"), number)
        wide = self._add("Cast", [hashed], f"wide.{number}", to=TensorProto.INT64)
        if is_signed:
            size = self._constant(f"wide_size.{column.entries}", np.array(column.entries))
            positive = self._add("Abs", [wide], f"positive.{number}")
            return self._cast_id(self._add("Mod", [positive, size], f"remainder.{number}"), number)
        bits = (1 << column.entries.bit_length() - 1) - 1
        mask = self._constant(f"kept.{bits}", np.array(bits))
        return self._cast_id(self._add("BitwiseAnd", [wide, mask], f"bits.{number}"), number)

    def _write_vocabulary(self, number: int, column: ColumnSpec, source: str) -> str:
        """Write the lookup of a text; one that is not in the vocabulary has the last row."""
        ids = [(entry + column.bias) % column.entries for entry in range(column.entries)]
        ids += [column.entries] if column.bias % 2 else []
        known = self._add(
            "LabelEncoder",
            [source],
            f"known.{number}",
            domain="ai.onnx.ml",
            keys_strings=[str(entry) for entry in range(len(ids))],
            values_int64s=ids,
            default_int64=-1,
        )
        return self._cast_id(known, number)

    def _cast_id(self, value: str, number: int) -> str:
        return self._add("Cast", [value], f"index.{number}", to=self._id_type())

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
