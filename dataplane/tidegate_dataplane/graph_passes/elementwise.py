"""Parse the arithmetic between an input and the index of an embedding: one expression per column, comparable across columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import DEFAULT_DOMAIN, Array, read_constant
from tidegate_dataplane.graph_passes.rewriting import Rewriting
from tidegate_dataplane.graph_passes.shape_inference import HASH

MAX_OPERATIONS: Final = 32
"""Operations of one expression: a value that is used twice is counted twice."""
_OPERATIONS: Final = frozenset(
    {
        *(
            (DEFAULT_DOMAIN, name)
            for name in (
                "Abs", "Add", "And", "BitwiseAnd", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less",
                "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Sub", "Where",
            )
        ),
        HASH,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpressionSource:
    """The value that an expression starts from."""

    value: ir.Value


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A constant with one element."""

    array: Array


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation whose result has the shape of the expression's source."""

    node: ir.Node
    operands: tuple[Expression | None, ...]
    """None where an optional input is absent."""


Expression: TypeAlias = ExpressionSource | Scalar | Operation


def parse_expression(value: ir.Value) -> Expression:
    """Return the elementwise operations that lead to `value` from one source; the value itself if there are none."""
    expression = _parse_value(value, {})
    return ExpressionSource(value) if isinstance(expression, Scalar) else expression


def find_source(expression: Expression) -> ir.Value:
    """Return the value that the expression starts from."""
    return next(iter(_walk_sources(expression)))


def describe_structure(expression: Expression | None) -> Hashable:
    """Return what two expressions have in common if one vector operation can compute both: all but constants and source."""
    match expression:
        case None:
            return None
        case ExpressionSource(value):
            return ("source", value.dtype)
        case Scalar(array):
            return ("scalar", array.dtype.str)
        case Operation(node, operands):
            attributes = tuple(
                sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items())
            )
            structures = tuple(describe_structure(operand) for operand in operands)
            return (node.op_identifier(), attributes, structures)


def rebuild_expressions(
    new: Rewriting,
    expressions: list[Expression],
    source: ir.Value,
    stack_scalars: Callable[[list[Array]], ir.Value],
) -> ir.Value:
    """Return one value that computes all expressions, which have the same structure.

    `source` has their sources side by side; `stack_scalars` makes a constant that fits it of one scalar per expression.
    """
    first = expressions[0]
    if isinstance(first, ExpressionSource):
        return source
    if isinstance(first, Scalar):
        return stack_scalars([scalar.array for scalar in expressions if isinstance(scalar, Scalar)])
    columns = [expression.operands for expression in expressions if isinstance(expression, Operation)]
    operands = [
        None
        if operand is None
        else rebuild_expressions(new, [column[position] for column in columns], source, stack_scalars)  # type: ignore[misc]
        for position, operand in enumerate(first.operands)
    ]
    return _add_operation(new, first.node, operands)


def bound_values(expression: Expression | None) -> tuple[float, float]:
    """Return the least and the greatest number that an integer expression can have; infinite where the graph does not say."""
    match expression:
        case Scalar(array):
            return float(array.item()), float(array.item())
        case Operation(node, (dividend, Scalar(divisor))) if node.op_type == "Mod" and divisor.item() > 0:
            # Of floats, the remainder comes as near to the divisor as floats do, and a Cast cuts it off below that.
            limit = math.ceil(divisor.item()) - 1.0 if _is_integer(dividend) else float(divisor.item())
            if "fmod" in node.attributes and node.attributes["fmod"].as_int():
                low, _ = bound_values(dividend)
                return (0.0 if low >= 0 else -limit), limit
            return 0.0, limit
        case Operation(node, operands):
            return _bound_operation(node.op_type, [bound_values(operand) for operand in operands], node)
        case _:
            return -np.inf, np.inf


def _bound_operation(name: str, bounds: list[tuple[float, float]], node: ir.Node) -> tuple[float, float]:
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    match name:
        case "Identity":
            return bounds[0]
        case "Cast" if node.attributes["to"].as_int() in (ir.DataType.INT64, ir.DataType.INT32):
            # Of a float, the range is kept as well: a cast cuts off towards zero.
            fits = abs(lows[0]) < 2**31 and abs(highs[0]) < 2**31
            # A float may lie just below its bound, so the bound itself counts.
            return (np.floor(lows[0]), np.ceil(highs[0])) if fits else (-np.inf, np.inf)
        case "BitwiseAnd":
            # A number without sign keeps some of its bits, whatever the sign of the other one.
            masks = [high for low, high in bounds if low >= 0]
            return (0.0, min(masks)) if masks else (-np.inf, np.inf)
        case "Max":
            return max(lows), max(highs)
        case "Min":
            return min(lows), min(highs)
        case "Clip":
            low = bounds[1][0] if len(bounds) > 1 else -np.inf
            high = bounds[2][1] if len(bounds) > 2 else np.inf
            return (
                (_clamp_number(lows[0], low, high), _clamp_number(highs[0], low, high))
                if low <= high
                else (-np.inf, np.inf)
            )
        case "Where":
            return min(lows[1], lows[2]), max(highs[1], highs[2])
        case _:
            return -np.inf, np.inf


def _is_integer(expression: Expression | None) -> bool:
    """Return whether an expression's values are whole numbers by their type."""
    match expression:
        case ExpressionSource(value):
            return value.dtype is not None and value.dtype.is_integer()
        case Scalar(array):
            return bool(np.issubdtype(array.dtype, np.integer))
        case Operation(node):
            dtype = node.outputs[0].dtype
            return dtype is not None and dtype.is_integer()
        case _:
            return False


def _clamp_number(number: float, low: float, high: float) -> float:
    return min(max(number, low), high)


def _parse_value(value: ir.Value, parsed: dict[ir.Value, Expression]) -> Expression:
    """Return the expression of a value; `parsed` keeps those of its operands, which a graph may use many times."""
    if value not in parsed:
        parsed[value] = _parse_operation(value, parsed)
    return parsed[value]


def _parse_operation(value: ir.Value, parsed: dict[ir.Value, Expression]) -> Expression:
    constant = read_constant(value)
    if constant is not None and constant.size == 1:
        return Scalar(constant.reshape(()))
    node = value.producer()
    if node is None or (node.domain, node.op_type) not in _OPERATIONS or len(node.outputs) != 1:
        return ExpressionSource(value)
    operands = tuple(None if operand is None else _parse_value(operand, parsed) for operand in node.inputs)
    operation = Operation(node, operands)
    sources = set(_walk_sources(operation))
    small = sum(1 for _ in _walk_operations(operation)) <= MAX_OPERATIONS
    if len(sources) != 1 or not small or not _has_shape_of(value, next(iter(sources))):
        return ExpressionSource(value)
    return operation


def _has_shape_of(value: ir.Value, source: ir.Value) -> bool:
    return value.shape is not None and source.shape is not None and value.shape == source.shape


def _walk_sources(expression: Expression | None) -> Iterator[ir.Value]:
    if isinstance(expression, ExpressionSource):
        yield expression.value
    elif isinstance(expression, Operation):
        for operand in expression.operands:
            yield from _walk_sources(operand)


def _walk_operations(expression: Expression | None) -> Iterator[ir.Node]:
    if isinstance(expression, Operation):
        yield expression.node
        for operand in expression.operands:
            yield from _walk_operations(operand)


def _add_operation(new: Rewriting, node: ir.Node, operands: list[ir.Value | None]) -> ir.Value:
    if node.op_type == "Clip":
        # Clip takes scalars alone; for integers it is Min of Max, in the order of its definition.
        value, low, high = (*operands, None, None)[:3]
        clipped = value if low is None else new.add_node("Max", [value, low])
        return clipped if high is None else new.add_node("Min", [clipped, high])  # type: ignore[return-value]
    return new.add_node(node.op_type, operands, node.attributes, domain=node.domain)
