"""What a plan reads of each table, as the fields of one record per row: a lookup then reads one place of the file per key."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tidegate_dataplane.contract import (
    Bucketize,
    Entity,
    EntityKeyType,
    FeaturePlan,
    Lookup,
    LookupType,
    list_references,
)
from tidegate_dataplane.features.errors import FeatureError

FORMAT_VERSION = 1
NUMPY_TYPES: dict[LookupType, type[np.generic]] = {LookupType.INT64: np.int64, LookupType.FLOAT32: np.float32}
INT64_MAX = np.iinfo(np.int64).max
KEY_FIELD = "key"

StoredFeature: TypeAlias = Lookup | Bucketize
"""Features whose value depends on a table's row alone."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The fields of a table's records: the values of `features`, and the hashes of the columns `hashed`."""

    table: str
    entity: Entity
    features: tuple[StoredFeature, ...]
    hashed: tuple[str, ...]

    @property
    def has_text_keys(self) -> bool:
        """Return whether records hold their key, which a hashed index does not."""
        return self.entity.type is EntityKeyType.STRING

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Return the columns of the Parquet file that are read."""
        return tuple(
            sorted({self.entity.key, *self.hashed, *(feature.field.column for feature in self.features)})
        )

    def compute_digest(self) -> str:
        """Return the sha256 (hex) that changes with the meaning of a record."""
        content = {
            "format": FORMAT_VERSION,
            "key": [self.entity.key, self.entity.type],
            "features": [feature.model_dump(mode="json") for feature in self.features],
            "hashed": self.hashed,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def make_dtype(self, key_words: int) -> np.dtype[np.void]:
        """Return the type of a record, a multiple of 8 bytes; its key, if it has one, has this many words of 8 bytes."""
        fields: list[tuple[str, Any, tuple[int, ...]]] = []
        if self.has_text_keys:
            fields.append((KEY_FIELD, "<u8", (key_words,)))
        fields += [(name_hash(column), "<u8", ()) for column in self.hashed]
        for feature in self.features:
            is_narrow = isinstance(feature, Lookup) and feature.type is LookupType.FLOAT32
            length = (feature.length or 1) if isinstance(feature, Lookup) else 1
            fields.append((name_feature(feature.name), "<f4" if is_narrow else "<i8", (length,)))
        # Wide fields first: then every field is aligned.
        fields.sort(key=lambda field: np.dtype(field[1]).itemsize, reverse=True)
        size = np.dtype(fields).itemsize
        if size % 8 or not size:
            fields.append(("", "V1", (8 - size % 8,)))
        return np.dtype(fields)

    def make_unknown(self, dtype: np.dtype[np.void], missing_hash: int) -> Any:
        """Return the record of unknown keys, [1].

        Raises:
            FeatureError: the default of a feature is not of its type.
        """
        record = np.zeros(1, dtype=dtype)
        for column in self.hashed:
            record[name_hash(column)] = np.uint64(missing_hash)
        for feature in self.features:
            if isinstance(feature, Lookup):
                record[name_feature(feature.name)] = parse_default(feature)
        return record


def list_layouts(plan: FeaturePlan) -> Mapping[str, TableLayout]:
    """Return the layout of each table of a plan, by name."""
    entities = {entity.name: entity for entity in plan.entities}
    key_tables = find_key_tables(plan)
    features: dict[str, list[StoredFeature]] = {table.name: [] for table in plan.tables}
    hashed: dict[str, set[str]] = {table.name: set() for table in plan.tables}
    for feature in plan.features:
        for reference in list_references(feature):
            if isinstance(feature, Lookup | Bucketize) and reference.table is not None:
                features[reference.table].append(feature)
            elif reference.table is not None:
                hashed[reference.table].add(reference.column)
            elif reference.origin is None and reference.entity in key_tables:
                hashed[key_tables[reference.entity]].add(entities[reference.entity].key)
    return {
        table.name: TableLayout(
            table.name,
            entities[table.entity],
            tuple(features[table.name]),
            tuple(sorted(hashed[table.name])),
        )
        for table in plan.tables
    }


def find_key_tables(plan: FeaturePlan) -> Mapping[str, str]:
    """Return, by entity with string keys, the table that stores the hashes of its keys: only unknown keys are hashed for a request."""
    types = {entity.name: entity.type for entity in plan.entities}
    return {
        table.entity: table.name
        for table in reversed(plan.tables)
        if types[table.entity] is EntityKeyType.STRING
    }


def name_feature(name: str) -> str:
    """Return the field of a record with the values of a feature, [k]."""
    return f"feature {name}"


def name_hash(column: str) -> str:
    """Return the field of a record with the hash of a column's value."""
    return f"hash {column}"


def parse_default(feature: Lookup) -> int | float:
    """Return the value of unknown keys.

    Raises:
        FeatureError: it is not of the feature's type.
    """
    try:
        value = int(feature.default) if feature.type is LookupType.INT64 else float(feature.default)
    except ValueError as error:
        raise FeatureError(
            f"feature {feature.name!r} has the default {feature.default!r}, which is no {feature.type}"
        ) from error
    if feature.type is LookupType.INT64 and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise FeatureError(
            f"feature {feature.name!r} has the default {feature.default}, which does not fit int64"
        )
    return value
