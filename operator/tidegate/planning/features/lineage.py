"""Trace a feature to the tables, streams, keys and fields of the request that it is made of, and to what reads it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.feature_compute import FEATURE_OWNER, REQUEST_OWNER, FeatureComputeSpec


class LineageKind(StrEnum):
    """What a feature can read."""

    FEATURE = "Feature"
    TABLE = "Table"
    STREAM = "Stream"
    KEY = "Key"
    """The key of an entity, which each request has."""
    REQUEST = "Request"
    """A field of the request that is no key."""
    UNKNOWN = "Unknown"
    """The spec declares nothing of that name, so the plan does not compile."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a reference of a feature means."""

    kind: LineageKind
    reference: str
    """As in the spec, like `clicks.click`; a stream's name for an operation that reads whole events."""
    owner: str
    """Name of the feature, the source, the entity or the field of the request."""


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One line of a tree, in the order of reading."""

    depth: int
    """From 1; a step is below the last one before it with a smaller depth."""
    origin: Origin
    repeated: bool = False
    """Whether the feature is already in the tree, so that nothing below it is repeated."""


def resolve_origins(spec: FeatureComputeSpec, feature: str) -> tuple[Origin, ...]:
    """Return what a feature reads itself. Raises KeyError if the spec has no such feature."""
    features = {item.name: item for item in spec.features}
    return tuple(
        _resolve_reference(spec, reference) for reference in dict.fromkeys(features[feature].field_references)
    )


def trace_reads(spec: FeatureComputeSpec, feature: str) -> tuple[LineageStep, ...]:
    """Return all that a feature is made of, through the features that it reads."""
    names = {item.name for item in spec.features}

    def list_origins(name: str) -> Iterable[Origin]:
        return resolve_origins(spec, name) if name in names else ()

    return tuple(_walk_tree(list_origins, feature, 1, {feature}))


def trace_readers(spec: FeatureComputeSpec, feature: str) -> tuple[LineageStep, ...]:
    """Return the features that read a feature, and those that read these."""

    def list_readers(name: str) -> Iterable[Origin]:
        return (
            Origin(LineageKind.FEATURE, f"{FEATURE_OWNER}.{reader}", reader)
            for reader in find_reading_features(spec, name)
        )

    return tuple(_walk_tree(list_readers, feature, 1, {feature}))


def find_reading_features(spec: FeatureComputeSpec, feature: str) -> tuple[str, ...]:
    """Return the features that read a feature themselves, in the order of the spec."""
    reference = f"{FEATURE_OWNER}.{feature}"
    return tuple(item.name for item in spec.features if reference in item.field_references)


def list_source_names(steps: Sequence[LineageStep]) -> tuple[str, ...]:
    """Return the tables and streams among the steps, without repetition."""
    kinds = {LineageKind.TABLE, LineageKind.STREAM}
    return tuple(dict.fromkeys(step.origin.owner for step in steps if step.origin.kind in kinds))


def _resolve_reference(spec: FeatureComputeSpec, reference: str) -> Origin:
    owner, _, column = reference.partition(".")
    if owner == FEATURE_OWNER:
        exists = any(feature.name == column for feature in spec.features)
        return Origin(LineageKind.FEATURE if exists else LineageKind.UNKNOWN, reference, column)
    if owner == REQUEST_OWNER:
        exists = any(field.name == column for field in spec.request)
        return Origin(LineageKind.REQUEST if exists else LineageKind.UNKNOWN, reference, column)
    for source in spec.sources:
        if source.name == owner:
            kind = LineageKind.TABLE if source.table is not None else LineageKind.STREAM
            return Origin(kind, reference, owner)
    if any(entity.name == owner for entity in spec.entities):
        return Origin(LineageKind.KEY, reference, owner)
    return Origin(LineageKind.UNKNOWN, reference, owner)


def _walk_tree(
    list_children: Callable[[str], Iterable[Origin]], name: str, depth: int, expanded: set[str]
) -> Iterator[LineageStep]:
    """Yield what is below a feature; each feature is expanded once, so the tree is not larger than the spec."""
    for origin in list_children(name):
        if origin.kind is not LineageKind.FEATURE:
            yield LineageStep(depth, origin)
            continue
        repeated = origin.owner in expanded
        yield LineageStep(depth, origin, repeated)
        if not repeated:
            expanded.add(origin.owner)
            yield from _walk_tree(list_children, origin.owner, depth + 1, expanded)
