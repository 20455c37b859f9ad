"""What the features of a plan read, and whether the plan declares it."""

from typing import TypeAlias, assert_never

from tidegate_dataplane.contract import (
    Bucketize,
    Clip,
    Dwell,
    EntityKeyType,
    EventSequence,
    EventSession,
    Feature,
    FeaturePlan,
    FieldRef,
    Log,
    Lookup,
    Ratio,
    TimeSince,
    ValueOrigin,
    Window,
    list_references,
)
from tidegate_dataplane.features.errors import FeatureError

EventOperation: TypeAlias = EventSequence | Window | Ratio | TimeSince | EventSession | Dwell
"""Operations that read the events of a stream."""


def check_fields(plan: FeaturePlan) -> None:
    """Check that each feature reads only what the plan declares before it, and can.

    Raises:
        FeatureError: naming what is missing.
    """
    earlier: set[str] = set()
    for feature in plan.features:
        for reference in list_references(feature):
            _check_declared(plan, reference, earlier)
            _check_kind(plan, feature, reference)
        earlier.add(feature.name)


def _check_declared(plan: FeaturePlan, reference: FieldRef, earlier: set[str]) -> None:
    match reference.origin:
        case ValueOrigin.REQUEST:
            kind, names = "field of the request", {declared.name for declared in plan.request}
        case ValueOrigin.FEATURE:
            kind, names = "feature", earlier
        case ValueOrigin.STREAM:
            stream = next((stream for stream in plan.streams if stream.name == reference.stream), None)
            if stream is None:
                raise FeatureError(f"the plan names stream {reference.stream!r}, which it does not declare")
            kind = f"field of stream {stream.name!r}"
            names = {declared.name for declared in stream.fields} | {""}
        case None:
            if reference.entity not in {entity.name for entity in plan.entities}:
                raise FeatureError(f"the plan names entity {reference.entity!r}, which it does not declare")
            if reference.table is not None and reference.table not in {table.name for table in plan.tables}:
                raise FeatureError(f"the plan names table {reference.table!r}, which it does not declare")
            return
        case _:
            assert_never(reference.origin)
    if reference.column not in names:
        raise FeatureError(f"the plan names {kind} {reference.column!r}, which it does not declare")


def _check_kind(plan: FeaturePlan, feature: Feature, reference: FieldRef) -> None:
    over_events = isinstance(feature, EventOperation)
    if over_events != (reference.origin is ValueOrigin.STREAM):
        wants = "a field of a stream" if over_events else "one value per row"
        raise FeatureError(f"feature {feature.name!r} reads {reference.column!r}, and needs {wants}")
    is_key = reference.origin is None and reference.table is None
    if isinstance(feature, Lookup) and reference.table is None:
        raise FeatureError(f"feature {feature.name!r} looks up the key itself; name a column of a table")
    if isinstance(feature, Log | Clip) and reference.origin is None:
        raise FeatureError(
            f"feature {feature.name!r} reads {reference.column!r}, and needs a feature or a field of the request"
        )
    types = {entity.name: entity.type for entity in plan.entities}
    if isinstance(feature, Bucketize) and is_key and types[reference.entity] is EntityKeyType.STRING:
        raise FeatureError(f"feature {feature.name!r} bucketizes the string key {reference.column!r}")
