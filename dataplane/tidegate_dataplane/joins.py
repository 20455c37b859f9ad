"""What the ONNX runner reports of joined requests: the limit for the agent, and counters on Triton's metrics page.

The control plane knows both through the contract, which the runner cannot import: its server has no pydantic.
"""

from enum import StrEnum
from typing import Final

PREFIX: Final = "tidegate_model_"
EXECUTIONS: Final = "executions_total"
JOINED: Final = "joined_requests_total"
MISMATCHES: Final = "join_mismatches_total"

HELP_TEXTS: Final = {
    EXECUTIONS: "Executions in ONNX Runtime.",
    JOINED: "Requests answered by an execution that they shared, by way: rows of the same shape, or padding to one.",
    MISMATCHES: "Comparisons, by way, in which a joined answer differed from that of the request alone; nothing is joined "
    "that way afterwards.",
}
"""By name without the prefix."""
ROWS: Final = "rows"
PADDING: Final = "padding"


class JoinLimit(StrEnum):
    """What is known of a version's answers to joined requests."""

    ANY_SHAPE = "AnyShape"
    """Requests of all shapes are joined, or are on trial."""
    SAME_SHAPE = "SameShape"
    """Padding changes the answers."""
    ALONE = "Alone"
    """The other rows of an execution change the answers."""
