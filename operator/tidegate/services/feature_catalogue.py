"""Read FeatureComputes with the pipelines and the Jobs that use them, from a cluster or from manifests, and report their features."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from tidegate.api.feature_compute import Feature, FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import PermanentError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.planning.access.callees import CalleeLookup
from tidegate.planning.access.feature_uses import find_pipeline_uses
from tidegate.planning.features.feature_jobs import find_feature_jobs
from tidegate.planning.features.lineage import find_shared_uses
from tidegate.reports.feature_lineage import FeatureExplanation, explain_features
from tidegate.reports.feature_list import FeatureListReport, report_feature_list
from tidegate.reports.feature_usage import FeatureUsage
from tidegate.services.listing import KindLister, list_foreign_origins
from tidegate.services.manifests import read_manifests

_MAX_SUGGESTIONS: Final = 3
_NO_STATUS: Final = "manifests have no status, which has the inputs of the models"

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class FeatureCatalogue:
    """FeatureComputes of a namespace, or of all, and what was read about their users."""

    namespace: str
    """Empty means all."""
    features: Sequence[FeatureCompute]
    usage: FeatureUsage
    skipped: Sequence[str] = ()
    origins: Sequence[FeatureCompute] = ()
    """FeatureComputes of other namespaces that share features with some of these, as far as they could be read."""

    def index_features(self) -> Mapping[ObjectKey, FeatureCompute]:
        """Return the FeatureComputes of the catalogue, and those that share features with some of them."""
        return {item.key: item for item in (*self.origins, *self.features)}


async def read_catalogue(client: KubeClient, namespace: str) -> FeatureCatalogue:
    """Read a namespace, all for the empty one. Raises TidegateError if the FeatureComputes cannot be read."""
    reader = KindLister(client, (namespace,))
    features = await reader.list_parsed(kinds.FEATURE_COMPUTE, FeatureCompute)
    reader.check_readable()
    origins, skipped = await list_foreign_origins(client, features) if namespace else ((), ())
    reader.skipped.extend(skipped)
    accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
    # Without the Inferences, every pipeline would be reported as calling models that do not exist.
    is_known = reader.unlisted.isdisjoint({ModelAccess.KIND, Inference.KIND})
    usage = (
        find_usage(features, accesses, inferences, origins)
        if is_known
        else FeatureUsage(
            jobs=find_feature_jobs(features, inferences), shared=find_shared_uses(features), is_known=False
        )
    )
    usage = replace(usage, namespace=namespace)
    return FeatureCatalogue(namespace, features, usage, tuple(reader.skipped), origins)


def load_catalogue(files: Sequence[Path], namespace: str, *, selected: str = "") -> FeatureCatalogue:
    """Read manifests; `namespace` is that of objects that name none, and `selected` that to read, empty for all.

    Manifests have no status, so the models of their pipelines are unknown.
    Raises PermanentError if files cannot be read, or have an object twice.
    """
    manifests = read_manifests(files, namespace)
    objects = [item for item in manifests.objects if selected in {"", item.key.namespace}]
    _check_unique(objects)
    features = _select_kind(objects, FeatureCompute)
    origins = [item for item in _select_kind(manifests.objects, FeatureCompute) if item not in features]
    usage = find_usage(features, _select_kind(objects, ModelAccess), ())
    jobs = find_feature_jobs(features, _select_kind(objects, Inference))
    pipelines = [replace(use, models=(), problem=_NO_STATUS) for use in usage.pipelines]
    skipped = tuple(
        f"{item.kind} {item.key}: {message}"
        for item in manifests.rejected
        if selected in {"", item.key.namespace}
        for message in item.messages
    )
    return FeatureCatalogue(
        selected,
        features,
        FeatureUsage(pipelines, jobs, usage.shared, is_known=False, namespace=selected),
        skipped,
        origins,
    )


def find_usage(
    features: Sequence[FeatureCompute],
    accesses: Sequence[ModelAccess],
    inferences: Sequence[Inference],
    origins: Sequence[FeatureCompute] = (),
) -> FeatureUsage:
    """Return which of the models take which features, which Jobs compute them, and which FeatureComputes use them by name.

    `origins` are FeatureComputes elsewhere whose features `features` use.
    """
    lookup = CalleeLookup(
        {item.key: item for item in inferences}.get,
        {item.key: item for item in (*origins, *features)}.get,
        {item.key: item for item in accesses}.get,
    )
    jobs = find_feature_jobs(features, inferences)
    return FeatureUsage(find_pipeline_uses(accesses, lookup), jobs, find_shared_uses(features))


def list_features(catalogue: FeatureCatalogue) -> FeatureListReport:
    """Report all features of a catalogue."""
    return report_feature_list(
        catalogue.features,
        catalogue.usage,
        catalogue.index_features().get,
        namespace=catalogue.namespace or None,
        skipped=catalogue.skipped,
    )


def explain_feature(catalogue: FeatureCatalogue, key: ObjectKey, feature: str) -> FeatureExplanation:
    """Explain one feature of a FeatureCompute, or all for the empty name.

    A key without a namespace means the only FeatureCompute of that name.
    Raises PermanentError with the nearest names if there is none, and if several namespaces have one.
    """
    item = _find_features(catalogue, key)
    explained = item.spec.features if not feature else (_find_feature(item, feature),)
    find = catalogue.index_features().get
    return explain_features(item, explained, catalogue.usage, find, skipped=catalogue.skipped)


def _check_unique(objects: Iterable[CustomResource]) -> None:
    counts = Counter((item.KIND, item.key) for item in objects)
    for (kind, key), count in counts.items():
        if count > 1:
            message = f"the files have {count} manifests of {kind} {key}: keep the right one"
            raise PermanentError(message)


def _select_kind(objects: Iterable[CustomResource], kind: type[ResourceT]) -> tuple[ResourceT, ...]:
    return tuple(item for item in objects if isinstance(item, kind))


def _find_features(catalogue: FeatureCatalogue, key: ObjectKey) -> FeatureCompute:
    matches = [
        item
        for item in catalogue.features
        if item.key.name == key.name and key.namespace in {"", item.key.namespace}
    ]
    if len(matches) > 1:
        names = " or ".join(str(item.key) for item in matches)
        message = f"there are {len(matches)} FeatureComputes with that name: use {names}"
        raise PermanentError(message)
    if not matches:
        place = f" in namespace {key.namespace}" if key.namespace else ""
        skipped = f"; left out: {'; '.join(catalogue.skipped)}" if catalogue.skipped else ""
        message = f'FeatureCompute "{key.name}" not found{place}{_suggest_features(catalogue, key)}{skipped}'
        raise PermanentError(message)
    return matches[0]


def _suggest_features(catalogue: FeatureCatalogue, key: ObjectKey) -> str:
    """Return the nearest names; if `key` names a feature, which FeatureComputes have it."""
    owners = [
        f"{item.key}.{key.name}"
        for item in catalogue.features
        if any(feature.name == key.name for feature in item.spec.features)
    ]
    if owners:
        return f"; it is a feature: {', '.join(owners)}"
    return _suggest_keys(key.name, [item.key for item in catalogue.features])


def _suggest_keys(name: str, keys: Sequence[ObjectKey]) -> str:
    close = difflib.get_close_matches(name, {key.name for key in keys}, n=_MAX_SUGGESTIONS)
    similar = [str(key) for similar_name in close for key in sorted(keys) if key.name == similar_name]
    return _format_suggestions(similar[:_MAX_SUGGESTIONS], sorted(map(str, keys)))


def _find_feature(item: FeatureCompute, name: str) -> Feature:
    feature = next((feature for feature in item.spec.features if feature.name == name), None)
    if feature is None:
        names = [feature.name for feature in item.spec.features]
        close = difflib.get_close_matches(name, names, n=_MAX_SUGGESTIONS)
        suggestion = _format_suggestions(close, sorted(names))
        message = f'FeatureCompute {item.key} has no feature "{name}"{suggestion}'
        raise PermanentError(message)
    return feature


def _format_suggestions(similar: Sequence[str], names: Sequence[str]) -> str:
    if similar:
        return f"; similar names: {', '.join(similar)}"
    return f"; there is {', '.join(names)}" if names else "; there is none"
