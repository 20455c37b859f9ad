"""What the ONNX runner agrees on with the others: counters on Triton's metrics page, a limit for the agent, a name in graphs.

The control plane knows them through the contract, which the runner cannot import: its server has no pydantic.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "tidegate_model_"
EXECUTIONS: Final = "executions_total"
JOINED: Final = "joined_requests_total"
MISMATCHES: Final = "join_mismatches_total"
SHARED: Final = "shared_requests_total"
BUCKETED: Final = "bucket_requests_total"
PADDED_ROWS: Final = "bucket_padding_rows_total"
ENGINES_LOADED: Final = "engines_loaded_total"

HELP_TEXTS: Final = {
    EXECUTIONS: "Executions in ONNX Runtime.",
    JOINED: "Requests answered by an execution that they shared, by way: rows of the same shape, or padding to one.",
    MISMATCHES: "Comparisons, by way, in which a joined answer differed from that of the request alone; nothing is joined "
    "that way afterwards.",
    SHARED: "Requests of several rows whose shared inputs were executed with one row, by way: sent once, or found equal.",
    BUCKETED: "Executions of a version with spec.compile.engine, by way: hit (by the engine of a bucket), miss (no bucket; by the "
    "original graph), or original (there is a bucket, and the original graph answers, on trial or because that is faster).",
    PADDED_ROWS: "Rows that were added to requests to fill their bucket.",
    ENGINES_LOADED: "Compiled engines that were loaded.",
}
"""By name without the prefix."""
SENT: Final = "sent"
EQUAL: Final = "equal"
ROWS: Final = "rows"
PADDING: Final = "padding"
HIT: Final = "hit"
MISS: Final = "miss"
ORIGINAL: Final = "original"


ENGINE_PARAMETER: Final = "tidegate_engine"
"""Parameter of Triton's model configuration: what the order asks for, as JSON."""
COMPILE_FOLDER_FILE: Final = "compile_folder"
"""File of a version that names the folder through which its runners and the compiler exchange engines and requests."""

SHARED_ROWS: Final = "tidegate_shared_rows"
"""Name of the first dimension, in a compiled graph, of inputs that take one row, or as many as the others."""


class JoinLimit(StrEnum):
    """What is known of a version's answers to joined requests."""

    ANY_SHAPE = "AnyShape"
    """Requests of all shapes are joined, or are on trial."""
    SAME_SHAPE = "SameShape"
    """Padding changes the answers."""
    ALONE = "Alone"
    """The other rows of an execution change the answers."""


def find_compile_folder(version_dir: Path) -> Path | None:
    """Return the folder through which the runners of a version and the compiler exchange files; None if it has none."""
    try:
        return Path((version_dir / COMPILE_FOLDER_FILE).read_text())
    except OSError:
        return None


def count_instances(config: Mapping[str, Any]) -> int:
    """Return how many processes a version with this model configuration has in the server."""
    groups = config.get("instance_group") or [{}]
    return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus") or ())) for group in groups)
