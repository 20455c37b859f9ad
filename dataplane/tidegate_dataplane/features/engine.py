"""Compute a plan's features for arrays of entity keys: precomputed per table row, gathered per request."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import (
    Bucketize,
    Cross,
    Entity,
    EntityKeyType,
    Feature,
    FeaturePlan,
    FieldRef,
    Lookup,
)
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.index import Rows
from tidegate_dataplane.features.tables import LoadedTable, read_table

Array = npt.NDArray[np.generic]


class FeatureEngine:
    """Computes one plan over its tables. Online and offline use differ only in the number of rows per call.

    Everything that depends on a table's row alone is computed once, when the engine is made: a request then costs one
    search per table and one gather per feature.
    """

    def __init__(self, plan: FeaturePlan, tables: Mapping[str, LoadedTable]) -> None:
        self._plan = plan
        self._tables = tables
        self._entities = {entity.name: entity for entity in plan.entities}
        self._gathers: dict[str, Array] = {}
        self._boundaries: dict[str, Sequence[float]] = {}
        self._hashes: dict[FieldRef, hashing.Hashes] = {}
        for feature in plan.features:
            self._prepare_feature(feature)

    @classmethod
    def from_files(cls, plan: FeaturePlan, paths: Mapping[str, Path]) -> "FeatureEngine":
        """Make the engine from the Parquet file of each table, by name.

        Raises:
            FeatureError: the plan and the tables do not fit.
        """
        entities = {entity.name: entity for entity in plan.entities}
        columns: dict[str, set[str]] = {table.name: set() for table in plan.tables}
        for reference in (reference for feature in plan.features for reference in list_fields(feature)):
            _check_reference(reference, columns, entities)
            if reference.table is not None:
                columns[reference.table].add(reference.column)
        tables = {
            table.name: read_table(paths[table.name], table.name, entities[table.entity], columns[table.name])
            for table in plan.tables
        }
        return cls(plan, tables)

    def compute_features(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return every feature, [n, k], for the keys in `inputs`, [n] or [n, 1] each, named as the plan's inputs.

        Raises:
            FeatureError: an input is missing, of another type or of another length than the others.
        """
        keys = self._collect_keys(inputs)
        rows = {
            table.name: self._tables[table.name].index.find_rows(keys[table.entity])
            for table in self._plan.tables
            if table.entity in keys
        }
        return {feature.name: self._compute_feature(feature, keys, rows) for feature in self._plan.features}

    def _prepare_feature(self, feature: Feature) -> None:
        if isinstance(feature, Bucketize):
            self._boundaries[feature.name] = feature.boundaries
        if isinstance(feature, Lookup):
            table = feature.field.table
            if table is None:
                raise FeatureError(
                    f"feature {feature.name!r} looks up the key itself; name a column of a table"
                )
            self._gathers[feature.name] = self._tables[table].look_up_values(feature)
            return
        for reference in list_fields(feature):
            table = reference.table
            if table is None:
                if (
                    isinstance(feature, Bucketize)
                    and self._get_entity(reference).type is EntityKeyType.STRING
                ):
                    raise FeatureError(
                        f"feature {feature.name!r} bucketizes the string key {reference.column!r}"
                    )
            elif isinstance(feature, Bucketize):
                values, present = self._tables[table].read_numbers(reference.column)
                self._gathers[feature.name] = _assign_buckets(values, present, feature.boundaries)[:, None]
            elif reference not in self._hashes:
                self._hashes[reference] = self._tables[table].hash_column(reference.column)

    def _collect_keys(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the keys of each entity that the plan uses, [n]."""
        keys: dict[str, Array] = {}
        input_names = {spec.name for spec in self._plan.inputs}
        for entity in self._entities.values():
            if entity.key not in input_names:
                continue
            if entity.key not in inputs:
                raise FeatureError(f"input {entity.key!r} is missing")
            keys[entity.name] = _check_keys(entity, inputs[entity.key])
        lengths = {name: len(values) for name, values in keys.items()}
        if len(set(lengths.values())) > 1:
            raise FeatureError(f"the inputs differ in length: {lengths}")
        return keys

    def _compute_feature(
        self, feature: Feature, keys: Mapping[str, Array], rows: Mapping[str, Rows]
    ) -> Array:
        if isinstance(feature, Lookup | Bucketize):
            table = feature.field.table
            if table is not None:
                return self._gathers[feature.name][rows[table]]
            values = keys[feature.field.entity]
            return _assign_buckets(values, np.ones(len(values), dtype=bool), self._boundaries[feature.name])[
                :, None
            ]
        parts = [self._hash_values(reference, keys, rows) for reference in list_fields(feature)]
        return hashing.to_bucket(hashing.combine_hashes(parts), feature.buckets)[:, None]

    def _hash_values(
        self, reference: FieldRef, keys: Mapping[str, Array], rows: Mapping[str, Rows]
    ) -> hashing.Hashes:
        if reference.table is not None:
            return self._hashes[reference][rows[reference.table]]
        values = keys[reference.entity]
        if self._get_entity(reference).type is EntityKeyType.STRING:
            return hashing.hash_strings(values.tolist())
        return hashing.hash_integers(values.astype(np.int64, copy=False))

    def _get_entity(self, reference: FieldRef) -> Entity:
        return self._entities[reference.entity]


def list_fields(feature: Feature) -> tuple[FieldRef, ...]:
    """Return the values that a feature reads."""
    return feature.fields if isinstance(feature, Cross) else (feature.field,)


def _check_reference(
    reference: FieldRef, tables: Mapping[str, set[str]], entities: Mapping[str, Entity]
) -> None:
    if reference.entity not in entities:
        raise FeatureError(f"the plan names entity {reference.entity!r}, which it does not declare")
    if reference.table is not None and reference.table not in tables:
        raise FeatureError(f"the plan names table {reference.table!r}, which it does not declare")


def _check_keys(entity: Entity, values: Array) -> Array:
    flat = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1:
        raise FeatureError(f"input {entity.key!r} has shape {list(values.shape)}; [n] or [n, 1] is needed")
    if entity.type is EntityKeyType.INT64:
        if not np.issubdtype(flat.dtype, np.integer):
            raise FeatureError(f"input {entity.key!r} has type {flat.dtype}; int64 is needed")
        return flat
    texts = np.empty(len(flat), dtype=object)
    texts[:] = [_to_utf8(value, entity.key) for value in flat.tolist()]
    return texts


def _to_utf8(value: object, key: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise FeatureError(f"input {key!r} holds {type(value).__name__}; strings are needed")


def _assign_buckets(
    values: Array, present: npt.NDArray[np.bool_], boundaries: Sequence[float]
) -> npt.NDArray[np.int64]:
    """Return the number of boundaries at or below each value, 0 for an absent value; [n] in, int64 [n] out."""
    if np.issubdtype(values.dtype, np.integer):
        # Compare integers, so that no id above 2**53 is rounded: value >= boundary is value >= ceil(boundary).
        limits = [math.ceil(boundary) for boundary in boundaries]
        low, high = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
        edges = np.array([max(limit, low) for limit in limits if limit <= high], dtype=np.int64)
        buckets = np.searchsorted(edges, values.astype(np.int64, copy=False), side="right")
    else:
        numbers = values.astype(np.float64, copy=False)
        buckets = np.searchsorted(np.array(boundaries, dtype=np.float64), numbers, side="right")
        present = present & ~np.isnan(numbers)
    return np.where(present, buckets, 0).astype(np.int64)
