"""Describe in text what the compiler made of a version's graph: passes with their gains, and what runs each shape."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.api.compilation import CompiledGraph, EngineBucket, GraphPassStatus


def describe_graph(graph: CompiledGraph, *, wide: bool) -> Iterator[tuple[str, str]]:
    """Yield labels and texts; `wide` adds the passes that were left out."""
    yield "graph", _describe_whole(graph)
    for result in graph.passes:
        if wide or result.applied:
            yield "pass", _describe_pass(result)
    for bucket in graph.buckets:
        yield "shape", _describe_bucket(bucket)


def _describe_whole(graph: CompiledGraph) -> str:
    parts = [f"version {graph.version} has {graph.nodes} of {graph.published_nodes} operations"]
    if graph.speedups:
        ratios = ", ".join(f"{speedup.rows}: {speedup.ratio}x" for speedup in graph.speedups)
        parts.append(f"speed-up by rows {ratios}")
    if graph.shared_inputs:
        parts.append(f"one row of {', '.join(graph.shared_inputs)}")
    parts.append(f"{graph.compared_requests} requests compared")
    replicas = "replica serves" if graph.replicas == 1 else "replicas serve"
    return f"{', '.join(parts)}; {graph.replicas} {replicas} it compiled"


def _describe_pass(result: GraphPassStatus) -> str:
    if not result.applied:
        return f"{result.name} left out: {result.reason}"
    places = "place" if result.changes == 1 else "places"
    return f"{result.name} changed {result.changes} {places}"


def _describe_bucket(bucket: EngineBucket) -> str:
    if bucket.engine:
        figures = [
            f"{bucket.ratio}x" if bucket.ratio else "",
            f"error {bucket.error}" if bucket.error else "",
        ]
        return f"{bucket.shape} in {', '.join([bucket.engine, *filter(None, figures)])}"
    if not bucket.reason:
        return f"{bucket.shape} is compiled"
    return f"{bucket.shape} in ONNX Runtime: {bucket.reason}"
