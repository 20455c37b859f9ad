"""Draw a graph in Graphviz' DOT language, with repeated shapes of operations counted instead of drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

MAX_NODES = 500
"""Larger graphs are drawn as one node for each operator, with how often each feeds each."""


def draw_graph(model: onnx.ModelProto) -> str:
    """Return the graph of a model, its inputs and outputs included, constants left out."""
    nodes = _draw_nodes(model.graph) if len(model.graph.node) <= MAX_NODES else _draw_operators(model.graph)
    return "\n".join(
        ["digraph model {", "  rankdir=TB; node [shape=box, fontname=Helvetica];", *nodes, "}", ""]
    )


def count_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many nodes each operator has, the most frequent first."""
    return dict(Counter(node.op_type for node in model.graph.node).most_common())


def _draw_nodes(graph: onnx.GraphProto) -> Iterator[str]:
    producers: dict[str, str] = {}
    for number, value in enumerate(graph.input):
        producers[value.name] = f"input{number}"
        yield f'  input{number} [label="{_escape_label(value.name)}", shape=ellipse];'
    for number, node in enumerate(graph.node):
        yield f'  node{number} [label="{node.op_type}"];'
        yield from (f"  {producers[name]} -> node{number};" for name in node.input if name in producers)
        producers.update(dict.fromkeys(node.output, f"node{number}"))
    for number, value in enumerate(graph.output):
        yield f'  output{number} [label="{_escape_label(value.name)}", shape=ellipse];'
        if value.name in producers:
            yield f"  {producers[value.name]} -> output{number};"


def _draw_operators(graph: onnx.GraphProto) -> Iterator[str]:
    producers = {name: node.op_type for node in graph.node for name in node.output}
    counts = Counter(node.op_type for node in graph.node)
    edges = Counter(
        (producers[name], node.op_type) for node in graph.node for name in node.input if name in producers
    )
    for operator, count in counts.items():
        yield f'  {operator} [label="{operator} x {count}"];'
    for (source, target), count in edges.items():
        yield f'  {source} -> {target} [label="{count}"];'


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
