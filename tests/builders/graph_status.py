"""Builds status.graph of an Inference for a test: two passes, and a shape in each state."""

from __future__ import annotations

from typing import Any


def a_graph_status(reason: str) -> dict[str, Any]:
    """Return the graph of version 3 of columns; `reason` is why a pass was left out and ONNX Runtime runs a shape."""
    return {
        "version": "3",
        "replicas": 2,
        "nodes": 12,
        "publishedNodes": 602,
        "sharedInputs": ["user"],
        "comparedRequests": 24,
        "passes": [
            {"name": "simplify", "reason": reason},
            {"name": "fuseEmbeddings", "applied": True, "changes": 300},
        ],
        "speedups": [{"rows": 1, "ratio": "19.82"}, {"rows": 128, "ratio": "2.27"}],
        "buckets": [
            {"shape": "ids 16x60", "engine": "OpenVINO", "ratio": "1.31", "error": "2.0e-07"},
            {"shape": "ids 1x60", "reason": reason},
            {"shape": "ids 2x60"},
        ],
    }
