"""The kind FeatureCompute: entities, sources and features, computed by the same plan online and offline."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, cast

from pydantic import Field
from pydantic.alias_generators import to_snake

from tidegate.api.backfill import BackfillSpec
from tidegate.api.event_store import EventStoreSpec
from tidegate.api.event_streams import SourceStream
from tidegate.api.feature_operations import (
    BucketizeOperation,
    ClipOperation,
    CrossOperation,
    DwellOperation,
    HashOperation,
    LogOperation,
    LookupOperation,
    Operation,
    RatioOperation,
    SequenceOperation,
    SessionOperation,
    SharedOperation,
    TimeSinceOperation,
    WindowOperation,
    list_references,
)
from tidegate.api.feature_status import MAX_FEATURES, MAX_SOURCES, FeatureComputeStatus
from tidegate.api.fields import (
    MAX_REPLICAS,
    DurationText,
    Identifier,
    QuantityBetween,
    Resources,
    Sha256,
    TableUri,
    duration_between,
)
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel, CustomResource
from tidegate.api.quantities import QUANTITY_PATTERN
from tidegate.api.schema import ListMap, ValidationRule, ValidationRules, must_not_match
from tidegate_dataplane.contract import RequestFieldType

MAX_ENTITIES: Final = 16
MAX_REQUEST_FIELDS: Final = 64

FEATURE_OWNER: Final = "feature"
REQUEST_OWNER: Final = "request"
"""The owner in a reference to another feature, and in one to a field of the request."""
DEFINITION_PARTS: Final = ("entities", "sources", "request", "features")
"""The fields of a spec that decide what its features are."""

OwnerName = Annotated[
    Identifier,
    ValidationRules(
        must_not_match(
            f"^({FEATURE_OWNER}|{REQUEST_OWNER})$",
            f"must not be {FEATURE_OWNER} or {REQUEST_OWNER}: {FEATURE_OWNER}.<name> is another feature, and "
            f"{REQUEST_OWNER}.<name> a field of the request",
        )
    ),
]

StorageSize = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32), QuantityBetween("64Mi", "1Ti")]


class KeyType(StrEnum):
    """Type of an entity's key in requests and tables."""

    INT64 = "int64"
    STRING = "string"


class FeatureEntity(ApiModel):
    """Something that features describe, identified by a key in each request."""

    name: Annotated[OwnerName, Field(description="Name of the entity, like user.")]
    key: Annotated[
        Identifier, Field(description="Its key: an input of every request and a column of its sources.")
    ]
    type: Annotated[KeyType, Field(description="Type of the key: int64 or string.")]


class RequestInput(ApiModel):
    """An input of every request beside the keys, such as the position of the item on the page."""

    name: Annotated[Identifier, Field(description="Name of the input; features read request.<name>.")]
    type: Annotated[RequestFieldType, Field(description="Type of the input: int64, float32 or string.")]


class SourceTable(ApiModel):
    """One Parquet file with a row for each key, read at start and, with refresh, whenever it changes."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.refresh) || !has(self.sha256)",
            message="a table with a sha256 never changes: remove refresh or sha256",
            check=lambda table: table.refresh is None or table.sha256 is None,
            field="refresh",
        ),
        ValidationRule(
            cel="!has(self.maxKeysPercent) || has(self.refresh)",
            message="maxKeysPercent compares a changed file with the loaded one: give refresh, or remove maxKeysPercent",
            check=lambda table: table.max_keys_percent is None or table.refresh is not None,
            field="maxKeysPercent",
        ),
    )

    uri: Annotated[
        TableUri,
        Field(
            description="URI of the file: s3://, gs://, https://, pvc:// or file://, as for "
            "Inference.spec.model.uri."
        ),
    ]
    sha256: Annotated[
        Sha256 | None, Field(description="SHA-256 of the file, in lower-case hex. Absent: not checked.")
    ] = None
    refresh: Annotated[
        Annotated[DurationText, duration_between("10s", "168h")] | None,
        Field(
            description="How often each replica looks whether the file has changed, from 10s to 168h. It loads a changed file "
            "beside the old one, and answers from the old one meanwhile. Absent: never."
        ),
    ] = None
    min_keys_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=100,
            description="With refresh, a changed file with fewer keys than this percentage of those of the loaded one is "
            "refused, 0 to 100; 0 refuses none.",
        ),
    ] = 50
    max_keys_percent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=100,
            le=10_000,
            description="With refresh, a changed file with more keys than this percentage of those of the loaded one is "
            "refused, 100 to 10000. Absent: none is refused for its many keys.",
        ),
    ] = None


class FeatureSource(ApiModel):
    """Facts about one entity: a table with one row per key, or a stream of events."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("table", "stream"),)

    name: Annotated[OwnerName, Field(description="Name of the source, like profiles.")]
    entity: Annotated[Identifier, Field(description="The entity whose key identifies a row or an event.")]
    table: Annotated[SourceTable | None, Field(description=SourceTable.__doc__)] = None
    stream: Annotated[SourceStream | None, Field(description=SourceStream.__doc__)] = None

    @property
    def facts_address(self) -> str:
        """Return where the facts come from: the table's URI, or the stream at its broker."""
        if self.table is not None:
            return self.table.uri
        return self.stream.broker_address if self.stream is not None else ""


_OPERATIONS: Final = (
    "lookup",
    "bucketize",
    "hash",
    "cross",
    "sequence",
    "window",
    "ratio",
    "timeSince",
    "session",
    "dwell",
    "log",
    "clip",
    "shared",
)


class Feature(ApiModel):
    """One output tensor, made by exactly one operation."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one(*_OPERATIONS),)

    name: Annotated[Identifier, Field(description="Name of the feature and of its output tensor.")]
    lookup: Annotated[LookupOperation | None, Field(description=LookupOperation.__doc__)] = None
    bucketize: Annotated[BucketizeOperation | None, Field(description=BucketizeOperation.__doc__)] = None
    hash: Annotated[HashOperation | None, Field(description=HashOperation.__doc__)] = None
    cross: Annotated[CrossOperation | None, Field(description=CrossOperation.__doc__)] = None
    sequence: Annotated[SequenceOperation | None, Field(description=SequenceOperation.__doc__)] = None
    window: Annotated[WindowOperation | None, Field(description=WindowOperation.__doc__)] = None
    ratio: Annotated[RatioOperation | None, Field(description=RatioOperation.__doc__)] = None
    time_since: Annotated[TimeSinceOperation | None, Field(description=TimeSinceOperation.__doc__)] = None
    session: Annotated[SessionOperation | None, Field(description=SessionOperation.__doc__)] = None
    dwell: Annotated[DwellOperation | None, Field(description=DwellOperation.__doc__)] = None
    log: Annotated[LogOperation | None, Field(description=LogOperation.__doc__)] = None
    clip: Annotated[ClipOperation | None, Field(description=ClipOperation.__doc__)] = None
    shared: Annotated[SharedOperation | None, Field(description=SharedOperation.__doc__)] = None

    @property
    def is_resolved(self) -> bool:
        """Return whether the operation is here; that of a shared feature is, beside `shared`, once it has been resolved."""
        return self.operation_name != "shared"

    @property
    def is_hidden(self) -> bool:
        """Return whether it is no output: only features that read it are shared, and its name is no Identifier."""
        return "." in self.name

    @property
    def operation_name(self) -> str:
        """Return the name of the operation in the spec."""
        return next(name for name in _OPERATIONS if getattr(self, to_snake(name)) is not None)

    @property
    def configured_operation(self) -> Operation:
        """Return the one operation that is set."""
        return cast("Operation", getattr(self, to_snake(self.operation_name)))

    @property
    def field_references(self) -> tuple[str, ...]:
        """Return the fields that the feature reads."""
        return list_references(self.configured_operation)


_DERIVED_OWNERS: Final = (FEATURE_OWNER, REQUEST_OWNER)


def _is_derived(reference: str) -> str:
    """Return CEL: a reference is to another feature or to a field of the request."""
    return " || ".join(f"{reference}.startsWith('{owner}.')" for owner in _DERIVED_OWNERS)


def _fields_are_declared(operation_name: str, *, derived: bool) -> str:
    """Return CEL: each operation's field is a column of a declared source or the key of a declared entity.

    With `derived` it may also be another feature or a field of the request, which the compiler of the plan checks.
    """
    field = f"f.{operation_name}.field"
    return (
        f"self.features.all(f, !has(f.{operation_name})"
        + (f" || {_is_derived(field)}" if derived else "")
        + f" || has(self.sources) && self.sources.exists(s, {field}.startsWith(s.name + '.'))"
        f" || self.entities.exists(e, {field} == e.name + '.' + e.key))"
    )


_CROSSED_FIELDS_ARE_DECLARED: Final = (
    f"self.features.all(f, !has(f.cross) || f.cross.fields.all(r, {_is_derived('r')} ||"
    " has(self.sources) && self.sources.exists(s, r.startsWith(s.name + '.')) || self.entities.exists(e, r == e.name + '.' + e.key)))"
)


class FeatureComputeSpec(ApiModel):
    """Entities, sources and features to compute."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.sources) || self.sources.all(s, self.entities.exists(e, e.name == s.entity))",
            message="every source must name one of the entities",
            check=lambda spec: (
                {source.entity for source in spec.sources} <= {entity.name for entity in spec.entities}
            ),
            field="sources",
        ),
        ValidationRule(
            cel="!has(self.sources) || self.sources.all(s, !self.entities.exists(e, e.name == s.name))",
            message="a source must not have the name of an entity, or <name>.<field> would mean two things",
            check=lambda spec: {source.name for source in spec.sources}.isdisjoint(
                entity.name for entity in spec.entities
            ),
            field="sources",
        ),
        ValidationRule(
            cel=" && ".join(
                [
                    _fields_are_declared("lookup", derived=False),
                    _fields_are_declared("bucketize", derived=True),
                    _fields_are_declared("hash", derived=True),
                    _CROSSED_FIELDS_ARE_DECLARED,
                ]
            ),
            message="every field must be <source>.<column> of a declared source or <entity>.<key> of a declared entity; "
            "except of lookup it may also be request.<name> or feature.<name>",
            check=lambda spec: not spec.unknown_references,
            field="features",
        ),
        ValidationRule(
            cel="!has(self.store) || has(self.sources) && self.sources.exists(s, has(s.stream))"
            " || self.features.exists(f, has(f.shared))",
            message="a store is for the events of streams, and no source is a stream: remove store",
            check=lambda spec: (
                spec.store is None
                or any(source.stream is not None for source in spec.sources)
                or any(feature.shared is not None for feature in spec.features)
            ),
            field="store",
        ),
    )

    entities: Annotated[
        tuple[FeatureEntity, ...],
        Field(min_length=1, max_length=MAX_ENTITIES, description="Entities that the features describe."),
        ListMap("name"),
    ]
    sources: Annotated[
        tuple[FeatureSource, ...],
        Field(
            max_length=MAX_SOURCES, description="Tables and streams of events with facts about the entities."
        ),
        ListMap("name"),
    ] = ()
    request: Annotated[
        tuple[RequestInput, ...],
        Field(
            max_length=MAX_REQUEST_FIELDS,
            description="Inputs of every request beside the keys; one that no feature reads is left out.",
        ),
        ListMap("name"),
    ] = ()
    features: Annotated[
        tuple[Feature, ...],
        Field(
            min_length=1,
            max_length=MAX_FEATURES,
            description="Features to compute, in the order of the outputs.",
        ),
        ListMap("name"),
    ]
    replicas: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_REPLICAS,
            description=f"Number of pods, 0 to {MAX_REPLICAS}. kubectl scale, an HPA and KEDA set it through /scale.",
        ),
    ] = 1
    resources: Annotated[Resources, Field(description="CPU and memory of one replica.")] = Resources()
    event_storage: Annotated[
        StorageSize,
        Field(
            description="Disk that each replica may use for the events of its streams, in bytes, as a quantity from 64Mi to 1Ti. "
            "Not used with store.redis."
        ),
    ] = "4Gi"
    table_storage: Annotated[
        StorageSize | None,
        Field(
            description="Disk that each replica requests for its tables, in bytes, as a quantity from 64Mi to 1Ti: pods run only on "
            "nodes with that much free. All converted tables of a replica have at most this size. Absent: none is requested, "
            "and models.maxArtefactBytes is the bound."
        ),
    ] = None
    store: Annotated[
        EventStoreSpec | None, Field(description=f"{EventStoreSpec.__doc__} Absent: embedded.")
    ] = None
    backfill: Annotated[BackfillSpec | None, Field(description=BackfillSpec.__doc__)] = None

    @property
    def unknown_references(self) -> tuple[str, ...]:
        """Return the fields that name neither a declared source nor a declared key, in order; none in a valid spec.

        References of operations over events, to other features and to the request are checked when the plan is compiled.
        """
        sources = {source.name for source in self.sources}
        keys = {f"{entity.name}.{entity.key}" for entity in self.entities}
        return tuple(
            reference
            for feature in self.features
            for reference in _list_checked_references(feature)
            if reference not in keys and reference.partition(".")[0] not in sources
        )


def _list_checked_references(feature: Feature) -> tuple[str, ...]:
    """Return the references of a feature that the rules over the spec check."""
    operation = feature.configured_operation
    if isinstance(operation, LookupOperation):
        return (operation.field,)
    if isinstance(operation, BucketizeOperation | HashOperation | CrossOperation):
        return tuple(
            reference
            for reference in list_references(operation)
            if reference.partition(".")[0] not in _DERIVED_OWNERS
        )
    return ()


class FeatureCompute(CustomResource):
    """Features of entities, computed by the same engine online (Triton on CPU) and offline (files)."""

    KIND: ClassVar[str] = "FeatureCompute"
    PLURAL: ClassVar[str] = "featurecomputes"

    spec: Annotated[FeatureComputeSpec, Field(description=FeatureComputeSpec.__doc__)]
    status: Annotated[FeatureComputeStatus, Field(description=FeatureComputeStatus.__doc__)] = (
        FeatureComputeStatus()
    )
