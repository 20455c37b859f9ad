"""Find problems of objects: of a cluster's, of those in files, or of both together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import PROBLEM_MESSAGES
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.planning.diagnosis.findings import Finding, ObjectSet, find_problems
from tidegate.planning.inference.autoscalers import parse_autoscaler
from tidegate.reports.analysis import AnalysisReport, report_findings
from tidegate.services.listing import KindLister, ResourceT
from tidegate.services.manifests import Manifests


async def analyse_cluster(
    client: KubeClient, namespace: str | None, manifests: Manifests, suppressed_codes: Collection[str]
) -> AnalysisReport:
    """Return the findings about a namespace, or about all for None, as if the manifests were applied.

    Raises TidegateError when the objects cannot be read.
    """
    # Manifests are checked together with the objects of their own namespaces.
    namespaces = {resource.key.namespace for resource in manifests.objects if resource.key.namespace}
    reader = KindLister(client, ("",) if namespace is None else sorted({namespace} | namespaces))
    objects = ObjectSet(
        inferences=await reader.list_parsed(kinds.INFERENCE, Inference),
        accesses=await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess),
        features=await reader.list_parsed(kinds.FEATURE_COMPUTE, FeatureCompute),
        pools=await reader.list_parsed(kinds.COMPUTE_POOL, ComputePool),
        overrides=await reader.list_parsed(kinds.COMPUTE_OVERRIDE, ComputeOverride),
        autoscalers=await _read_autoscalers(reader),
        unread=frozenset(reader.unread),
        unlisted=frozenset(reader.unlisted),
        namespaces=None if namespace is None else frozenset({namespace} | namespaces),
    )
    reader.check_readable()
    planned = _apply_manifests(objects, manifests)
    problems = (*_rejected_findings(manifests), *find_problems(planned))
    if manifests.other_kinds:
        reader.skipped.append(f"{_count_documents(manifests)} in the files")
    looked_at = len(list(planned.iterate())) + len(manifests.rejected)
    return report_findings(problems, looked_at, suppressed=suppressed_codes, skipped=reader.skipped)


def analyse_manifests(manifests: Manifests, suppressed_codes: Collection[str]) -> AnalysisReport:
    """Return the findings about manifests alone, without reading a cluster."""
    # Pools mostly belong to other people and are in other files.
    pools = any(isinstance(resource, ComputePool) for resource in manifests.objects)
    unlisted = frozenset[str]() if pools else frozenset({ComputePool.KIND})
    namespaces = frozenset(resource.key.namespace for resource in manifests.objects)
    planned = _apply_manifests(ObjectSet(unlisted=unlisted, namespaces=namespaces), manifests)
    placed = any(inference.spec.placement is not None for inference in planned.inferences)
    skipped = ["computepools: the files have none"] if placed and not pools else []
    if manifests.other_kinds:
        skipped.append(_count_documents(manifests))
    looked_at = len(manifests.objects) + len(manifests.rejected)
    problems = (*_rejected_findings(manifests), *find_problems(planned))
    return report_findings(problems, looked_at, suppressed=suppressed_codes, skipped=skipped)


async def _read_autoscalers(reader: KindLister) -> dict[ObjectKey, str]:
    """Return the names of the autoscalers that target Inferences, by Inference."""
    names: dict[ObjectKey, str] = {}
    for body in await reader.list_bodies(kinds.HORIZONTAL_POD_AUTOSCALER):
        view = parse_autoscaler(body)
        if view is not None:
            names[view.inference] = view.key.name
    return names


def _apply_manifests(objects: ObjectSet, manifests: Manifests) -> ObjectSet:
    """Return the objects as they would be after the manifests were applied."""
    planned = manifests.objects

    def overlay(existing: Sequence[ResourceT], kind: type[ResourceT]) -> tuple[ResourceT, ...]:
        merged = {resource.key: resource for resource in existing}
        for resource in planned:
            if isinstance(resource, kind):
                previous = merged.get(resource.key)
                merged[resource.key] = (
                    resource if previous is None else _with_creation_time(resource, previous)
                )
        return tuple(merged.values())

    return ObjectSet(
        inferences=overlay(objects.inferences, Inference),
        accesses=overlay(objects.accesses, ModelAccess),
        features=overlay(objects.features, FeatureCompute),
        pools=overlay(objects.pools, ComputePool),
        overrides=overlay(objects.overrides, ComputeOverride),
        autoscalers=objects.autoscalers,
        planned=frozenset((resource.KIND, resource.key) for resource in planned),
        unlisted=objects.unlisted,
        namespaces=objects.namespaces,
        unread=objects.unread | {(manifest.kind, manifest.key) for manifest in manifests.rejected},
    )


def _with_creation_time(resource: ResourceT, existing: ResourceT) -> ResourceT:
    """Return the manifest with the creation time of the object that it changes.

    Applying a manifest does not change the age of an object.
    """
    creation = {"creation_timestamp": existing.metadata.creation_timestamp}
    return resource.model_copy(update={"metadata": resource.metadata.model_copy(update=creation)})


def _count_documents(manifests: Manifests) -> str:
    """Return how many documents are of other kinds."""
    count = manifests.other_kinds
    return "1 document of another kind" if count == 1 else f"{count} documents of other kinds"


def _rejected_findings(manifests: Manifests) -> tuple[Finding, ...]:
    text = PROBLEM_MESSAGES[ProblemReason.MANIFEST_REFUSED]
    return tuple(
        Finding(ProblemReason.MANIFEST_REFUSED.value, text, manifest.kind, manifest.key, message)
        for manifest in manifests.rejected
        for message in manifest.messages
    )
