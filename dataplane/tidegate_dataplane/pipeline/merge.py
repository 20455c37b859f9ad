"""Merge the outputs of a pipeline's parts into one answer, with defaults for optional parts that failed."""

from collections.abc import Mapping

import numpy as np

from tidegate_dataplane.contract import DEFAULTED, PipelinePart, TensorSpec
from tidegate_dataplane.pipeline.failures import CallError
from tidegate_dataplane.pipeline.rows import Outcome
from tidegate_dataplane.pipeline.wire import NUMPY_TYPES, Array, Arrays


def merge_outcomes(
    outcomes: Mapping[str, Outcome], parts: Mapping[str, PipelinePart], rows: int
) -> Arrays | CallError:
    """Return the answer to one request of `rows` rows, or the error of a part that is not optional."""
    answer: dict[str, Array] = {}
    defaulted: list[str] = []
    for name, part in parts.items():
        outcome = outcomes[name]
        (output,) = part.call.outputs
        if not isinstance(outcome, CallError):
            answer[name] = outcome[output.name]
        elif part.default is None:
            return name_part(name, part.call.title, outcome)
        else:
            answer[name] = _fill_default(output, part.default, rows)
            defaulted.append(name)
    if any(part.default is not None for part in parts.values()):
        answer[DEFAULTED] = np.full((rows, 1), ",".join(defaulted).encode(), dtype=object)
    return answer


def name_part(name: str, title: str, error: CallError) -> CallError:
    """Return the error with the name and title of its part."""
    return CallError(error.kind, f"{name} ({title}): {error}")


def _fill_default(output: TensorSpec, default: str, rows: int) -> Array:
    dtype = np.dtype(NUMPY_TYPES[output.dtype])
    value = float(default) if dtype.kind == "f" else int(default)
    return np.full((rows, *output.shape[1:]), value, dtype=dtype)
