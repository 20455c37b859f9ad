"""The kind FeatureCompute: entities, sources and features, computed by the same plan online and offline."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import MAX_REPLICAS, Identifier, Resources, Sha256, TableUri
from tidegate.api.inference import TensorMetadata
from tidegate.api.meta import NOT_OBSERVED, ApiModel, CustomResource, ObservedGeneration, StatusModel
from tidegate.api.schema import ListAtomic, ListMap, ListSet, ValidationRule, ValidationRules, must_match

MAX_ENTITIES: Final = 16
MAX_SOURCES: Final = 32
MAX_FEATURES: Final = 256
MAX_BUCKETS: Final = 2**31 - 1


class KeyType(StrEnum):
    """Type of an entity's key in requests and tables."""

    INT64 = "int64"
    STRING = "string"


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
            "must be <source>.<column> or <entity>.<key>, like profiles.age",
        )
    ),
]

BucketCount = Annotated[int, Field(strict=True, ge=1, le=MAX_BUCKETS)]


class FeatureEntity(ApiModel):
    """Something that features describe, identified by a key in each request."""

    name: Annotated[Identifier, Field(description="Name of the entity, like user.")]
    key: Annotated[
        Identifier, Field(description="Its key: an input of every request and a column of its sources.")
    ]
    type: Annotated[KeyType, Field(description="Type of the key: int64 or string.")]


class SourceTable(ApiModel):
    """One Parquet file, read at start."""

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


class FeatureSource(ApiModel):
    """A table of facts about one entity, with one row per key."""

    name: Annotated[Identifier, Field(description="Name of the source, like profiles.")]
    entity: Annotated[Identifier, Field(description="The entity whose key identifies a row.")]
    table: Annotated[SourceTable, Field(description=SourceTable.__doc__)]


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

    field: Annotated[FieldReference, Field(description="<source>.<column>.")]
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
        str,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^-?[0-9]{1,18}(\.[0-9]{1,9})?$",
            description="Value for a key that the table lacks, and the padding; a decimal in quotes.",
        ),
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

    field: Annotated[FieldReference, Field(description="<source>.<column> or <entity>.<key>, a number.")]
    boundaries: Annotated[
        tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...],
        Field(
            min_length=1,
            max_length=1024,
            description="Ascending; n of them make n + 1 buckets. A value equal to a boundary falls above it.",
        ),
        ListSet(),
    ]


class HashOperation(ApiModel):
    """A stable hash of a value, modulo a number of buckets."""

    field: Annotated[FieldReference, Field(description="<source>.<column> or <entity>.<key>.")]
    buckets: Annotated[BucketCount, Field(description=f"Number of buckets, 1 to {MAX_BUCKETS}.")]


class CrossOperation(ApiModel):
    """A stable hash of several values together, modulo a number of buckets."""

    fields: Annotated[
        tuple[FieldReference, ...],
        Field(
            min_length=2,
            max_length=4,
            description="2 to 4 of <source>.<column> or <entity>.<key>; their order matters.",
        ),
        ListSet(),
    ]
    buckets: Annotated[BucketCount, Field(description=f"Number of buckets, 1 to {MAX_BUCKETS}.")]


def _has_one_operation(feature: Feature) -> bool:
    return len(feature.configured_operations) == 1


class Feature(ApiModel):
    """One output tensor, made by exactly one operation."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="[has(self.lookup), has(self.bucketize), has(self.hash), has(self.cross)].filter(x, x).size() == 1",
            message="a feature must have exactly one of lookup, bucketize, hash and cross",
            check=_has_one_operation,
        ),
    )

    name: Annotated[Identifier, Field(description="Name of the feature and of its output tensor.")]
    lookup: Annotated[LookupOperation | None, Field(description=LookupOperation.__doc__)] = None
    bucketize: Annotated[BucketizeOperation | None, Field(description=BucketizeOperation.__doc__)] = None
    hash: Annotated[HashOperation | None, Field(description=HashOperation.__doc__)] = None
    cross: Annotated[CrossOperation | None, Field(description=CrossOperation.__doc__)] = None

    @property
    def configured_operations(
        self,
    ) -> tuple[LookupOperation | BucketizeOperation | HashOperation | CrossOperation, ...]:
        """Return the operations that are set: exactly one in a valid feature."""
        operations = (self.lookup, self.bucketize, self.hash, self.cross)
        return tuple(operation for operation in operations if operation is not None)

    @property
    def field_references(self) -> tuple[str, ...]:
        """Return the fields that the feature reads."""
        return tuple(
            reference
            for operation in self.configured_operations
            for reference in (
                operation.fields if isinstance(operation, CrossOperation) else (operation.field,)
            )
        )


def _fields_are_declared(operation_name: str) -> str:
    """Return CEL: each operation's field is a column of a declared source or the key of a declared entity."""
    return (
        f"self.features.all(f, !has(f.{operation_name})"
        f" || has(self.sources) && self.sources.exists(s, f.{operation_name}.field.startsWith(s.name + '.'))"
        f" || self.entities.exists(e, f.{operation_name}.field == e.name + '.' + e.key))"
    )


_CROSSED_FIELDS_ARE_DECLARED: Final = (
    "self.features.all(f, !has(f.cross) || f.cross.fields.all(r,"
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
                    *(_fields_are_declared(name) for name in ("lookup", "bucketize", "hash")),
                    _CROSSED_FIELDS_ARE_DECLARED,
                ]
            ),
            message="every field must be <source>.<column> of a declared source or <entity>.<key> of a declared entity",
            check=lambda spec: not spec.unknown_references,
            field="features",
        ),
    )

    entities: Annotated[
        tuple[FeatureEntity, ...],
        Field(min_length=1, max_length=MAX_ENTITIES, description="Entities that the features describe."),
        ListMap("name"),
    ]
    sources: Annotated[
        tuple[FeatureSource, ...],
        Field(max_length=MAX_SOURCES, description="Tables with facts about the entities."),
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

    @property
    def unknown_references(self) -> tuple[str, ...]:
        """Return the undeclared fields that features read, in order; none in a valid spec."""
        sources = {source.name for source in self.sources}
        keys = {f"{entity.name}.{entity.key}" for entity in self.entities}
        return tuple(
            reference
            for feature in self.features
            for reference in feature.field_references
            if reference not in keys and reference.partition(".")[0] not in sources
        )


class FeatureComputeStatus(StatusModel):
    """The compiled plan, and the state that the replicas report."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    plan_hash: Annotated[
        str | None,
        Field(max_length=64, description="SHA-256 of the compiled plan, which also runs offline."),
    ] = None
    outputs: Annotated[
        tuple[TensorMetadata, ...],
        Field(max_length=MAX_FEATURES, description="Tensors of a response."),
        ListAtomic(),
    ] = ()
    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0
    selector: Annotated[str, Field(max_length=512, description="Label selector of the pods, for /scale.")] = (
        ""
    )
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled, PlanCompiled, SourcesReady and EndpointsPublished.",
        ),
        ListMap("type"),
    ] = ()


class FeatureCompute(CustomResource):
    """Features of entities, computed by the same engine online (Triton on CPU) and offline (files)."""

    KIND: ClassVar[str] = "FeatureCompute"
    PLURAL: ClassVar[str] = "featurecomputes"

    spec: Annotated[FeatureComputeSpec, Field(description=FeatureComputeSpec.__doc__)]
    status: Annotated[FeatureComputeStatus, Field(description=FeatureComputeStatus.__doc__)] = (
        FeatureComputeStatus()
    )
