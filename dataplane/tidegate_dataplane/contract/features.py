"""The compiled feature plan, which the engine computes online and offline alike."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, assert_never

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel, PlanModel
from tidegate_dataplane.contract.events import EventDeadLetters, EventStream, RedisStore
from tidegate_dataplane.contract.tensors import TensorSpec


class EntityKeyType(StrEnum):
    """The type of an entity's key, in requests and in tables."""

    INT64 = "int64"
    STRING = "string"


class LookupType(StrEnum):
    """The type of a looked-up feature."""

    INT64 = "int64"
    FLOAT32 = "float32"


class Entity(ContractModel):
    """An entity that features describe; `key` is the request's input tensor and the key column of its tables."""

    name: str
    key: str
    type: EntityKeyType


class TableRefresh(ContractModel):
    """How often a pod looks whether a table has changed, and when a new one is refused.

    The new table needs at least `min_keys_percent` percent of the keys of the loaded one, and has at most `max_keys_percent`
    percent of them; None: as many as it likes.
    """

    interval_ms: int = Field(ge=1)
    min_keys_percent: int = Field(default=0, ge=0, le=100)
    max_keys_percent: int | None = Field(default=None, ge=100, exclude_if=lambda percent: percent is None)


class FeatureTable(ContractModel):
    """A Parquet file with one row per key of its entity; without `refresh` it is read once."""

    name: str
    entity: str
    uri: str
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    refresh: TableRefresh | None = Field(default=None, exclude_if=lambda refresh: refresh is None)


class RequestFieldType(StrEnum):
    """The type of a request's own field."""

    INT64 = "int64"
    FLOAT32 = "float32"
    STRING = "string"


class RequestField(ContractModel):
    """An input of every request that is no key, such as the position of the item on the page."""

    name: str
    type: RequestFieldType


class ValueOrigin(StrEnum):
    """Where a value that is neither a table's column nor an entity's key comes from."""

    STREAM = "stream"
    REQUEST = "request"
    FEATURE = "feature"


class FieldRef(ContractModel):
    """A value per request row, or the values of several events for operations over events.

    Without `origin` it is a column of a table, or the entity's own key when `table` is None. With `origin` it is a field of
    the events of stream `stream`, a field of the request, or another feature, and `column` is its name; `entity` is empty
    for the last two.
    """

    entity: str = ""
    table: str | None = None
    column: str
    origin: ValueOrigin | None = Field(default=None, exclude_if=lambda origin: origin is None)
    stream: str | None = Field(default=None, exclude_if=lambda stream: stream is None)


class Lookup(ContractModel):
    """The column's value for the key.

    With `length` the column holds lists, cut to their first `length` elements and padded with `default`;
    without it, scalars. `default` also answers for unknown keys and nulls.
    """

    op: Literal["lookup"] = "lookup"
    name: str
    field: FieldRef
    type: LookupType
    length: int | None = Field(default=None, ge=1)
    default: str = "0"


class Bucketize(ContractModel):
    """The number of boundaries that are less than or equal to the value: `numpy.searchsorted(side="right")`.

    So the result is 0 … len(boundaries), and a value equal to a boundary falls in the bucket above it.
    Unknown keys, nulls and NaN give 0.
    """

    op: Literal["bucketize"] = "bucketize"
    name: str
    field: FieldRef
    boundaries: tuple[float, ...] = Field(min_length=1)


class Hash(ContractModel):
    """The stable 64-bit hash of the value modulo `buckets`; `padded`: 1 plus the hash modulo `buckets` - 1."""

    op: Literal["hash"] = "hash"
    name: str
    field: FieldRef
    buckets: int = Field(ge=1)
    padded: bool = Field(default=False, exclude_if=lambda padded: not padded)


class Cross(ContractModel):
    """The combined hash of two to four values, in order, modulo `buckets`."""

    op: Literal["cross"] = "cross"
    name: str
    fields: tuple[FieldRef, ...] = Field(min_length=2, max_length=4)
    buckets: int = Field(ge=1)


class Aggregate(StrEnum):
    """What a window makes of the values in it."""

    COUNT = "Count"
    SUM = "Sum"
    MEAN = "Mean"
    MIN = "Min"
    MAX = "Max"
    LAST = "Last"
    DISTINCT = "Distinct"


class EventFilter(ContractModel):
    """Only events whose int64 or string field has one of the values, written as texts."""

    column: str
    values: tuple[str, ...] = Field(min_length=1)


class WindowRef(ContractModel):
    """The values of a field of the events in (end - over, end], of those that `filter` lets through.

    `end` is the time of the request, or with `every_ms` the newest multiple of it that is not after the request.
    """

    field: FieldRef
    aggregate: Aggregate
    over_ms: int = Field(ge=1)
    every_ms: int = Field(default=0, ge=0)
    filter: EventFilter | None = Field(default=None, exclude_if=lambda event_filter: event_filter is None)


class EventSequence(ContractModel):
    """The values of the newest `last` events, the newest first, padded at the end with `pad`; [last].

    With `buckets` each value is 1 + its hash modulo `buckets` - 1, so that 0 is free for padding.
    """

    op: Literal["sequence"] = "sequence"
    name: str
    field: FieldRef
    last: int = Field(ge=1)
    pad: str = "0"
    buckets: int | None = Field(default=None, ge=2)
    filter: EventFilter | None = Field(default=None, exclude_if=lambda event_filter: event_filter is None)


class Window(ContractModel):
    """The aggregate of a window; `default` answers for Mean, Min, Max and Last of no events."""

    op: Literal["window"] = "window"
    name: str
    window: WindowRef
    default: str = "0"


class Ratio(ContractModel):
    """(numerator + prior * weight) / (denominator + weight), and `prior` if that divides by zero.

    The smoothed rate of a rare event, such as clicks per impression: `weight` is how many impressions the prior is worth.
    """

    op: Literal["ratio"] = "ratio"
    name: str
    numerator: WindowRef
    denominator: WindowRef
    prior: float = 0.0
    weight: float = Field(default=0.0, ge=0)


class TimeSince(ContractModel):
    """Seconds since the newest event of a stream, `default` without one."""

    op: Literal["timeSince"] = "timeSince"
    name: str
    entity: str
    stream: str
    default: float = -1.0
    filter: EventFilter | None = Field(default=None, exclude_if=lambda event_filter: event_filter is None)


class SessionMeasure(StrEnum):
    """What is measured of a session."""

    EVENTS = "Events"
    SECONDS = "Seconds"


class EventSession(ContractModel):
    """The key's current session: its newest events, each at most `gap_ms` before the next, and the last at most that long before now.

    Events is their number; Seconds is the time from the first of them to now. Without a session both are 0.
    """

    op: Literal["session"] = "session"
    name: str
    entity: str
    stream: str
    gap_ms: int = Field(ge=1)
    measure: SessionMeasure


class Dwell(ContractModel):
    """Seconds from each of the newest `last` events to the next one, from the newest to now, at most `limit_ms`; [last].

    The newest first, aligned with a sequence of the same stream, and padded with 0.
    """

    op: Literal["dwell"] = "dwell"
    name: str
    entity: str
    stream: str
    last: int = Field(ge=1)
    limit_ms: int = Field(ge=1)


class Log(ContractModel):
    """The natural logarithm of 1 + the value, in which negative values and NaN count as 0."""

    op: Literal["log"] = "log"
    name: str
    field: FieldRef


class Clip(ContractModel):
    """The value, but at least `minimum` and at most `maximum`; NaN becomes `minimum`."""

    op: Literal["clip"] = "clip"
    name: str
    field: FieldRef
    minimum: float
    maximum: float


Feature = Annotated[
    Lookup
    | Bucketize
    | Hash
    | Cross
    | EventSequence
    | Window
    | Ratio
    | TimeSince
    | EventSession
    | Dwell
    | Log
    | Clip,
    Field(discriminator="op"),
]

AS_OF = "as_of"
"""The optional input of a plan with streams: INT64, the time that a row is computed for, in milliseconds since 1970."""

NOT_CURRENT = "tidegate_not_current"
"""The output of a plan with a store: text of shape [n, 1] with the streams whose newest events could not be read, separated by
commas, and empty in a complete answer. A plan with streams and no store declares it and answers without it: so a call that asks
for it is answered by all pods while a change of the store rolls out."""


def list_filters(feature: Feature) -> tuple[tuple[str, EventFilter], ...]:
    """Return the filters of a feature's events, with the stream of each."""
    match feature:
        case Window():
            windows = [feature.window]
        case Ratio():
            windows = [feature.numerator, feature.denominator]
        case EventSequence() if feature.filter is not None:
            return ((feature.field.stream or "", feature.filter),)
        case TimeSince() if feature.filter is not None:
            return ((feature.stream, feature.filter),)
        case _:
            return ()
    return tuple(
        (window.field.stream or "", window.filter) for window in windows if window.filter is not None
    )


def list_references(feature: Feature) -> tuple[FieldRef, ...]:
    """Return the values that a feature reads."""
    match feature:
        case Cross():
            return feature.fields
        case Window():
            return (feature.window.field,)
        case Ratio():
            return (feature.numerator.field, feature.denominator.field)
        case TimeSince() | EventSession() | Dwell():
            return (
                FieldRef(entity=feature.entity, origin=ValueOrigin.STREAM, stream=feature.stream, column=""),
            )
        case Lookup() | Bucketize() | Hash() | EventSequence() | Log() | Clip():
            return (feature.field,)
        case _:
            assert_never(feature)


class FeaturePlan(PlanModel):
    """Everything that the engine needs, with the specs of its tensors.

    `inputs`: one per entity that a feature uses, named by the entity's key, INT64 or BYTES, and one per field of the request,
    INT64, FP32 or BYTES, each of shape [-1, 1]. The optional input AS_OF is not among them.
    `outputs`: one per feature, named by the feature, INT64 or FP32, shape [-1, k] with k = 1 for scalars. A feature without an
    output is there for others that read it, and has a dot in its name, which no output has.
    The output NOT_CURRENT is not among them either. A feature comes after those that it reads.
    `hash` is `compute_digest()`, set by the compiler of the plan. Plans that differ in `store` or `dead_letters` alone have the same
    features and hash.
    """

    NOT_HASHED: ClassVar[frozenset[str]] = frozenset({"hash", "store", "dead_letters"})

    entities: tuple[Entity, ...]
    tables: tuple[FeatureTable, ...] = ()
    streams: tuple[EventStream, ...] = Field(default=(), exclude_if=lambda streams: not streams)
    dead_letters: tuple[EventDeadLetters, ...] = Field(
        default=(), exclude_if=lambda letters: not letters, description="of the streams that have some"
    )
    store: RedisStore | None = Field(default=None, exclude_if=lambda store: store is None)
    request: tuple[RequestField, ...] = Field(default=(), exclude_if=lambda fields: not fields)
    features: tuple[Feature, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hash: str = ""
