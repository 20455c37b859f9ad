"""Compile a FeatureCompute's spec into the plan that the feature engine runs, online and offline alike."""

from collections.abc import Mapping

from tidegate.api.feature_compute import (
    CrossOperation,
    Feature,
    FeatureCompute,
    HashOperation,
    KeyType,
    LookupOperation,
    ValueType,
)
from tidegate.errors import InvalidSpecError
from tidegate_dataplane import contract

_KEY_TYPES: Mapping[KeyType, str] = {KeyType.INT64: "INT64", KeyType.STRING: "BYTES"}
_VALUE_TYPES: Mapping[ValueType, str] = {ValueType.INT64: "INT64", ValueType.FLOAT32: "FP32"}


def compile_plan(features: FeatureCompute) -> contract.FeaturePlan:
    """Return the plan of `features`, with its inputs, outputs and hash.

    Inputs are the keys of the entities that some feature reads, in the spec's order.
    Raises InvalidSpecError for a lookup of an entity's key, which is no column.
    """
    scope = _FieldScope(features)
    compiled = tuple(
        _compile_feature(feature, scope, f"spec.features[{index}]")
        for index, feature in enumerate(features.spec.features)
    )
    used = {reference.entity for feature in compiled for reference in _list_references(feature)}
    entities = tuple(
        contract.Entity(name=entity.name, key=entity.key, type=contract.EntityKeyType(entity.type.value))
        for entity in features.spec.entities
        if entity.name in used
    )
    read = {reference.table for feature in compiled for reference in _list_references(feature)}
    plan = contract.FeaturePlan(
        entities=entities,
        tables=tuple(
            contract.FeatureTable(
                name=source.name, entity=source.entity, uri=source.table.uri, sha256=source.table.sha256
            )
            for source in features.spec.sources
            if source.name in read
        ),
        features=compiled,
        inputs=tuple(
            contract.TensorSpec(name=entity.key, dtype=_KEY_TYPES[KeyType(entity.type.value)], shape=(-1, 1))
            for entity in entities
        ),
        outputs=tuple(_make_output_spec(feature) for feature in features.spec.features),
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})


class _FieldScope:
    """Fields that `<source>.<column>` and `<entity>.<key>` refer to in one FeatureCompute."""

    def __init__(self, features: FeatureCompute) -> None:
        self._entities = {entity.name: entity for entity in features.spec.entities}
        self._sources = {source.name: source for source in features.spec.sources}

    def resolve_field(self, reference: str) -> contract.FieldRef:
        """Return the field behind `<owner>.<column>`.

        The kind's own validation has rejected references to unknown names.
        """
        owner, column = reference.split(".", 1)
        if (source := self._sources.get(owner)) is not None:
            return contract.FieldRef(entity=source.entity, table=source.name, column=column)
        return contract.FieldRef(entity=self._entities[owner].name, column=column)


def _compile_feature(feature: Feature, scope: _FieldScope, path: str) -> contract.Feature:
    (operation,) = feature.configured_operations
    if isinstance(operation, CrossOperation):
        fields = tuple(scope.resolve_field(reference) for reference in operation.fields)
        return contract.Cross(name=feature.name, fields=fields, buckets=operation.buckets)
    if isinstance(operation, HashOperation):
        field = scope.resolve_field(operation.field)
        return contract.Hash(name=feature.name, field=field, buckets=operation.buckets)
    if isinstance(operation, LookupOperation):
        field = scope.resolve_field(operation.field)
        if field.table is None:
            message = f"'{operation.field}' is an entity's key, not a column: use hash, or name a source"
            raise InvalidSpecError(message, path=f"{path}.lookup.field")
        return contract.Lookup(
            name=feature.name,
            field=field,
            type=contract.LookupType(operation.type.value),
            length=operation.length,
            default=operation.default,
        )
    field = scope.resolve_field(operation.field)
    return contract.Bucketize(name=feature.name, field=field, boundaries=operation.boundaries)


def _list_references(feature: contract.Feature) -> tuple[contract.FieldRef, ...]:
    return feature.fields if isinstance(feature, contract.Cross) else (feature.field,)


def _make_output_spec(feature: Feature) -> contract.TensorSpec:
    lookup = feature.lookup
    if lookup is None:
        return contract.TensorSpec(name=feature.name, dtype="INT64", shape=(-1, 1))
    return contract.TensorSpec(
        name=feature.name, dtype=_VALUE_TYPES[lookup.type], shape=(-1, lookup.length or 1)
    )
