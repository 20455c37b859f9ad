"""Keep what the shared features of a FeatureCompute were made of, so that its plan compiles while their owner's object is gone."""

import json
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.api.feature_compute import REQUEST_OWNER, FeatureCompute
from tidegate.api.feature_status import MAX_DEFINITION_CHARS, SharedDefinition
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.api.shared_names import SHARED_WITH_ANNOTATION
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.shared_features import (
    FindFeatures,
    SharedFeatureError,
    find_shared_feature,
    list_needed_names,
    list_read_names,
    resolve_shared,
)
from tidegate_dataplane.contract import FeaturePlan


@dataclass(frozen=True, slots=True)
class CompiledFeatures:
    """A FeatureCompute with the definitions of its shared features, and its plan."""

    features: FeatureCompute
    plan: FeaturePlan
    last: Mapping[ObjectKey, FeatureCompute] = field(default_factory=dict[ObjectKey, FeatureCompute])
    """The last usable definitions that count in the place of their FeatureComputes."""
    outdated: InvalidSpecError | None = None
    """Why some of them count; None if none do."""


def compile_features(features: FeatureCompute, find: FindFeatures) -> CompiledFeatures:
    """Resolve and compile `features`; where a shared feature cannot be used, with its last definition of the status.

    All features of one FeatureCompute have the present definition, or all the last one.
    Raises InvalidSpecError, SharedFeatureError among them, if there is no plan with either.
    """
    try:
        return _compile_with(features, find, {})
    except InvalidSpecError as error:
        return _compile_with_last(features, find, error)


def _compile_with(
    features: FeatureCompute, find: FindFeatures, last: Mapping[ObjectKey, FeatureCompute]
) -> CompiledFeatures:
    """Resolve and compile `features` with the definitions of `last` in the place of their FeatureComputes."""
    resolved = resolve_shared(features, lambda key: last.get(key) or find(key))
    return CompiledFeatures(resolved, compile_plan(resolved), last)


def _compile_with_last(
    features: FeatureCompute, find: FindFeatures, cause: InvalidSpecError
) -> CompiledFeatures:
    """Compile `features` with as few last definitions as mend `cause`, which is raised if none do."""
    last = _read_definitions(features)
    used: frozenset[ObjectKey] = frozenset()
    error = cause
    while choices := _list_choices(error, last.keys() - used):
        for chosen in choices:
            try:
                compiled = _compile_with(features, find, {key: last[key] for key in sorted(used | chosen)})
            except InvalidSpecError as problem:
                error = problem
            else:
                return replace(compiled, outdated=cause)
        used |= choices[-1]
    raise cause


def _list_choices(error: InvalidSpecError, unused: Collection[ObjectKey]) -> Sequence[frozenset[ObjectKey]]:
    """Return the FeatureComputes whose last definition may mend `error`: the one that it names, else each alone, then all."""
    origin = error.origin if isinstance(error, SharedFeatureError) else None
    if origin is not None:
        return [frozenset({origin})] if origin in unused else []
    alone = [frozenset({key}) for key in sorted(unused)]
    return [*alone, frozenset(unused)] if len(alone) > 1 else alone


def resolve_if_usable(features: FeatureCompute, find: FindFeatures) -> FeatureCompute:
    """Return `features` resolved; as it is if a shared feature cannot be used, and compile_plan then refuses it."""
    try:
        return compile_features(features, find).features
    except InvalidSpecError:
        pass
    try:
        return resolve_shared(features, find)
    except SharedFeatureError:
        return features


def _read_definitions(features: FeatureCompute) -> Mapping[ObjectKey, FeatureCompute]:
    """Return the last definitions of the status as objects that share with the namespace of `features`.

    One from which another feature is used by now is left out: its owner consented to what was used.
    """
    used_names = _list_used_names(features)
    definitions: dict[ObjectKey, FeatureCompute] = {}
    for item in features.status.shared_definitions:
        try:
            key = ObjectKey.parse(item.feature_compute)
            if not used_names.get(key, frozenset()) <= set(item.features):
                continue
            definitions[key] = FeatureCompute.model_validate(
                {
                    "metadata": {
                        "name": key.name,
                        "namespace": key.namespace,
                        "annotations": {SHARED_WITH_ANNOTATION: features.key.namespace},
                    },
                    "spec": json.loads(item.definition),
                }
            )
        except (ValueError, RecursionError):
            # Another release has written it.
            continue
    return definitions


@dataclass(frozen=True, slots=True)
class WrittenDefinitions:
    """The definitions of a status, and the FeatureComputes whose definition does not fit into it beside the others."""

    items: tuple[SharedDefinition, ...] = ()
    too_long: tuple[ObjectKey, ...] = ()


def write_definitions(
    features: FeatureCompute, compiled: CompiledFeatures, find: FindFeatures
) -> WrittenDefinitions:
    """Write what the shared features of `compiled` are made of, by the FeatureComputes that declare them.

    `features` is the object whose status has them.
    """
    items: list[SharedDefinition] = []
    too_long: list[ObjectKey] = []
    room = MAX_DEFINITION_CHARS
    for key, names in sorted(_list_used_names(features).items()):
        origin = compiled.last.get(key) or find(key)
        if origin is None:
            continue
        text = json.dumps(_select_definition(origin, names), separators=(",", ":"), sort_keys=True)
        if len(text) > room:
            too_long.append(key)
            continue
        room -= len(text)
        items.append(
            SharedDefinition(feature_compute=str(key), features=tuple(sorted(names)), definition=text)
        )
    return WrittenDefinitions(tuple(items), tuple(too_long))


def _list_used_names(features: FeatureCompute) -> Mapping[ObjectKey, AbstractSet[str]]:
    """Return the features that `features` uses by name, by the FeatureComputes that declare them."""
    names: dict[ObjectKey, set[str]] = {}
    for feature in features.spec.features:
        if (target := find_shared_feature(feature, features.key.namespace)) is not None:
            names.setdefault(target[0], set()).add(target[1])
    return names


def _select_definition(origin: FeatureCompute, names: Collection[str]) -> Mapping[str, Any]:
    """Return the parts of a spec that the features of these names are made of."""
    spec = origin.spec
    needed = list_needed_names(list_read_names(spec.features), names)
    features = [feature for feature in spec.features if feature.name in needed]
    references = [reference.partition(".") for feature in features for reference in feature.field_references]
    owners = {owner for owner, _, _ in references}
    sources = [source for source in spec.sources if source.name in owners]
    request = {column for owner, _, column in references if owner == REQUEST_OWNER}
    parts: Mapping[str, Sequence[ApiModel]] = {
        # A spec has at least one, and features of the request alone read none.
        "entities": spec.entities,
        "sources": sources,
        "request": [item for item in spec.request if item.name in request],
        "features": features,
    }
    return {name: [item.dump() for item in items] for name, items in parts.items()}
