"""Feature plans and tables for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate_dataplane.contract import (
    Bucketize,
    Cross,
    Entity,
    EntityKeyType,
    Feature,
    FeaturePlan,
    FeatureTable,
    FieldRef,
    Hash,
    Lookup,
    LookupType,
    TensorSpec,
)
from tidegate_dataplane.features.offline import RowsComputer, check_rows, make_engine

USER = Entity(name="user", key="user_id", type=EntityKeyType.INT64)
ITEM = Entity(name="item", key="item_id", type=EntityKeyType.STRING)
PROFILES = FeatureTable(name="profiles", entity="user", uri="file:///models/users.parquet")
CATALOGUE = FeatureTable(name="catalogue", entity="item", uri="file:///models/items.parquet")
USER_KEY = FieldRef(entity="user", column="user_id")
ITEM_KEY = FieldRef(entity="item", column="item_id")


def of_user(column: str) -> FieldRef:
    """A column of the users' table."""
    return FieldRef(entity="user", table="profiles", column=column)


def of_item(column: str) -> FieldRef:
    """A column of the items' table."""
    return FieldRef(entity="item", table="catalogue", column=column)


def a_plan(*features: Feature, tables: Sequence[FeatureTable] | None = None) -> FeaturePlan:
    """A plan over users and items, with the inputs and tables that the features need."""
    references = [reference for feature in features for reference in _references(feature)]
    entities = [entity for entity in (USER, ITEM) if any(r.entity == entity.name for r in references)]
    if tables is None:
        tables = [table for table in (PROFILES, CATALOGUE) if any(r.table == table.name for r in references)]
    inputs = [
        TensorSpec(
            name=entity.key, dtype="INT64" if entity.type is EntityKeyType.INT64 else "BYTES", shape=(-1, 1)
        )
        for entity in entities
    ]
    plan = FeaturePlan(
        entities=(USER, ITEM),
        tables=tuple(tables),
        features=features,
        inputs=tuple(inputs),
        outputs=tuple(_output(feature) for feature in features),
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})


def write_table(path: Path, **columns: Any) -> Path:
    """Write a Parquet file; columns are lists or Arrow arrays."""
    pq.write_table(pa.table(columns), path)
    return path


def _references(feature: Feature) -> tuple[FieldRef, ...]:
    return feature.fields if isinstance(feature, Cross) else (feature.field,)


def _output(feature: Feature) -> TensorSpec:
    if isinstance(feature, Lookup):
        dtype = "INT64" if feature.type is LookupType.INT64 else "FP32"
        return TensorSpec(name=feature.name, dtype=dtype, shape=(-1, feature.length or 1))
    return TensorSpec(name=feature.name, dtype="INT64", shape=(-1, 1))


__all__ = [
    "ITEM_KEY",
    "USER_KEY",
    "Bucketize",
    "Cross",
    "Hash",
    "Lookup",
    "LookupType",
    "a_plan",
    "of_item",
    "of_user",
    "write_table",
]


def compute_parquet(
    plan: FeaturePlan,
    tables: Mapping[str, Path],
    rows: Path,
    output: Path,
    *,
    events: Mapping[str, Path] | None = None,
    time_column: str = "",
) -> int:
    """The rows of a file with their features in another, as `tidegate features compute` writes them; their number."""
    check_rows(rows, plan, time_column)
    return RowsComputer(plan, make_engine(plan, tables, events or {}), time_column).compute_file(rows, output)
