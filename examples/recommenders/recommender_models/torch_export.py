"""Trace a forward function into the ONNX graph that PyTorch's exporter writes for it.

Each operation adds the nodes that `torch.onnx.export` of PyTorch 1.13 was observed to add at opset 17, the arithmetic of
shapes and the constants included. Nothing is simplified: that is for the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from recommender_models.operations import LAYER_NORM_EPSILON, NORM_EPSILON, Size

OPSET: Final = 17
IR_VERSION: Final = 8
ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class Traced:
    """A value of the graph."""

    trace: Trace
    name: str
    rank: int

    def __add__(self, other: Any) -> Traced:
        return self.trace.combine_values("Add", self, other)

    def __sub__(self, other: Any) -> Traced:
        return self.trace.combine_values("Sub", self, other)

    def __mul__(self, other: Any) -> Traced:
        return self.trace.combine_values("Mul", self, other)

    def __truediv__(self, other: Any) -> Traced:
        return self.trace.combine_values("Div", self, other)

    def __matmul__(self, other: Any) -> Traced:
        return self.trace.combine_values("MatMul", self, other)


class Trace:
    """Operations that write a graph; see Operations for what each one means."""

    def __init__(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        self._parameters = parameters
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []

    def add_input(self, name: str, dtype: Any, dims: Sequence[int | str]) -> Traced:
        """Declare an input of the model, whose first dimension is the rows."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, [ROWS, *dims]))
        return Traced(self, name, 1 + len(dims))

    def build_model(self, name: str, outputs: Mapping[str, Traced]) -> onnx.ModelProto:
        """Return the model; every output is float32 [rows, 1]."""
        names = {value.name: output for output, value in outputs.items()}
        for node in self._nodes:
            node.output[:] = [names.get(value, value) for value in node.output]
        graph = helper.make_graph(
            self._nodes,
            name,
            self._inputs,
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, [ROWS, 1]) for output in outputs],
            list(self._weights.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tidegate-example-recommenders",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def combine_values(self, operator: str, first: Traced, second: Any) -> Traced:
        """Add an operation of two values, or of a value and a number."""
        other = second if isinstance(second, Traced) else self._add_constant(np.float32(second))
        return self._add_node(operator, [first, other], max(first.rank, other.rank))

    def embed_ids(self, name: str, ids: Traced) -> Traced:
        return self._add_node("Gather", [self._add_weight(f"{name}.weight"), ids], ids.rank + 1)

    def apply_linear(self, name: str, x: Traced) -> Traced:
        bias = self._add_weight(f"{name}.bias")
        if x.rank == 2:
            weight = self._add_weight(f"{name}.weight", transposed=True)
            return self._add_node("Gemm", [x, weight, bias], 2, alpha=1.0, beta=1.0, transB=1)
        product = self._add_node("MatMul", [x, self._add_weight(f"{name}.weight")], x.rank)
        return self._add_node("Add", [bias, product], x.rank)

    def apply_relu(self, x: Traced) -> Traced:
        return self._add_node("Relu", [x], x.rank)

    def apply_sigmoid(self, x: Traced) -> Traced:
        return self._add_node("Sigmoid", [x], x.rank)

    def apply_softmax(self, x: Traced) -> Traced:
        return self._add_node("Softmax", [x], x.rank, axis=-1)

    def normalize_layer(self, name: str, x: Traced) -> Traced:
        weights = [self._add_weight(f"{name}.{part}") for part in ("weight", "bias")]
        return self._add_node(
            "LayerNormalization", [x, *weights], x.rank, axis=-1, epsilon=LAYER_NORM_EPSILON
        )

    def normalize_rows(self, x: Traced) -> Traced:
        norm = self._add_node("ReduceL2", [x], x.rank, axes=[1], keepdims=1)
        norm = self.clamp_values(norm, NORM_EPSILON)
        return x / self._add_node("Expand", [norm, self._add_node("Shape", [x], 1)], x.rank)

    def join_values(self, values: Sequence[Traced], dim: int) -> Traced:
        return self._add_node("Concat", values, values[0].rank, axis=dim)

    def stack_values(self, values: Sequence[Traced], dim: int) -> Traced:
        return self.join_values([self.unsqueeze_dim(value, dim) for value in values], dim)

    def select_column(self, x: Traced, column: int) -> Traced:
        return self._add_node("Gather", [x, self._add_constant(np.int64(column))], x.rank - 1, axis=1)

    def slice_columns(self, x: Traced, start: int, stop: int) -> Traced:
        bounds = [self._add_integers(number) for number in (start, stop, 1, 1)]
        return self._add_node("Slice", [x, *bounds], x.rank)

    def select_pairs(self, x: Traced, first: Sequence[int], second: Sequence[int]) -> Traced:
        # PyTorch moves the indexed dimensions to the front, and indexes their product.
        shape = self._add_node("Shape", [x], 1)
        rows, width = (
            self._add_node("Gather", [shape, self._add_integers(dim)], 1, axis=0) for dim in (0, 2)
        )
        moved = self._add_node("Transpose", [x], 3, perm=[1, 2, 0])
        flat = self._add_node("Flatten", [moved], 2, axis=2)
        offsets = self._add_node("Mul", [self._add_integers(*first), width], 1)
        index = self._add_node("Add", [self._add_integers(*second), offsets], 1)
        pairs = self._add_node("Gather", [flat, index], 2, axis=0)
        count = self._add_node("Shape", [index], 1)
        pairs = self._reshape_value(pairs, [self._add_integers(-1), rows])
        pairs = self._add_node("Transpose", [pairs], 2, perm=[1, 0])
        return self._reshape_value(pairs, [rows, count])

    def squeeze_dim(self, x: Traced, dim: int) -> Traced:
        return self._add_node("Squeeze", [x, self._add_integers(dim)], x.rank - 1)

    def unsqueeze_dim(self, x: Traced, dim: int) -> Traced:
        return self._add_node("Unsqueeze", [x, self._add_integers(dim)], x.rank + 1)

    def sum_dim(self, x: Traced, dim: int, *, keepdim: bool = False) -> Traced:
        rank = x.rank - (not keepdim)
        return self._add_node("ReduceSum", [x, self._add_integers(dim)], rank, keepdims=int(keepdim))

    def square_values(self, x: Traced) -> Traced:
        return self._add_node("Pow", [x, self._add_constant(np.float32(2))], x.rank)

    def transpose_dims(self, x: Traced, first: int, second: int) -> Traced:
        order = list(range(x.rank))
        order[first], order[second] = second, first
        return self._add_node("Transpose", [x], x.rank, perm=order)

    def read_size(self, x: Traced, dim: int) -> Size:
        shape = self._add_node("Shape", [x], 1)
        return self._add_node("Gather", [shape, self._add_constant(np.int64(dim))], 0, axis=0)

    def view_values(self, x: Traced, *sizes: Size) -> Traced:
        return self._reshape_value(x, self._list_sizes(sizes))

    def expand_values(self, x: Traced, *sizes: Size) -> Traced:
        shape = self._add_node("Concat", self._list_sizes(sizes), 1, axis=0)
        shape = self._add_node("Reshape", [shape, self._add_integers(-1)], 1, allowzero=0)
        # The exporter writes 1 in place of each -1 at run time, although it knows the sizes that it was given.
        one = numpy_helper.from_array(np.array([1], dtype=np.int64))
        ones = self._add_node("ConstantOfShape", [self._add_node("Shape", [shape], 1)], 1, value=one)
        negative = self._add_node("Mul", [ones, self._add_constant(np.int64(-1))], 1)
        is_kept = self._add_node("Equal", [shape, negative], 1)
        return self._add_node("Expand", [x, self._add_node("Where", [is_kept, ones, shape], 1)], x.rank)

    def flatten_rows(self, x: Traced) -> Traced:
        return self._add_node("Flatten", [x], 2, axis=1)

    def count_up(self, stop: Size) -> Traced:
        start, step = self._add_constant(np.int64(0)), self._add_constant(np.int64(1))
        end = self._add_node("Cast", [stop], 0, to=TensorProto.INT64)
        return self._add_node("Range", [start, end, step], 1)

    def cast_to_ids(self, x: Traced) -> Traced:
        return self._add_node("Cast", [x], x.rank, to=TensorProto.INT64)

    def cast_to_floats(self, x: Traced) -> Traced:
        return self._add_node("Cast", [x], x.rank, to=TensorProto.FLOAT)

    def differs_from(self, x: Traced, number: int) -> Traced:
        return self._add_node("Not", [self.equals_number(x, number)], x.rank)

    def equals_number(self, x: Traced, number: int) -> Traced:
        return self._add_node("Equal", [x, self._add_constant(np.int64(number))], x.rank)

    def fill_masked(self, x: Traced, mask: Traced, number: float) -> Traced:
        is_masked = self._add_node("Cast", [mask], mask.rank, to=TensorProto.BOOL)
        return self._add_node("Where", [is_masked, self._add_constant(np.float32(number)), x], x.rank)

    def clamp_values(self, x: Traced, least: float) -> Traced:
        return self._add_node("Clip", [x, self._add_constant(np.float32(least))], x.rank)

    def _add_node(self, operator: str, inputs: Sequence[Traced], rank: int, **attributes: Any) -> Traced:
        name = f"{operator}_{len(self._nodes)}"
        node = helper.make_node(operator, [value.name for value in inputs], [name], name=name, **attributes)
        self._nodes.append(node)
        return Traced(self, name, rank)

    def _add_constant(self, value: Any) -> Traced:
        array = np.asarray(value)
        return self._add_node("Constant", [], array.ndim, value=numpy_helper.from_array(array))

    def _add_integers(self, *numbers: int) -> Traced:
        return self._add_constant(np.array(numbers, dtype=np.int64))

    def _add_weight(self, name: str, *, transposed: bool = False) -> Traced:
        array = self._parameters[name]
        if name not in self._weights:
            stored = np.ascontiguousarray(array.T if transposed else array)
            self._weights[name] = numpy_helper.from_array(stored, name)
        return Traced(self, name, array.ndim)

    def _list_sizes(self, sizes: Sequence[Size]) -> list[Traced]:
        """Return each size as a vector of one number."""
        return [
            self.unsqueeze_dim(size, 0) if isinstance(size, Traced) else self._add_integers(size)
            for size in sizes
        ]

    def _reshape_value(self, x: Traced, sizes: Sequence[Traced]) -> Traced:
        shape = self._add_node("Concat", sizes, 1, axis=0)
        return self._add_node("Reshape", [x, shape], len(sizes), allowzero=0)
