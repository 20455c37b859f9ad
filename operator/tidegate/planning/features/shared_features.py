"""Resolve the features that a FeatureCompute uses by name from others: their definitions and sources become part of its plan."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic.alias_generators import to_snake

from tidegate.api.event_streams import SourceStream
from tidegate.api.feature_compute import (
    FEATURE_OWNER,
    REQUEST_OWNER,
    Feature,
    FeatureCompute,
    FeatureComputeSpec,
    FeatureSource,
)
from tidegate.api.feature_operations import SharedOperation, rename_references
from tidegate.api.feature_status import MAX_FEATURES, MAX_SOURCES
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import (
    describe_absence,
    format_shared_name,
    is_shared_with,
    resolve_shared_name,
)
from tidegate.errors import InvalidSpecError
from tidegate_dataplane.contract import UriScheme, find_scheme

FindFeatures: TypeAlias = Callable[[ObjectKey], FeatureCompute | None]
"""Return a FeatureCompute as its owner wrote it, None if there is none."""

_CLIENT_FIELDS: Final = frozenset({"secret_name", "sasl"})
"""Fields of a broker that belong to its client."""
_SCHEMES_WITH_LOGIN: Final = frozenset({UriScheme.HTTPS, UriScheme.OCI})
"""Schemes of tables whose host, which the URI names, gets a token or a password."""


class SharedFeatureError(InvalidSpecError):
    """Shared feature that cannot be used, the reason for the condition, and the FeatureCompute that declares the feature."""

    origin: ObjectKey | None = None
    """None if the error is about a feature that reads shared ones."""

    def __init__(self, message: str, *, path: str, reason: Reason = Reason.PLAN_INVALID) -> None:
        super().__init__(message, path=path)
        self.reason = reason


def list_shared_keys(features: FeatureCompute) -> tuple[ObjectKey, ...]:
    """Return the FeatureComputes whose features `features` uses by name, sorted and without repetition."""
    namespace = features.key.namespace
    shared = (feature.shared for feature in features.spec.features)
    return tuple(
        sorted({resolve_shared_name(item.feature_compute, namespace) for item in shared if item is not None})
    )


def find_shared_feature(feature: Feature, namespace: str) -> tuple[ObjectKey, str] | None:
    """Return the FeatureCompute and the name of the feature that `feature` of `namespace` is; None if it is declared itself."""
    shared = feature.shared
    if shared is None:
        return None
    return resolve_shared_name(shared.feature_compute, namespace), shared.feature or feature.name


def resolve_shared(features: FeatureCompute, find: FindFeatures) -> FeatureCompute:
    """Return `features` with the operation of each shared feature, the features that it reads, and their sources.

    The features that are only read come first and are hidden: they are no outputs. Sources follow those of the spec.
    A shared feature has both its `shared` and the operation. The result is for planning, and no object of the API.
    Raises SharedFeatureError for a feature that cannot be used.
    """
    spec = features.spec
    if all(feature.is_resolved for feature in spec.features):
        return features
    resolution = _Resolution(features)
    visible = tuple(
        feature
        if feature.shared is None or feature.is_resolved
        else resolution.resolve_feature(feature, feature.shared, find, f"spec.features[{index}].shared")
        for index, feature in enumerate(spec.features)
    )
    _check_own_references(spec, {source.name for source in resolution.copied})
    resolved = spec.model_copy(
        update={
            "features": (*resolution.hidden.values(), *visible),
            "sources": (*spec.sources, *resolution.copied),
        }
    )
    return features.model_copy(update={"spec": resolved})


def _check_own_references(spec: FeatureComputeSpec, copied: Collection[str]) -> None:
    """Raise SharedFeatureError for a feature of the spec that reads a source which only shared features have brought."""
    for index, feature in enumerate(spec.features):
        for reference in feature.field_references:
            if reference.partition(".")[0] in copied:
                message = f"'{reference}' is of a source that only shared features read here: declare it in spec.sources too"
                raise SharedFeatureError(message, path=f"spec.features[{index}].{feature.operation_name}")


class _Resolution:
    """What the shared features of one FeatureCompute have added so far."""

    def __init__(self, features: FeatureCompute) -> None:
        self._spec = features.spec
        self._key = features.key
        self.namespace = features.key.namespace
        self.hidden: dict[str, Feature] = {}
        self.copied: list[FeatureSource] = []
        self._names: dict[str, str] = {}
        """Names of the sources by their keys."""
        for source in self._spec.sources:
            self._names.setdefault(_make_source_key(source), source.name)
        self._scopes: dict[ObjectKey, _OriginScope] = {}

    def resolve_feature(
        self, feature: Feature, shared: SharedOperation, find: FindFeatures, path: str
    ) -> Feature:
        """Return `feature` with the operation that the other FeatureCompute declares."""
        try:
            return self._copy_shared(feature, shared, find, path)
        except SharedFeatureError as error:
            error.origin = resolve_shared_name(shared.feature_compute, self.namespace)
            raise

    def _copy_shared(
        self, feature: Feature, shared: SharedOperation, find: FindFeatures, path: str
    ) -> Feature:
        origin = self._find_origin(shared, find, path)
        name = shared.feature or feature.name
        title = f"FeatureCompute {shared.feature_compute}"
        if origin.key not in self._scopes:
            self._scopes[origin.key] = _OriginScope(self, origin)
        scope = self._scopes[origin.key]
        if name not in scope.features:
            message = f"{title} has no feature {name}; it has {', '.join(scope.features)}"
            raise SharedFeatureError(message, path=path)
        scope.begin_feature(f"feature {name} of {title}", path)
        for needed in scope.list_read(name):
            hidden_name = _hide_name(origin.key, needed.name)
            if hidden_name not in self.hidden:
                reference = SharedOperation(feature_compute=shared.feature_compute, feature=needed.name)
                hidden = scope.copy_feature(needed, hidden_name)
                self.hidden[hidden_name] = hidden.model_copy(update={"shared": reference})
                self._check_limit("features", len(self._spec.features) + len(self.hidden), MAX_FEATURES, path)
            scope.add_readable(needed)
        return scope.copy_feature(scope.features[name], feature.name).model_copy(update={"shared": shared})

    def _check_limit(self, kind: str, count: int, limit: int, path: str) -> None:
        """Raise SharedFeatureError once there are too many: other people's FeatureComputes decide how many follow."""
        if count > limit:
            message = f"with what the shared features read there are more than {limit} {kind}, and no more are possible: use fewer"
            raise SharedFeatureError(message, path=path)

    def _find_origin(self, shared: SharedOperation, find: FindFeatures, path: str) -> FeatureCompute:
        key = resolve_shared_name(shared.feature_compute, self.namespace)
        if key == self._key:
            message = (
                f"FeatureCompute {shared.feature_compute} is this one: read {FEATURE_OWNER}.<name> instead"
            )
            raise SharedFeatureError(message, path=path)
        origin = find(key)
        if (
            origin is None
            or origin.metadata.deletion_timestamp is not None
            or not is_shared_with(origin, self.namespace)
        ):
            absence = describe_absence(FeatureCompute, shared.feature_compute, self.namespace)
            raise SharedFeatureError(absence, path=path, reason=Reason.TARGET_NOT_FOUND)
        return origin

    def check_entity(self, origin: FeatureCompute, name: str, title: str, path: str) -> None:
        """Raise SharedFeatureError if the spec does not have an entity of the origin."""
        entity = next(item for item in origin.spec.entities if item.name == name)
        own = next((item for item in self._spec.entities if item.name == name), None)
        if entity != own:
            difference = "" if own is None else f", not {own.key} of type {own.type.value}"
            message = (
                f"{title} is of entity {name} with key {entity.key} of type {entity.type.value}{difference}: declare the same in "
                "spec.entities, because keys are inputs of every request"
            )
            raise SharedFeatureError(message, path=path)

    def check_request(self, origin: FeatureCompute, name: str, title: str, path: str) -> None:
        """Raise SharedFeatureError if the spec does not have a field of the request that the origin has."""
        field = next((item for item in origin.spec.request if item.name == name), None)
        own = next((item for item in self._spec.request if item.name == name), None)
        if field is None or field != own:
            kind = f" of type {field.type.value}" if field is not None else ""
            message = f"{title} reads {REQUEST_OWNER}.{name}{kind}: declare it in spec.request, because it is an input of every request"
            raise SharedFeatureError(message, path=path)

    def use_source(self, origin: FeatureCompute, source: FeatureSource, title: str, path: str) -> str:
        """Return the name of the source here: that of an equal one, or of a copy."""
        self.check_entity(origin, source.entity, title, path)
        is_foreign = origin.key.namespace != self.namespace
        present_name = self._names.get(_make_source_key(source))
        scheme = find_scheme(source.table.uri) if source.table is not None else None
        if is_foreign and scheme is UriScheme.PVC and source.table is not None:
            message = (
                f"{title} reads table {source.name} at {source.table.uri}, a volume of namespace {origin.key.namespace}, which no pod "
                f"of {self.namespace} can mount: its owner can publish the table in an object store"
            )
            raise SharedFeatureError(message, path=path)
        if present_name is not None:
            return present_name
        self._check_name(source, (*self._spec.sources, *self.copied), title, path)
        if is_foreign and scheme in _SCHEMES_WITH_LOGIN and source.table is not None:
            message = (
                f"{title} reads table {source.name} at {source.table.uri}, whose host would get the credentials of this namespace: "
                "declare the table in spec.sources if you trust the host"
            )
            raise SharedFeatureError(message, path=path)
        if is_foreign and _has_secret(source.stream):
            message = (
                f"{title} reads stream {source.name} with a Secret of namespace {origin.key.namespace}, which no pod of "
                f"{self.namespace} can mount: declare {source.name} in spec.sources with a Secret of this namespace, and else as "
                f"{origin.key} does"
            )
            raise SharedFeatureError(message, path=path)
        # The dead letters of its events are written by the pods of its owner.
        stream = source.stream and source.stream.model_copy(update={"dead_letters": None})
        self.copied.append(source.model_copy(update={"stream": stream}))
        self._check_limit("sources", len(self._spec.sources) + len(self.copied), MAX_SOURCES, path)
        self._names[_make_source_key(source)] = source.name
        return source.name

    def _check_name(
        self, source: FeatureSource, present: Sequence[FeatureSource], title: str, path: str
    ) -> None:
        other = next((item for item in present if item.name == source.name), None)
        if other is not None:
            differences = ", ".join(_list_differences(other, source))
            owner = "spec.sources" if other in self._spec.sources else "another shared feature"
            remedy = (
                f"give yours another name, or the same {differences}"
                if other in self._spec.sources
                else "declare one of the two in spec.sources, under another name and else as its owner does"
            )
            message = f"{title} reads another source {source.name} than that of {owner}, with a different {differences}: {remedy}"
            raise SharedFeatureError(message, path=path)
        if any(entity.name == source.name for entity in self._spec.entities):
            message = (
                f"{title} reads source {source.name}, which is also the name of an entity here: declare the source in spec.sources "
                "under another name, and else as its owner does"
            )
            raise SharedFeatureError(message, path=path)


class _OriginScope:
    """What the references of one FeatureCompute's features mean in the FeatureCompute that uses one of them."""

    def __init__(self, resolution: _Resolution, origin: FeatureCompute) -> None:
        self._resolution = resolution
        self._origin = origin
        self._title, self._path = "", ""
        self.features = {feature.name: feature for feature in origin.spec.features}
        self._reads = list_read_names(origin.spec.features)
        self._sources = {source.name: source for source in origin.spec.sources}
        self._entities = {entity.name for entity in origin.spec.entities}
        self._readable: set[str] = set()
        self._used: dict[str, str] = {}

    def begin_feature(self, title: str, path: str) -> None:
        """Begin with a shared feature, which errors name; none is readable yet."""
        self._title, self._path = title, path
        self._readable.clear()

    def list_read(self, name: str) -> Sequence[Feature]:
        """Return the features that a feature reads, through others too, in the order of the spec."""
        return [self.features[needed] for needed in list_needed_names(self._reads, {name}) if needed != name]

    def add_readable(self, feature: Feature) -> None:
        """Let features below this one read it."""
        self._readable.add(feature.name)

    def copy_feature(self, feature: Feature, name: str) -> Feature:
        """Return a feature of the origin under another name, with references that are right here."""
        if not feature.is_resolved and feature.shared is not None:
            key = resolve_shared_name(feature.shared.feature_compute, self._origin.key.namespace)
            owner = format_shared_name(key, self._resolution.namespace)
            message = (
                f"{self._title} is made of {feature.shared.feature or feature.name} of FeatureCompute {owner}, and a feature is shared "
                f"only by the FeatureCompute that declares it: use {owner} itself"
            )
            raise SharedFeatureError(message, path=self._path)
        operation = rename_references(feature.configured_operation, self._rename_reference)
        return feature.model_copy(update={"name": name, to_snake(feature.operation_name): operation})

    def _rename_reference(self, reference: str) -> str:
        owner, dot, column = reference.partition(".")
        if owner == FEATURE_OWNER:
            if column not in self._readable:
                message = (
                    f"{self._title} reads feature {column}, which is not declared above it: its plan does not compile, "
                    "as its own condition PlanCompiled says"
                )
                raise SharedFeatureError(message, path=self._path)
            return f"{owner}.{_hide_name(self._origin.key, column)}"
        if owner == REQUEST_OWNER:
            self._resolution.check_request(self._origin, column, self._title, self._path)
            return reference
        if owner in self._sources:
            if owner not in self._used:
                source = self._sources[owner]
                self._used[owner] = self._resolution.use_source(self._origin, source, self._title, self._path)
            return f"{self._used[owner]}{dot}{column}"
        if owner in self._entities:
            self._resolution.check_entity(self._origin, owner, self._title, self._path)
            return reference
        message = (
            f"{self._title} reads source {owner}, which is not declared there: its plan does not compile"
        )
        raise SharedFeatureError(message, path=self._path)


def list_read_names(features: Iterable[Feature]) -> Mapping[str, frozenset[str]]:
    """Return the names of the features that each feature reads itself, by its name and in their order."""
    return {
        feature.name: frozenset(
            column
            for owner, _, column in (reference.partition(".") for reference in feature.field_references)
            if owner == FEATURE_OWNER
        )
        for feature in features
    }


def list_needed_names(reads: Mapping[str, Collection[str]], names: Collection[str]) -> Sequence[str]:
    """Return `names` and what they read, through others too, in the order of `reads`: each reads those above it."""
    needed = set(names)
    selected: list[str] = []
    for name in reversed(tuple(reads)):
        if name in needed:
            selected.append(name)
            needed.update(reads[name])
    return selected[::-1]


def _hide_name(origin: ObjectKey, feature: str) -> str:
    return f"{origin}.{feature}"


def _describe_source(source: FeatureSource) -> dict[str, object]:
    """Return what a source is by field, without its name, Secrets, dead letters and how a table is refreshed."""
    if source.table is not None:
        return {"entity": source.entity, "uri": source.table.uri, "sha256": source.table.sha256}
    assert source.stream is not None  # noqa: S101  a source is one of the two
    client = set(_CLIENT_FIELDS)
    left_out: dict[str, Any] = {"dead_letters": True, "nats": client, "kafka": client}
    return {"entity": source.entity, **source.stream.model_dump(mode="json", by_alias=True, exclude=left_out)}


def _make_source_key(source: FeatureSource) -> str:
    """Return a text that is equal for two sources without differences."""
    return json.dumps(_describe_source(source))


def _list_differences(source: FeatureSource, other: FeatureSource) -> tuple[str, ...]:
    """Return the fields in which two sources differ."""
    first, second = _describe_source(source), _describe_source(other)
    if first.keys() != second.keys():
        return (*(("entity",) if source.entity != other.entity else ()), "kind")
    return tuple(name for name, value in first.items() if value != second[name])


def _has_secret(stream: SourceStream | None) -> bool:
    if stream is None:
        return False
    brokers: Iterable[object] = (stream.nats, stream.kafka)
    return any(getattr(broker, "secret_name", None) is not None for broker in brokers)
