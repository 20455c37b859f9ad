"""Split a graph into lookups, which ONNX Runtime computes, and a network of floats, which an engine computes.

An engine answers an id beyond its table with zeros or with other memory, and has integers and floats of 32 bits. So whatever
reads or makes integers, strings or floats of 64 bits is left to ONNX Runtime, with all that it is computed from: ids and their
arithmetic, hashes, checks of ranges, and the lookups themselves. ONNX Runtime then refuses what the model refuses, and the
tables are in memory once for all engines.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types

from tidegate_dataplane.graph_passes.constants import Array, read_constant
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes

_NETWORK_TYPES: Final = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BOOL})
_TYPES_BY_ORT_NAME: Final = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(bool)": ir.DataType.BOOL,
}
_MAX_CONSTANT_ELEMENTS: Final = 1024
"""Constants that may decide a shape; a larger one is a table or weights, whose numbers decide none."""
_MAX_LISTED: Final = 3
_SIZES: Final = frozenset({"Shape", "Size"})
"""Their results are constants for a value of a fixed shape."""
_SIZED_BY_CONTENT: Final = frozenset({"Compress", "NonZero", "Range", "Unique"})
"""Their results have a shape that differs between requests of one shape."""


class UnsplitGraphError(ValueError):
    """Why nothing of a graph is left to an engine."""


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """Two graphs that compute together what one did."""

    lookups: onnx.ModelProto | None
    """From inputs of the request to what the network reads and to outputs; None if the network is the whole graph."""
    network: ir.Model
    """From inputs of the request and results of `lookups` to the other outputs."""
    finite: frozenset[str]
    """Inputs of the network that are finite in every request: rows of tables."""

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """Return the names of the values that the network reads."""
        return tuple(str(value.name) for value in self.network.graph.inputs)

    @property
    def checked_inputs(self) -> tuple[str, ...]:
        """Return the inputs of the network that a request can make infinite or no number."""
        floats = (value for value in self.network.graph.inputs if value.dtype is not ir.DataType.BOOL)
        return tuple(str(value.name) for value in floats if value.name not in self.finite)

    def build_network(self, values: Mapping[str, Array]) -> onnx.ModelProto:
        """Return the network with inputs of exactly the shapes of these values."""
        for value in self.network.graph.inputs:
            value.shape = ir.Shape(values[str(value.name)].shape)
        return ir.to_proto(self.network)


def split_graph(model: onnx.ModelProto, fixed: ir.Model) -> SplitGraph:
    """Return the parts of a graph; `fixed` is it with the dimensions of a bucket, whose shapes have been inferred.

    The lookups keep the free dimensions of `model`, so that all buckets share them. `fixed` is changed. Raise UnsplitGraphError if
    nothing is left to an engine.
    """
    _state_missing_types(model, fixed.graph)
    _state_sizes(fixed.graph)
    left_to_runtime = _find_runtime_nodes(fixed.graph)
    dynamic = _list_dynamic_values(fixed.graph)
    outputs = [
        value
        for value in fixed.graph.outputs
        if value in dynamic and value.producer() is not None and value.producer() not in left_to_runtime
    ]
    if not outputs:
        raise UnsplitGraphError(_explain_unsplit(fixed.graph))
    sources = _list_sources(outputs, left_to_runtime)
    network = ir.convenience.extract(fixed.graph, sources, outputs)
    results = [value for value in sources if value.producer() is not None]
    results += [value for value in fixed.graph.outputs if value not in outputs]
    return SplitGraph(
        lookups=_extract_lookups(model, results) if results else None,
        network=ir.Model(network, ir_version=fixed.ir_version),
        finite=frozenset(str(value.name) for value in results if _has_table_rows(value)),
    )


def _explain_unsplit(graph: ir.Graph) -> str:
    names = sorted({f"{node.domain}.{node.op_type}" for node in graph if node.domain})
    if not names:
        return "every output is made of integers, of strings or of numbers of 64 bits, which ONNX Runtime computes"
    rest = f" and {len(names) - _MAX_LISTED} others" if len(names) > _MAX_LISTED else ""
    return (
        "every output is read by, or made of, what ONNX Runtime computes: integers, strings, numbers of 64 bits"
        f" or operators beyond ONNX, here {', '.join(names[:_MAX_LISTED])}{rest}"
    )


def _state_missing_types(model: onnx.ModelProto, graph: ir.Graph) -> None:
    """Give values the types and shapes that ONNX Runtime infers; ONNX infers none behind operators of other domains."""
    untyped = {
        value.name: value for node in graph for value in node.outputs if value.name and value.type is None
    }
    if not untyped:
        return
    probe = onnx.ModelProto(ir_version=model.ir_version)
    probe.opset_import.extend(model.opset_import)
    probe.functions.extend(model.functions)
    probe.graph.name = "types"
    probe.graph.node.extend(model.graph.node)
    probe.graph.input.extend(ir.to_proto(value) for value in graph.inputs if not value.is_initializer())
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims) <= _MAX_CONSTANT_ELEMENTS:
            probe.graph.initializer.append(tensor)
        else:
            # Weights are not copied.
            weights = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            probe.graph.input.append(weights)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in untyped)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common class; it computes what has no type
        return
    for output in session.get_outputs():
        dtype, value = _TYPES_BY_ORT_NAME.get(output.type), untyped[output.name]
        if dtype is not None:
            value.type = ir.TensorType(dtype)
            if value.shape is None and output.shape is not None:
                value.shape = ir.Shape(output.shape)


def _state_sizes(graph: ir.Graph) -> None:
    """Replace sizes of values by constants, so that the network does not read a value for its size alone."""
    for node in list(graph):
        value = node.inputs[0] if node.inputs else None
        is_whole = node.op_type == "Shape" and not {"start", "end"} & node.attributes.keys()
        if node.domain or not is_whole or value is None or value.shape is None or not value.shape.is_static():
            continue
        [size] = node.outputs
        if size.is_graph_output():
            continue
        name = str(size.name)
        size.name = None
        constant = ir.Value(
            name=name, const_value=ir.tensor(np.array(value.shape.numpy(), np.int64), name=name)
        )
        graph.register_initializer(constant)
        ir.convenience.replace_all_uses_with(size, constant)
        graph.remove(node, safe=True)


def _find_runtime_nodes(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that ONNX Runtime computes: those that no engine may, and what they are computed from."""
    dynamic = _list_dynamic_values(graph)
    pending = [node for node in graph if _is_left_to_runtime(node, dynamic)]
    runtime_nodes = set[ir.Node]()
    while pending:
        node = pending.pop()
        if node in runtime_nodes:
            continue
        runtime_nodes.add(node)
        producers = (value.producer() for value in _list_operands(node) if value in dynamic)
        pending += [producer for producer in producers if producer is not None]
    return runtime_nodes


def _list_dynamic_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values whose numbers come from a request, and not from its shape or constants alone."""
    dynamic = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if not _has_fixed_size(node) and any(value in dynamic for value in _list_operands(node)):
            dynamic.update(node.outputs)
    return dynamic


def _has_fixed_size(node: ir.Node) -> bool:
    """Return whether a node takes the size of a value that has the same in every request of the shape."""
    value = node.inputs[0] if not node.domain and node.op_type in _SIZES else None
    return value is not None and value.shape is not None and value.shape.is_static()


def _is_left_to_runtime(node: ir.Node, dynamic: set[ir.Value]) -> bool:
    if not dynamic.intersection(node.outputs):
        return False
    if node.domain or node.op_type in _SIZED_BY_CONTENT or any(_list_subgraphs(node)):
        return True
    results = (value for value in node.outputs if value.uses() or value.is_graph_output())
    values = [*(value for value in node.inputs if value in dynamic), *results]
    return any(
        not isinstance(value.type, ir.TensorType) or value.dtype not in _NETWORK_TYPES
        for value in values
        if value
    )


def _list_operands(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads, with what its subgraphs read."""
    yield from (value for value in node.inputs if value is not None)
    for graph in _list_subgraphs(node):
        yield from graph.outputs
        for inner in ir.traversal.RecursiveGraphIterator(graph):
            yield from (value for value in inner.inputs if value is not None)


def _list_subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _list_sources(values: Iterable[ir.Value], bounds: set[ir.Node]) -> list[ir.Value]:
    """Return what the values are computed from: inputs of the graph, and results of the nodes in `bounds`, in a stable order."""
    pending, visited, sources = list(values), set[ir.Value](), dict[ir.Value, None]()
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in visited or (node is None and value.is_initializer()):
            continue
        visited.add(value)
        if node in bounds or (node is None and value.is_graph_input()):
            sources[value] = None
        elif node is not None:
            pending += _list_operands(node)
    return list(sources)


def _extract_lookups(model: onnx.ModelProto, results: Iterable[ir.Value]) -> onnx.ModelProto:
    """Return the part of the graph that computes these values of the fixed graph."""
    free = ir.from_proto(model)
    infer_shapes(free)
    values = ir.convenience.create_value_mapping(free.graph)
    outputs: list[ir.Value] = []
    for result in dict.fromkeys(results):
        value = values[str(result.name)]
        value.type = value.type or result.type
        outputs.append(value)
    inputs = [value for value in _list_sources(outputs, set()) if value.graph is free.graph]
    part = ir.convenience.extract(free.graph, inputs, outputs)
    for value in part.outputs:
        value.shape = None
    lookups = ir.to_proto(ir.Model(part, ir_version=free.ir_version, functions=list(free.functions.values())))
    # They come from a set, and buckets share lookups of the same content.
    lookups.graph.initializer.sort(key=lambda tensor: tensor.name)
    lookups.graph.ClearField("value_info")
    return lookups


def _has_table_rows(value: ir.Value) -> bool:
    """Return whether a value consists of rows of a table without infinite numbers."""
    node = value.producer()
    table = None if node is None or node.domain or node.op_type != "Gather" else read_constant(node.inputs[0])
    return table is not None and bool(np.isfinite(table).all())
