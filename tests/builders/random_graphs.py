"""Random graphs of dense operations over user and item inputs, for property tests of graph passes."""

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
WIDTH: Final = 4
POSITIONS: Final = 3
"""Length of the user's history."""
USER: Final = ("profile", "history")
UNARY: Final = ("Relu", "Sigmoid", "Tanh", "Neg", "Identity")
BINARY: Final = ("Add", "Sub", "Mul")
OPERATIONS: Final = (
    *UNARY, *BINARY, "Concat", "Dense", "Gemm", "Expand", "Repeated", "Mean", "Softmax", "Reshape", "Shape", "Transpose",
)  # fmt: skip


@dataclass
class RandomGraph:
    """Operations in order; each picks its operands among the values that exist by then."""

    operations: Sequence[tuple[str, int, int]]
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])

    def build(self) -> onnx.ModelProto:
        """Return a model with the inputs profile [rows, 4], history [rows, 3, 4], item [rows, 4] and one output per kind of shape."""
        self._random = np.random.default_rng(self.seed)
        flat, deep = ["profile", "item"], ["history"]
        for number, (operation, first, second) in enumerate(self.operations):
            self._write(operation, number, flat, deep, first, second)
        results = [flat[-1], deep[-1]]
        for position, name in enumerate(results):
            self._add("Identity", [name], f"out.{position}")
        shapes: dict[str, list[int | str]] = {
            "profile": ["rows", WIDTH], "history": ["rows", POSITIONS, WIDTH], "item": ["rows", WIDTH],
        }  # fmt: skip
        outputs: list[list[int | str]] = [["rows", WIDTH], ["rows", POSITIONS, WIDTH]]
        graph = helper.make_graph(
            self.nodes,
            "dense",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
            [
                helper.make_tensor_value_info(f"out.{position}", TensorProto.FLOAT, shape)
                for position, shape in enumerate(outputs)
            ],
            list(self.weights.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    @staticmethod
    def request(rows: int, seed: int) -> dict[str, Array]:
        """Return a request whose user inputs have equal rows."""
        random = np.random.default_rng(seed)
        values = {
            "profile": random.standard_normal((1, WIDTH)),
            "history": random.standard_normal((1, POSITIONS, WIDTH)),
            "item": random.standard_normal((rows, WIDTH)),
        }
        return {
            name: np.repeat(value, rows, axis=0).astype(np.float32)
            if name in USER
            else value.astype(np.float32)
            for name, value in values.items()
        }

    def _add(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def _constant(self, name: str, values: Array) -> str:
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def _matrix(self, name: str, rows: int) -> str:
        return self._constant(name, (self._random.standard_normal((rows, WIDTH)) / 2).astype(np.float32))

    def _write(
        self, operation: str, number: int, flat: list[str], deep: list[str], first: int, second: int
    ) -> None:
        name = f"value.{number}"
        values = deep if first % 2 else flat
        left, right = values[first % len(values)], values[second % len(values)]
        row, history = flat[first % len(flat)], deep[first % len(deep)]
        match operation:
            case "Concat":
                values.append(self._write_attention(name, left, right, 2 + second % 3))
            case "Dense":
                values.append(self._write_dense(name, left))
            case "Softmax":
                values.append(
                    self._add("Softmax", [left], name, axis=-1 if second % 3 or values is flat else 1)
                )
            case "Shape":
                # As exporters keep the rows: they are read from a value, and given to a Reshape.
                shape = self._add("Shape", [right], f"{name}.shape")
                values.append(self._add("Reshape", [left, shape], name))
            case "Gemm":
                inputs = [row, self._matrix(f"{name}.matrix", WIDTH), self._bias(name)]
                flat.append(self._add("Gemm", inputs, name, transB=second % 2))
            case "Mean":
                flat.append(self._add("ReduceMean", [history], name, axes=[1], keepdims=0))
            case "Reshape":
                flat.append(self._write_flattening(name, history))
            case "Expand" | "Repeated":
                write = self._write_repetition if operation == "Expand" else self._write_repeated_product
                deep.append(write(name, row, deep[second % len(deep)]))
            case "Transpose":
                deep.append(self._write_self_attention(name, deep[second % len(deep)], history))
            case _:
                values.append(self._add(operation, [left] if operation in UNARY else [left, right], name))

    def _bias(self, name: str) -> str:
        return self._constant(f"{name}.bias", np.ones(WIDTH, np.float32))

    def _write_attention(self, name: str, left: str, right: str, parts: int) -> str:
        """Multiply both values, their difference and their product by one matrix."""
        difference = self._add("Sub", [left, right], f"{name}.sub")
        product = self._add("Mul", [left, right], f"{name}.mul")
        joined = self._add("Concat", [left, right, difference, product][:parts], f"{name}.joined", axis=-1)
        return self._add("MatMul", [joined, self._matrix(f"{name}.matrix", WIDTH * parts)], name)

    def _write_dense(self, name: str, value: str) -> str:
        product = self._add("MatMul", [value, self._matrix(f"{name}.matrix", WIDTH)], f"{name}.product")
        return self._add("Add", [product, self._bias(name)], name)

    def _write_flattening(self, name: str, history: str) -> str:
        shape = self._constant("all", np.array([-1, POSITIONS * WIDTH]))
        row = self._add("Reshape", [history, shape], f"{name}.row")
        return self._add("MatMul", [row, self._matrix(f"{name}.matrix", POSITIONS * WIDTH)], name)

    def _write_repetition(self, name: str, row: str, history: str) -> str:
        column = self._add("Unsqueeze", [row, self._constant("axis.1", np.array([1]))], f"{name}.column")
        return self._add("Expand", [column, self._add("Shape", [history], f"{name}.shape")], name)

    def _write_repeated_product(self, name: str, row: str, history: str) -> str:
        """Multiply a row that is repeated for each position of a history, or for a number of them."""
        operation = ("Shape", "Expand", "Tile")[int(self._random.integers(3))]
        if operation == "Shape":
            repeated = self._write_repetition(f"{name}.repeated", row, history)
        else:
            column = self._add("Unsqueeze", [row, self._constant("axis.1", np.array([1]))], f"{name}.column")
            counts = self._constant("positions", np.array([1, POSITIONS, 1]))
            repeated = self._add(operation, [column, counts], f"{name}.repeated")
        return self._add("MatMul", [repeated, self._matrix(f"{name}.matrix", WIDTH)], name)

    def _write_self_attention(self, name: str, queries: str, keys: str) -> str:
        crossed = self._add("Transpose", [keys], f"{name}.crossed", perm=[0, 2, 1])
        products = self._add("MatMul", [queries, crossed], f"{name}.products")
        return self._add("MatMul", [products, queries], name)


GRAPHS: Final = st.builds(
    RandomGraph,
    operations=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=14,
    ),
    seed=st.integers(0, 2**31),
)
