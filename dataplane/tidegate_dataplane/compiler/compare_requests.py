"""Compare the answers of two graphs on requests of clients, in a process that may run out of memory or time.

`python3 -m tidegate_dataplane.compiler.compare_requests SOURCE GRAPH OUTPUT REQUEST...` writes `OUTPUT/comparison.json`.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path

import onnx

from tidegate_dataplane.compiler.exchange import COMPARISON_FILE, RequestComparison
from tidegate_dataplane.compiler.model_file import read_model
from tidegate_dataplane.graph_passes.pipeline import TOLERANCE, compare_requests
from tidegate_dataplane.graph_passes.samples import Request
from tidegate_dataplane.sampling.kept_requests import read_request


def compare_files(arguments: Sequence[str]) -> int:
    """Compare, write the result, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "graph", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("requests", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    requests = read_requests(options.requests)
    comparison = compare_requests(read_model(options.source), onnx.load(options.graph), requests)
    result = RequestComparison(answered=len(requests), error=_describe_error(comparison.max_error))
    (options.output / COMPARISON_FILE).write_text(result.model_dump_json())
    return 0


def read_requests(paths: Iterable[Path]) -> list[Request]:
    """Return the requests in these files, without those that are damaged."""
    requests: list[Request] = []
    for path in paths:
        with suppress(ValueError):
            requests.append(read_request(path))
    return requests


def _describe_error(error: float) -> str:
    if error <= TOLERANCE:
        return ""
    if not isfinite(error):
        return "one of the graphs refuses a request, or answers in another shape or without numbers"
    return f"numbers differ by {error:.1e} of the largest one, and {TOLERANCE:.0e} is allowed"


if __name__ == "__main__":
    sys.exit(compare_files(sys.argv[1:]))
