"""Operations that make the features of a FeatureCompute."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import Field

from tidegate.api.durations import parse_duration
from tidegate.api.event_streams import MAX_EVENTS
from tidegate.api.fields import DecimalText, DurationText, Identifier, SharedName, duration_between
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListSet, ValidationRule, ValidationRules, must_match
from tidegate_dataplane.contract import Aggregate, SessionMeasure

MAX_BUCKETS: Final = 2**31 - 1

_DEFAULTED_AGGREGATES: Final = (Aggregate.MEAN, Aggregate.MIN, Aggregate.MAX, Aggregate.LAST)


class ValueType(StrEnum):
    """Type of a looked-up feature."""

    INT64 = "int64"
    FLOAT32 = "float32"


FieldReference = Annotated[
    str,
    Field(min_length=3, max_length=127),
    ValidationRules(
        must_match(
            r"[A-Za-z_][A-Za-z0-9_]*[.][A-Za-z_][A-Za-z0-9_]*",
            "must be <source>.<column> or <entity>.<key>, like profiles.age, or request.<name> or feature.<name>",
        )
    ),
]

BucketCount = Annotated[int, Field(strict=True, ge=1, le=MAX_BUCKETS)]
FiniteNumber = Annotated[float, Field(strict=True, allow_inf_nan=False)]
DefaultValue = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^-?[0-9]{1,18}(\.[0-9]{1,9})?$")]
SpanText = Annotated[DurationText, duration_between("1s", "8760h")]

_ANY_FIELD: Final = "<source>.<column> of a table, <entity>.<key>, request.<name> or feature.<name>"
_STREAM_FIELD: Final = "<source>.<field> of a stream"
_NUMBER: Final = "request.<name> or feature.<name>, a number"


class LookupOperation(ApiModel):
    """The value of a column, unchanged."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.type != 'int64' || self.default.matches(r'^-?[0-9]{1,18}$')",
            message="the default of an int64 must be a whole number of at most 18 digits",
            check=lambda lookup: lookup.type is not ValueType.INT64 or lookup.default.lstrip("-").isdigit(),
            field="default",
        ),
    )

    field: Annotated[FieldReference, Field(description="<source>.<column> of a table.")]
    type: Annotated[ValueType, Field(description="Type of the value: int64 or float32.")]
    length: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=4096,
            description="Number of elements, for a column of lists: shorter ones are padded with default, "
            "longer ones keep their first. Absent: a single value.",
        ),
    ] = None
    default: Annotated[
        DefaultValue,
        Field(description="Value for a key that the table lacks, and the padding; a decimal in quotes."),
    ] = "0"


class BucketizeOperation(ApiModel):
    """The index of the interval that contains a number: 0 below the first boundary, then one more per boundary."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.boundaries.isSorted()",
            message="boundaries must be ascending",
            check=lambda bucketize: list(bucketize.boundaries) == sorted(set(bucketize.boundaries)),
            field="boundaries",
        ),
    )

    field: Annotated[FieldReference, Field(description=f"{_ANY_FIELD}; a number.")]
    boundaries: Annotated[
        tuple[FiniteNumber, ...],
        Field(
            min_length=1,
            max_length=1024,
            description="Ascending; n of them make n + 1 buckets. A value equal to a boundary falls above it.",
        ),
        ListSet(),
    ]


class HashOperation(ApiModel):
    """A stable hash of a value, modulo a number of buckets."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!self.padded || self.buckets >= 2",
            message="buckets must be at least 2 with padded: the first one is padding",
            check=lambda operation: not operation.padded or operation.buckets >= 2,
            field="buckets",
        ),
    )

    field: Annotated[FieldReference, Field(description=f"{_ANY_FIELD}.")]
    buckets: Annotated[BucketCount, Field(description=f"Number of buckets, 1 to {MAX_BUCKETS}.")]
    padded: Annotated[
        bool,
        Field(
            strict=True,
            description="1 plus the hash modulo buckets - 1, as a sequence with buckets has it: an item and a history of items "
            "then share one embedding, whose row 0 is padding.",
        ),
    ] = False


class CrossOperation(ApiModel):
    """A stable hash of several values together, modulo a number of buckets."""

    fields: Annotated[
        tuple[FieldReference, ...],
        Field(min_length=2, max_length=4, description=f"2 to 4 of {_ANY_FIELD}; their order matters."),
        ListSet(),
    ]
    buckets: Annotated[BucketCount, Field(description=f"Number of buckets, 1 to {MAX_BUCKETS}.")]


class EventFilterSpec(ApiModel):
    """Only events whose field has one of the values."""

    field: Annotated[
        FieldReference, Field(description="<source>.<field> of the same stream, an int64 or a string.")
    ]
    values: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...],
        Field(min_length=1, max_length=16, description="Values in quotes, 1 to 16."),
        ListSet(),
    ]


OptionalFilter = Annotated[
    EventFilterSpec | None, Field(description=f"{EventFilterSpec.__doc__} Absent: all events.")
]


class SequenceOperation(ApiModel):
    """The values of the key's newest events, the newest first."""

    field: Annotated[FieldReference, Field(description=f"{_STREAM_FIELD}.")]
    last: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_EVENTS,
            description="Number of elements, 1 to the stream's maxEvents; fewer events are padded at the end.",
        ),
    ]
    pad: Annotated[DefaultValue, Field(description="Padding; a decimal in quotes.")] = "0"
    buckets: Annotated[
        int | None,
        Field(
            strict=True,
            ge=2,
            le=MAX_BUCKETS,
            description=f"Number of buckets, 2 to {MAX_BUCKETS}: each value becomes 1 plus its hash modulo buckets - 1, and 0 "
            "is free for padding. Required for a string. Absent: the values themselves.",
        ),
    ] = None
    filter: OptionalFilter = None


class EventWindow(ApiModel):
    """The events of one key in a window of time, and what is computed of them."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.every) || duration(self.every) <= duration(self.over)",
            message="every must not be longer than over, or events would be in no window",
            check=lambda window: (
                window.every is None or parse_duration(window.every) <= parse_duration(window.over)
            ),
            field="every",
        ),
    )

    field: Annotated[FieldReference, Field(description=f"{_STREAM_FIELD}.")]
    aggregate: Annotated[
        Aggregate,
        Field(
            description="What is computed: Count, Sum, Mean, Min, Max, Last or Distinct (the number of different values). A "
            "string has only Count and Distinct."
        ),
    ]
    over: Annotated[
        SpanText,
        Field(description="Length of the window, from 1s to the stream's ttl."),
    ]
    every: Annotated[
        SpanText | None,
        Field(
            description="The window ends at the newest multiple of this duration since 1970, from 1s to over. Absent: it "
            "ends at the time of the request."
        ),
    ] = None
    filter: OptionalFilter = None


class WindowOperation(EventWindow):
    """An aggregate of the key's events in a window of time."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        *EventWindow.RULES,
        ValidationRule(
            cel=f"self.default == '0' || self.aggregate in {[item.value for item in _DEFAULTED_AGGREGATES]}",
            message="default is for Mean, Min, Max and Last: Count, Sum and Distinct of no events are 0",
            check=lambda window: window.default == "0" or window.aggregate in _DEFAULTED_AGGREGATES,
            field="default",
        ),
    )

    default: Annotated[
        DefaultValue,
        Field(description="Mean, Min, Max or Last of no events; a decimal in quotes."),
    ] = "0"


class RatioOperation(ApiModel):
    """A smoothed rate: (numerator + prior * weight) / (denominator + weight), and prior if that divides by zero."""

    numerator: Annotated[EventWindow, Field(description="What is counted, such as clicks.")]
    denominator: Annotated[EventWindow, Field(description="What it is a share of, such as impressions.")]
    prior: Annotated[
        DefaultValue, Field(description="The rate that is assumed without events; a decimal in quotes.")
    ] = "0"
    weight: Annotated[
        DecimalText,
        Field(description="How much of the denominator the prior is worth; a decimal in quotes, 0 or more."),
    ] = "0"


class TimeSinceOperation(ApiModel):
    """Seconds since the key's newest event of a stream."""

    source: Annotated[Identifier, Field(description="Name of a source that is a stream.")]
    default: Annotated[
        DefaultValue, Field(description="Value for a key without events; a decimal in quotes.")
    ] = "-1"
    filter: OptionalFilter = None


class SessionOperation(ApiModel):
    """The key's current session of a stream: its newest events without a longer gap between them, and before the request."""

    source: Annotated[Identifier, Field(description="Name of a source that is a stream.")]
    gap: Annotated[SpanText, Field(description="Longest time between two events of a session.")] = "30m"
    measure: Annotated[
        SessionMeasure,
        Field(
            description="Events: the number of events. Seconds: the time from the first of them to the request. Without a "
            "session both are 0."
        ),
    ]


class DwellOperation(ApiModel):
    """Seconds from each of the key's newest events to the next one, from the newest to the request, the newest first."""

    source: Annotated[Identifier, Field(description="Name of a source that is a stream.")]
    last: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_EVENTS,
            description="Number of elements, 1 to the stream's maxEvents; fewer events are padded with 0 at the end. They "
            "are aligned with a sequence of the same stream without filter.",
        ),
    ]
    limit: Annotated[SpanText, Field(description="Largest element.")] = "10m"


class LogOperation(ApiModel):
    """The natural logarithm of 1 + a number, in which a negative one counts as 0."""

    field: Annotated[FieldReference, Field(description=f"{_NUMBER}.")]


class ClipOperation(ApiModel):
    """A number, but at least min and at most max; it has the type of its field."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.min <= self.max",
            message="min must not be greater than max",
            check=lambda clip: clip.min <= clip.max,
            field="min",
        ),
    )

    field: Annotated[FieldReference, Field(description=f"{_NUMBER}.")]
    min: Annotated[FiniteNumber, Field(description="Smallest result.")]
    max: Annotated[FiniteNumber, Field(description="Largest result.")]


class SharedOperation(ApiModel):
    """A feature that another FeatureCompute declares: its definition and its sources become part of this plan."""

    feature_compute: Annotated[
        SharedName,
        Field(
            description="FeatureCompute of the same namespace, or <namespace>/<name> of one that lists this namespace in its "
            "annotation tidegate.io/shared-with."
        ),
    ]
    feature: Annotated[
        Identifier | None,
        Field(
            description="Name of the feature there; one that is shared itself is refused. Absent: the same name."
        ),
    ] = None


Operation = (
    LookupOperation
    | BucketizeOperation
    | HashOperation
    | CrossOperation
    | SequenceOperation
    | WindowOperation
    | RatioOperation
    | TimeSinceOperation
    | SessionOperation
    | DwellOperation
    | LogOperation
    | ClipOperation
    | SharedOperation
)


def list_references(operation: Operation) -> tuple[str, ...]:
    """Return the fields that an operation reads, in the form of the spec; the source alone of operations that read no field."""
    match operation:
        case CrossOperation():
            return operation.fields
        case RatioOperation():
            return tuple(dict.fromkeys((operation.numerator.field, operation.denominator.field)))
        case TimeSinceOperation() | SessionOperation() | DwellOperation():
            return (operation.source,)
        case SharedOperation():
            return ()
        case _:
            return (operation.field,)


_PartT = TypeVar("_PartT", bound=ApiModel)


def rename_references(operation: _PartT, rename: Callable[[str], str]) -> _PartT:
    """Return an operation, or a part of one, with each reference to a field or a source as `rename` returns it."""
    changes: dict[str, object] = {}
    for name, value in operation:
        match value:
            case EventWindow() | EventFilterSpec():
                changes[name] = rename_references(value, rename)
            case str() if name in {"field", "source"}:
                changes[name] = rename(value)
            case tuple() if name == "fields":
                changes[name] = tuple(map(rename, value))
            case _:
                pass
    return operation.model_copy(update=changes)
