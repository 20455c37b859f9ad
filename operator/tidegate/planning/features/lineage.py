"""Trace a feature to the tables, streams, keys and fields of the request that it is made of, and to what reads it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.feature_compute import (
    FEATURE_OWNER,
    REQUEST_OWNER,
    Feature,
    FeatureCompute,
    FeatureComputeSpec,
)
from tidegate.api.meta import ObjectKey
from tidegate.planning.features.shared_features import find_shared_feature


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
    """As in the spec, like `clicks.click`; a stream's name for an operation that reads whole events, and
    `<FeatureCompute>.<feature>` for a feature that another one declares."""
    owner: str
    """Name of the feature, the source, the entity or the field of the request; the whole reference to another's feature."""


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One line of a tree, in the order of reading."""

    depth: int
    """From 1; a step is below the last one before it with a smaller depth."""
    origin: Origin
    repeated: bool = False
    """Whether the feature is already in the tree, so that nothing below it is repeated."""


@dataclass(frozen=True, slots=True)
class SharedUse:
    """A feature that another FeatureCompute uses by name."""

    origin: ObjectKey
    feature: str
    user: ObjectKey
    name: str
    """What it is called there."""
    readers: tuple[str, ...]
    """Features that read it there, through others too."""

    @property
    def full_name(self) -> str:
        """Return the feature that the user has, like `feed/home.age`."""
        return f"{self.user}.{self.name}"


def find_shared_uses(features: Iterable[FeatureCompute]) -> tuple[SharedUse, ...]:
    """Return the features that `features` use by name, whether they exist or not."""
    return tuple(use for item in features for use in _list_shared_uses(item))


def _list_shared_uses(features: FeatureCompute) -> Iterator[SharedUse]:
    readers = index_readers(features.spec)
    for feature in features.spec.features:
        shared = find_shared_feature(feature, features.key.namespace)
        if shared is not None and not feature.is_hidden:
            yield SharedUse(*shared, features.key, feature.name, _collect_readers(readers, feature.name))


def index_operations(spec: FeatureComputeSpec) -> Mapping[str, Feature]:
    """Return the feature of each owner that an Origin of the kind Feature has."""
    visible = {item.name: item for item in spec.features if not item.is_hidden}
    return visible | {_name_shared(item): item for item in spec.features if item.shared is not None}


def resolve_origins(spec: FeatureComputeSpec, feature: str) -> tuple[Origin, ...]:
    """Return what a feature reads itself, for a shared one the feature that it is.

    Raises KeyError if the spec has no such feature.
    """
    return _list_origins(spec, feature, index_operations(spec)[feature])


def trace_reads(spec: FeatureComputeSpec, feature: str) -> tuple[LineageStep, ...]:
    """Return all that a feature is made of, through the features that it reads."""
    operations = index_operations(spec)

    def list_origins(name: str) -> Iterable[Origin]:
        return _list_origins(spec, name, operations[name]) if name in operations else ()

    return tuple(_walk_tree(list_origins, feature, 1, {feature}))


def trace_readers(spec: FeatureComputeSpec, feature: str) -> tuple[LineageStep, ...]:
    """Return the features that read a feature, and those that read these."""
    index = index_readers(spec)

    def list_readers(name: str) -> Iterable[Origin]:
        return (
            Origin(LineageKind.FEATURE, f"{FEATURE_OWNER}.{reader}", reader) for reader in index.get(name, ())
        )

    return tuple(_walk_tree(list_readers, feature, 1, {feature}))


def index_readers(spec: FeatureComputeSpec) -> Mapping[str, Sequence[str]]:
    """Return the features that read each feature themselves, in the order of the spec."""
    readers: dict[str, dict[str, None]] = {}
    for item in spec.features:
        for reference in item.field_references:
            owner, _, name = reference.partition(".")
            if owner == FEATURE_OWNER:
                readers.setdefault(name, {})[item.name] = None
    return {name: tuple(names) for name, names in readers.items()}


def list_source_names(steps: Sequence[LineageStep]) -> tuple[str, ...]:
    """Return the tables and streams among the steps, without repetition."""
    kinds = {LineageKind.TABLE, LineageKind.STREAM}
    return tuple(dict.fromkeys(step.origin.owner for step in steps if step.origin.kind in kinds))


def _collect_readers(readers: Mapping[str, Sequence[str]], feature: str) -> tuple[str, ...]:
    """Return all features that read a feature, through others too, in the order of trace_readers."""
    collected: dict[str, None] = {}
    waiting = list(reversed(readers.get(feature, ())))
    while waiting:
        name = waiting.pop()
        if name not in collected:
            collected[name] = None
            waiting.extend(reversed(readers.get(name, ())))
    return tuple(collected)


def _name_shared(feature: Feature) -> str:
    """Return a shared feature as its owner's FeatureCompute has it, like `ads/live.age`."""
    shared = feature.shared
    return "" if shared is None else f"{shared.feature_compute}.{shared.feature or feature.name}"


def _list_origins(spec: FeatureComputeSpec, name: str, feature: Feature) -> tuple[Origin, ...]:
    """Return what the owner `name` of index_operations reads itself."""
    if feature.shared is not None and name != _name_shared(feature):
        kind = LineageKind.FEATURE if feature.is_resolved else LineageKind.UNKNOWN
        return (Origin(kind, _name_shared(feature), _name_shared(feature)),)
    return tuple(_resolve_reference(spec, reference) for reference in dict.fromkeys(feature.field_references))


def _resolve_reference(spec: FeatureComputeSpec, reference: str) -> Origin:
    owner, _, column = reference.partition(".")
    if owner == FEATURE_OWNER:
        feature = next((feature for feature in spec.features if feature.name == column), None)
        if feature is not None and feature.is_hidden:
            return Origin(LineageKind.FEATURE, _name_shared(feature), _name_shared(feature))
        exists = feature is not None
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
