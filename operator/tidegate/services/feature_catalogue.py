"""Read FeatureComputes with the pipelines that call them, from a cluster or from manifests, and report their features."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from tidegate.reports.feature_lineage import FeatureExplanation, explain_features
from tidegate.reports.feature_list import FeatureListReport, report_feature_list
from tidegate.reports.feature_usage import FeatureUsage
from tidegate.services.listing import KindLister
from tidegate.services.manifests import read_manifests

_MAX_SUGGESTIONS: Final = 3

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class FeatureCatalogue:
    """FeatureComputes of a namespace, or of all, and what was read about their users."""

    namespace: str
    """Empty means all."""
    features: Sequence[FeatureCompute]
    usage: FeatureUsage
    skipped: Sequence[str] = ()


async def read_catalogue(client: KubeClient, namespace: str) -> FeatureCatalogue:
    """Read a namespace, all for the empty one. Raises TidegateError if the FeatureComputes cannot be read."""
    reader = KindLister(client, (namespace,))
    features = await reader.list_parsed(kinds.FEATURE_COMPUTE, FeatureCompute)
    reader.check_readable()
    accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
    # Without the Inferences, every pipeline would be reported as calling models that do not exist.
    is_known = reader.unlisted.isdisjoint({ModelAccess.KIND, Inference.KIND})
    usage = find_usage(features, accesses, inferences) if is_known else FeatureUsage(is_known=False)
    return FeatureCatalogue(namespace, features, usage, tuple(reader.skipped))


def load_catalogue(manifest: Path, namespace: str) -> FeatureCatalogue:
    """Read manifests; `namespace` is that of objects that name none. Raises PermanentError if they cannot be read.

    Inferences of manifests have no status, so the models of their pipelines are not known.
    """
    manifests = read_manifests((manifest,), namespace)
    features = _select_kind(manifests.objects, FeatureCompute)
    accesses = _select_kind(manifests.objects, ModelAccess)
    inferences = _select_kind(manifests.objects, Inference)
    skipped = tuple(
        f"{item.kind} {item.key}: {message}" for item in manifests.rejected for message in item.messages
    )
    return FeatureCatalogue("", features, find_usage(features, accesses, inferences), skipped)


def find_usage(
    features: Iterable[FeatureCompute], accesses: Sequence[ModelAccess], inferences: Iterable[Inference]
) -> FeatureUsage:
    """Return which of the models take which features."""
    lookup = CalleeLookup(
        {item.key: item for item in inferences}.get,
        {item.key: item for item in features}.get,
        {item.key: item for item in accesses}.get,
    )
    return FeatureUsage(find_pipeline_uses(accesses, lookup))


def list_features(catalogue: FeatureCatalogue) -> FeatureListReport:
    """Report all features of a catalogue."""
    return report_feature_list(
        catalogue.features,
        catalogue.usage,
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
    return explain_features(item, explained, catalogue.usage, skipped=catalogue.skipped)


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
        message = f'FeatureCompute "{key.name}" not found{place}{_suggest_features(catalogue, key)}'
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
    return _suggest_names(key.name, [item.key.name for item in catalogue.features])


def _find_feature(item: FeatureCompute, name: str) -> Feature:
    feature = next((feature for feature in item.spec.features if feature.name == name), None)
    if feature is None:
        suggestion = _suggest_names(name, [feature.name for feature in item.spec.features])
        message = f'FeatureCompute {item.key} has no feature "{name}"{suggestion}'
        raise PermanentError(message)
    return feature


def _suggest_names(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=_MAX_SUGGESTIONS)
    if close:
        return f"; similar names: {', '.join(close)}"
    return f"; there is {', '.join(sorted(names))}" if names else "; there is none"
