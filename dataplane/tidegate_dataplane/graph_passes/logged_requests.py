"""Read requests from files of the sample log, to compare graphs on them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.utils import triton_to_np_dtype  # type: ignore[import-untyped]

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.samples import Request

MAX_REQUESTS: Final = 1000


class LoggedRequestsError(Exception):
    """Why a file has no requests for a model: the file, the line, and what is wrong there."""


def read_logged_requests(path: Path, inputs: frozenset[str]) -> list[Request]:
    """Return the first MAX_REQUESTS requests in a `.jsonl` or `.jsonl.gz` file, with the model's inputs; raise LoggedRequestsError."""
    try:
        requests = list(islice(_read_lines(path, inputs), MAX_REQUESTS))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise LoggedRequestsError(f"{path} cannot be read: {error}") from error
    if not requests:
        raise LoggedRequestsError(f"{path} has no requests")
    return requests


def _read_lines(path: Path, inputs: frozenset[str]) -> Iterator[Request]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                request = {str(tensor["name"]): _read_tensor(tensor) for tensor in json.loads(line)["inputs"]}
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                message = f"{path}, line {number}, is no record of the sample log: {error!r}"
                raise LoggedRequestsError(message) from error
            if missing := sorted(inputs - set(request)):
                message = f"{path}, line {number}: the request lacks the model's inputs {', '.join(missing)}"
                raise LoggedRequestsError(message)
            yield {name: request[name] for name in inputs}


def _read_tensor(tensor: dict[str, Any]) -> Array:
    dtype = triton_to_np_dtype(tensor["datatype"])
    if dtype is None:
        raise ValueError(f"{tensor['datatype']} is no datatype")
    # Numbers that JSON does not have are texts, which NumPy reads.
    array: Array = np.array(tensor["data"], dtype=dtype)
    return array.reshape(tensor["shape"])
