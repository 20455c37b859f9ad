"""Collect the nodes and constants of a rewrite, and insert them into a graph at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes


class Rewriting:
    """New nodes for a graph, which is unchanged until `insert_nodes`."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        """`prefix` begins the names of new constants."""
        self._graph = graph
        self._prefix = prefix
        self._names = (f"{prefix}.{number}" for number in itertools.count())
        self._tape = ir.tape.Tape()

    def add_node(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """Add a node with one output, and return that."""
        return self._tape.op(operator, inputs, attributes, domain=domain)

    def add_split(self, value: ir.Value, sizes: ir.Value, axis: int, outputs: int) -> Sequence[ir.Value]:
        """Add a Split with this many outputs, and return them."""
        return self._tape.op_multi_out("Split", [value, sizes], {"axis": axis}, num_outputs=outputs)

    def add_constant(self, array: Array) -> ir.Value:
        """Add an initializer."""
        name = next(name for name in self._names if name not in self._graph.initializers)
        return self._tape.initializer(ir.tensor(array, name=name))

    def add_choice(
        self,
        condition: ir.Value,
        when_true: Callable[[Rewriting], ir.Value],
        when_false: Callable[[Rewriting], ir.Value],
    ) -> ir.Value:
        """Add an If whose branches consist of the nodes that the functions add, and return its output."""
        branches = {
            "then_branch": self._build_branch(when_true),
            "else_branch": self._build_branch(when_false),
        }
        return self._tape.op("If", [condition], branches)

    def insert_nodes(self) -> None:
        """Insert the nodes at the end of the graph, whose order `finish_rewrite` restores."""
        self._graph.extend(self._tape.nodes)
        for value in self._tape.initializers:
            self._graph.register_initializer(value)

    def _build_branch(self, build: Callable[[Rewriting], ir.Value]) -> ir.Graph:
        branch = Rewriting(self._graph, self._prefix)
        output = build(branch)
        if branch._tape.initializers:
            message = "a branch reads the constants of its graph: add them there"
            raise ValueError(message)
        # ONNX Runtime refuses a name that the outer graph has too, and NameFixPass does not see one that comes later there.
        for node in branch._tape.nodes:
            for value in node.outputs:
                value.name = next(self._names)
        return ir.Graph([], [output], nodes=branch._tape.nodes, name=f"{self._prefix}.branch")


def rename_output(old: ir.Value, new: ir.Value) -> None:
    """Let `new` take the place of `old` everywhere, with its name where it is an output of the graph."""
    if old.is_graph_output():
        new.name, old.name = old.name, None
        new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def finish_rewrite(model: ir.Model) -> None:
    """Order the nodes of a rewritten model, drop those that nothing reads, and infer shapes again."""
    model.graph.sort()
    RemoveUnusedNodesPass()(model)
    NameFixPass()(model)
    infer_shapes(model)
