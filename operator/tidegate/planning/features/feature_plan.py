"""Compile a FeatureCompute's spec into the plan that the feature engine runs, online and offline alike."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.feature_compute import Feature, FeatureCompute, FeatureComputeSpec, FeatureSource, KeyType
from tidegate.api.feature_operations import (
    BucketizeOperation,
    ClipOperation,
    CrossOperation,
    HashOperation,
    LogOperation,
    LookupOperation,
    SharedOperation,
    ValueType,
)
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.event_operations import (
    compile_event_operation,
    make_dead_letters,
    make_event_stream,
)
from tidegate.planning.features.field_scope import REQUEST_DTYPES, FieldScope, make_output
from tidegate_dataplane import contract

_KEY_TYPES: Mapping[KeyType, str] = {KeyType.INT64: "INT64", KeyType.STRING: "BYTES"}
_VALUE_TYPES: Mapping[ValueType, str] = {ValueType.INT64: "INT64", ValueType.FLOAT32: "FP32"}
_MAX_EXACT: Final = 2**53
"""Largest whole number up to which a float64 has every one."""


def compile_plan(features: FeatureCompute) -> contract.FeaturePlan:
    """Return the plan of `features`, with its inputs, outputs and hash.

    Shared features must have been resolved. Inputs are the keys of the entities and the fields of the request that some
    feature reads, in the spec's order.
    Raises InvalidSpecError for a feature that cannot be computed, and for names that mean two tensors.
    """
    spec = features.spec
    scope = FieldScope(spec)
    compiled: list[contract.Feature] = []
    outputs: list[contract.TensorSpec] = []
    for path, feature in _locate_features(spec):
        operation, output = _compile_feature(feature, scope, path)
        scope.add_feature(output)
        compiled.append(operation)
        if not feature.is_hidden:
            outputs.append(output)
    references = [reference for feature in compiled for reference in contract.list_references(feature)]
    read = {name for reference in references for name in (reference.table, reference.stream)}
    sources = [source for source in spec.sources if source.name in read]
    used = {reference.entity for reference in references}
    entities = tuple(
        contract.Entity(name=entity.name, key=entity.key, type=contract.EntityKeyType(entity.type.value))
        for entity in spec.entities
        if entity.name in used
    )
    inputs = {item.column for item in references if item.origin is contract.ValueOrigin.REQUEST}
    request = tuple(
        contract.RequestField(name=field.name, type=field.type)
        for field in spec.request
        if field.name in inputs
    )
    plan = contract.FeaturePlan(
        entities=entities,
        tables=tuple(table for source in sources if (table := _make_table(source)) is not None),
        streams=(streams := _make_streams(spec, sources)),
        dead_letters=tuple(
            letters for source in sources if (letters := make_dead_letters(source)) is not None
        ),
        store=_make_store(features) if streams else None,
        request=request,
        features=tuple(compiled),
        inputs=(
            *(
                contract.TensorSpec(
                    name=entity.key, dtype=_KEY_TYPES[KeyType(entity.type.value)], shape=(-1, 1)
                )
                for entity in entities
            ),
            *(
                contract.TensorSpec(name=field.name, dtype=REQUEST_DTYPES[field.type], shape=(-1, 1))
                for field in request
            ),
        ),
        outputs=tuple(outputs),
    )
    _check_names(spec, plan)
    return plan.model_copy(update={"hash": plan.compute_digest()})


def list_marked_features(plan: contract.FeaturePlan) -> frozenset[str]:
    """Return the features that may lack the newest events of streams that could not be read.

    That is the case with a Redis. A feature may read events by way of other features.
    """
    reading: set[str] = set()
    for feature in plan.features if plan.store is not None else ():
        if any(
            reference.origin is contract.ValueOrigin.STREAM
            or (reference.origin is contract.ValueOrigin.FEATURE and reference.column in reading)
            for reference in contract.list_references(feature)
        ):
            reading.add(feature.name)
    return frozenset(reading)


def list_marks(plan: contract.FeaturePlan, used: Collection[str]) -> tuple[contract.TensorSpec, ...]:
    """Return the output that names streams that could not be read, if one of the `used` features may lack their newest events."""
    if list_marked_features(plan).isdisjoint(used):
        return ()
    return (contract.TensorSpec(name=contract.NOT_CURRENT, dtype="BYTES", shape=(-1, 1)),)


def _locate_features(spec: FeatureComputeSpec) -> Iterator[tuple[str, Feature]]:
    """Yield each feature with the place of its operation, which is in another object if the feature is shared."""
    index = 0
    for feature in spec.features:
        operation, shared = feature.operation_name, feature.shared
        if shared is not None and feature.is_resolved:
            name = shared.feature or feature.name
            path = f"feature {name} of FeatureCompute {shared.feature_compute}: {operation}"
        else:
            path = f"spec.features[{index}].{operation}"
        yield path, feature
        index += not feature.is_hidden


def _make_streams(
    spec: FeatureComputeSpec, sources: Sequence[FeatureSource]
) -> tuple[contract.EventStream, ...]:
    keys = {entity.name: entity.key for entity in spec.entities}
    streams = (
        make_event_stream(source, keys[source.entity], f"spec.sources[{spec.sources.index(source)}]")
        for source in sources
    )
    return tuple(stream for stream in streams if stream is not None)


def _make_store(features: FeatureCompute) -> contract.RedisStore | None:
    redis = features.spec.store.redis if features.spec.store is not None else None
    if redis is None:
        return None
    return contract.RedisStore(
        address=redis.address,
        secret=redis.secret_name or "",
        tls=redis.tls,
        key_prefix=redis.key_prefix or str(features.key),
        timeout_ms=parse_duration(redis.timeout) // timedelta(milliseconds=1),
    )


def _make_table(source: FeatureSource) -> contract.FeatureTable | None:
    table = source.table
    if table is None:
        return None
    refresh = None
    if table.refresh is not None:
        interval_ms = parse_duration(table.refresh) // timedelta(milliseconds=1)
        refresh = contract.TableRefresh(
            interval_ms=interval_ms,
            min_keys_percent=table.min_keys_percent,
            max_keys_percent=table.max_keys_percent,
        )
    return contract.FeatureTable(
        name=source.name, entity=source.entity, uri=table.uri, sha256=table.sha256, refresh=refresh
    )


def _compile_feature(
    feature: Feature, scope: FieldScope, path: str
) -> tuple[contract.Feature, contract.TensorSpec]:
    """Return a feature of the plan with its output; `path` is the operation's place in the spec."""
    name, field_path = feature.name, f"{path}.field"
    match feature.configured_operation:
        case CrossOperation(fields=references, buckets=buckets):
            fields = tuple(
                scope.resolve_value(reference, f"{path}.fields[{index}]")
                for index, reference in enumerate(references)
            )
            return contract.Cross(name=name, fields=fields, buckets=buckets), make_output(name, "INT64")
        case HashOperation(field=reference, buckets=buckets, padded=padded):
            field = scope.resolve_value(reference, field_path)
            hashed = contract.Hash(name=name, field=field, buckets=buckets, padded=padded)
            return hashed, make_output(name, "INT64")
        case BucketizeOperation() as bucketize:
            return _compile_bucketize(name, bucketize, scope, field_path), make_output(name, "INT64")
        case LookupOperation() as lookup:
            output = make_output(name, _VALUE_TYPES[lookup.type], lookup.length or 1)
            return _compile_lookup(name, lookup, scope, field_path), output
        case LogOperation(field=reference):
            field, _ = scope.resolve_number(reference, field_path)
            return contract.Log(name=name, field=field), make_output(name, "FP32")
        case ClipOperation() as clip:
            return _compile_clip(name, clip, scope, path)
        case SharedOperation(feature_compute=owner, feature=feature_there):
            message = (
                f"feature {feature_there or name} of FeatureCompute {owner} cannot be used here; the condition PlanCompiled has "
                "the cause"
            )
            raise InvalidSpecError(message, path=path)
        case operation:
            return compile_event_operation(name, operation, scope, path)


def _compile_lookup(name: str, lookup: LookupOperation, scope: FieldScope, path: str) -> contract.Lookup:
    return contract.Lookup(
        name=name,
        field=scope.resolve_column(lookup.field, path),
        type=contract.LookupType(lookup.type.value),
        length=lookup.length,
        default=lookup.default,
    )


def _compile_bucketize(
    name: str, bucketize: BucketizeOperation, scope: FieldScope, path: str
) -> contract.Bucketize:
    field = scope.resolve_value(bucketize.field, path)
    if field.origin is not None:
        scope.resolve_number(bucketize.field, path)
    return contract.Bucketize(name=name, field=field, boundaries=bucketize.boundaries)


def _compile_clip(
    name: str, clip: ClipOperation, scope: FieldScope, path: str
) -> tuple[contract.Clip, contract.TensorSpec]:
    field, dtype = scope.resolve_number(clip.field, f"{path}.field")
    for bound, value in (("min", clip.min), ("max", clip.max)):
        if dtype == "INT64" and not (value.is_integer() and abs(value) <= _MAX_EXACT):
            message = f"'{clip.field}' is an INT64, so its bounds must be whole numbers of at most 2^53"
            raise InvalidSpecError(message, path=f"{path}.{bound}")
    operation = contract.Clip(name=name, field=field, minimum=clip.min, maximum=clip.max)
    return operation, make_output(name, dtype)


def _check_names(spec: FeatureComputeSpec, plan: contract.FeaturePlan) -> None:
    """Raise InvalidSpecError for a name of two inputs, of a request field and a feature, or for a reserved name."""
    inputs = Counter(tensor.name for tensor in plan.inputs)
    names = [feature.name for feature in spec.features if not feature.is_hidden]
    places = [
        *((f"spec.entities[{index}].key", entity.key) for index, entity in enumerate(spec.entities)),
        *((f"spec.request[{index}].name", field.name) for index, field in enumerate(spec.request)),
        *((f"spec.features[{index}].name", name) for index, name in enumerate(names)),
    ]
    has_streams = any(source.stream is not None for source in spec.sources)
    outputs = {tensor.name for tensor in plan.outputs}
    request = {field.name for field in plan.request}
    for path, name in reversed(places):
        if has_streams and name == contract.AS_OF:
            message = (
                f"'{name}' is the input with the time of a request, if there are streams: choose another name"
            )
            raise InvalidSpecError(message, path=path)
        if has_streams and name == contract.NOT_CURRENT:
            message = (
                f"'{name}' is the output with the streams that could not be read, if there are streams: "
                "choose another name"
            )
            raise InvalidSpecError(message, path=path)
        if inputs[name] > 1:
            message = f"'{name}' would be two inputs of every request: choose another name"
            raise InvalidSpecError(message, path=path)
        if name in request and name in outputs:
            message = f"'{name}' is a field of the request and a feature: choose another name"
            raise InvalidSpecError(message, path=path)
