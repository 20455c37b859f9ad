"""Compare the answers of two graphs on requests of clients, in a process that may run out of memory or time.

`python3 -m tidegate_dataplane.compiler.compare_requests SOURCE GRAPH OUTPUT REQUEST... [--shared-input NAME]` writes `OUTPUT/comparison.json`.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import onnx

from tidegate_dataplane.compiler.exchange import COMPARISON_FILE, RequestComparison
from tidegate_dataplane.compiler.model_file import read_model
from tidegate_dataplane.graph_passes.pipeline import TOLERANCE, compare_requests
from tidegate_dataplane.graph_passes.proof import Comparison
from tidegate_dataplane.graph_passes.samples import Request
from tidegate_dataplane.sampling.kept_requests import read_request


def compare_files(arguments: Sequence[str]) -> int:
    """Compare, write the result, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "graph", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("requests", type=Path, nargs="+")
    parser.add_argument("--shared-input", action="append", default=[])
    options = parser.parse_args(arguments)
    requests = read_requests(options.requests)
    models = read_model(options.source), onnx.load(options.graph)
    comparison = compare_requests(*models, requests, options.shared_input)
    result = RequestComparison(answered=comparison.answered, error=explain_difference(comparison))
    (options.output / COMPARISON_FILE).write_text(result.model_dump_json())
    return 0


def read_requests(paths: Iterable[Path]) -> list[Request]:
    """Return the requests in these files, without those that are damaged."""
    requests: list[Request] = []
    for path in paths:
        with suppress(ValueError):
            requests.append(read_request(path))
    return requests


def explain_difference(comparison: Comparison) -> str:
    """Return how far the answers of two graphs differ; empty within the tolerance."""
    if comparison.problem or comparison.max_error <= TOLERANCE:
        return comparison.problem
    return f"numbers differ by {comparison.max_error:.1e} of the largest one, and {TOLERANCE:.0e} is allowed"


if __name__ == "__main__":
    sys.exit(compare_files(sys.argv[1:]))
