"""Describe the operation of a feature in a few words, as tables and explanations show it."""

from collections.abc import Iterator
from typing import Final

from tidegate.api.feature_compute import Feature
from tidegate.api.feature_operations import (
    ClipOperation,
    DwellOperation,
    EventFilterSpec,
    EventWindow,
    LookupOperation,
    RatioOperation,
    SequenceOperation,
    SessionOperation,
    TimeSinceOperation,
    WindowOperation,
)

_PARAMETERS: Final = ("buckets", "boundaries", "default", "pad", "prior", "weight", "gap", "limit")
"""Fields of operations that the summary leaves out."""


def summarize_operation(feature: Feature) -> str:
    """Return the operation with what its result depends on most, like `window Sum 1h`."""
    name = feature.operation_name
    match feature.configured_operation:
        case WindowOperation() as window:
            return f"{name} {_format_window(window)}"
        case RatioOperation() as ratio:
            return f"{name} {_format_window(ratio.numerator)} / {_format_window(ratio.denominator)}"
        case SequenceOperation(last=length) | DwellOperation(last=length):
            return f"{name} of {length}"
        case LookupOperation(length=int(length)):
            return f"{name} of {length}"
        case SessionOperation(measure=measure):
            return f"{name} {measure.value}"
        case ClipOperation() as clip:
            return f"{name} {clip.min:g} to {clip.max:g}"
        case _:
            return name


def summarize_declared(feature: Feature) -> str:
    """Return the operation as summarize_operation does, with `shared` before that of another FeatureCompute."""
    summary = summarize_operation(feature)
    return f"shared {summary}" if feature.shared is not None and feature.is_resolved else summary


def list_parameters(feature: Feature) -> tuple[str, ...]:
    """Return the parameters that the summary leaves out, like `default -1`, and the filters of events."""
    values = feature.configured_operation.model_dump(mode="json", exclude_none=True)
    parameters = [f"{name} {_format_value(values[name])}" for name in _PARAMETERS if name in values]
    return (*parameters, *_describe_filters(feature))


def _format_value(value: object) -> str:
    return ", ".join(f"{item:g}" for item in value) if isinstance(value, list) else str(value)


def _format_window(window: EventWindow) -> str:
    step = "" if window.every is None else f" every {window.every}"
    return f"{window.aggregate.value} {window.over}{step}"


def _describe_filters(feature: Feature) -> Iterator[str]:
    match feature.configured_operation:
        case RatioOperation() as ratio:
            yield from _describe_filter("numerator ", ratio.numerator.filter)
            yield from _describe_filter("denominator ", ratio.denominator.filter)
        case WindowOperation() | SequenceOperation() | TimeSinceOperation() as operation:
            yield from _describe_filter("", operation.filter)
        case _:
            return


def _describe_filter(owner: str, event_filter: EventFilterSpec | None) -> Iterator[str]:
    if event_filter is not None:
        yield f"{owner}only {event_filter.field} in {', '.join(event_filter.values)}"
