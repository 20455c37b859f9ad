"""The compiled feature plan, which the engine computes online and offline alike."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel, PlanModel
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


class FeatureTable(ContractModel):
    """A Parquet file with one row per key of its entity."""

    name: str
    entity: str
    uri: str
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class FieldRef(ContractModel):
    """A value per request row: a column of a table, or the entity's own key when `table` is None."""

    entity: str
    table: str | None = None
    column: str


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
    """The stable 64-bit hash of the value modulo `buckets`."""

    op: Literal["hash"] = "hash"
    name: str
    field: FieldRef
    buckets: int = Field(ge=1)


class Cross(ContractModel):
    """The combined hash of two to four values, in order, modulo `buckets`."""

    op: Literal["cross"] = "cross"
    name: str
    fields: tuple[FieldRef, ...] = Field(min_length=2, max_length=4)
    buckets: int = Field(ge=1)


Feature = Annotated[Lookup | Bucketize | Hash | Cross, Field(discriminator="op")]


class FeaturePlan(PlanModel):
    """Everything that the engine needs, with the specs of its tensors.

    `inputs`: one per entity that a feature uses, named by the entity's key, INT64 or BYTES, shape [-1, 1].
    `outputs`: one per feature, named by the feature, INT64 or FP32, shape [-1, k] with k = 1 for scalars.
    `hash` is `compute_digest()`, set by the compiler of the plan.
    """

    entities: tuple[Entity, ...]
    tables: tuple[FeatureTable, ...] = ()
    features: tuple[Feature, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hash: str = ""
