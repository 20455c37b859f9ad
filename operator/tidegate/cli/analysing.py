"""Read the objects that `tidegate analyze` checks, and report its findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import OF_PROBLEMS
from tidegate.api.messages.problem import Problem
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.cli.connection import connected
from tidegate.cli.manifests import Manifests, read_manifests
from tidegate.cli.options import Where
from tidegate.kube import kinds
from tidegate.operations.listing import Lister, ResourceT
from tidegate.planning.autoscalers import autoscaler_view
from tidegate.planning.findings import Finding, Objects, findings
from tidegate.reports.analysis import AnalysisReport, analysis


async def analyse(where: Where, files: Sequence[Path], suppressed: Collection[str]) -> AnalysisReport:
    """Return the findings about a namespace, or about all, as if `files` were applied.

    Raises TidegateError when the objects cannot be read.
    """
    async with connected(where) as (client, default_namespace):
        namespace = where.namespace or default_namespace
        manifests = read_manifests(files, namespace)
        # Manifests are checked together with the objects of their own namespaces.
        namespaces = {namespace} | {
            resource.key.namespace for resource in manifests.objects if resource.key.namespace
        }
        reader = Lister(client, ("",) if where.everywhere else sorted(namespaces))
        objects = Objects(
            inferences=await reader.read(kinds.INFERENCE, Inference),
            accesses=await reader.read(kinds.MODEL_ACCESS, ModelAccess),
            features=await reader.read(kinds.FEATURE_COMPUTE, FeatureCompute),
            pools=await reader.read(kinds.COMPUTE_POOL, ComputePool),
            overrides=await reader.read(kinds.COMPUTE_OVERRIDE, ComputeOverride),
            autoscalers=await _autoscalers(reader),
            unread=frozenset(reader.unread),
            unlisted=frozenset(reader.unlisted),
        )
        reader.check()
    planned = _overlaid(objects, manifests)
    problems = (*_refused(manifests), *findings(planned))
    if manifests.others:
        reader.skipped.append(f"{manifests.others} documents of other kinds in the files")
    looked_at = len(list(planned.all())) + len(manifests.refused)
    return analysis(problems, looked_at, suppressed=suppressed, skipped=reader.skipped)


async def analyse_files(files: Sequence[Path], namespace: str, suppressed: Collection[str]) -> AnalysisReport:
    """Return the findings about manifests alone, without reading a cluster.

    Raises PermanentError when a file cannot be read.
    """
    manifests = read_manifests(files, namespace)
    # Pools mostly belong to other people and are in other files.
    pools = any(isinstance(resource, ComputePool) for resource in manifests.objects)
    unlisted = frozenset[str]() if pools else frozenset({ComputePool.KIND})
    planned = _overlaid(Objects(unlisted=unlisted), manifests)
    placed = any(inference.spec.placement is not None for inference in planned.inferences)
    skipped = ["computepools: the files have none"] if placed and not pools else []
    if manifests.others:
        skipped.append(f"{manifests.others} documents of other kinds")
    looked_at = len(manifests.objects) + len(manifests.refused)
    problems = (*_refused(manifests), *findings(planned))
    return analysis(problems, looked_at, suppressed=suppressed, skipped=skipped)


async def _autoscalers(reader: Lister) -> dict[ObjectKey, str]:
    """Return the names of the autoscalers that target Inferences, by Inference."""
    names: dict[ObjectKey, str] = {}
    for body in await reader.bodies(kinds.HORIZONTAL_POD_AUTOSCALER):
        view = autoscaler_view(body)
        if view is not None:
            names[view.inference] = view.key.name
    return names


def _overlaid(objects: Objects, manifests: Manifests) -> Objects:
    """Return the objects as they would be after the manifests were applied."""
    planned = manifests.objects

    def overlay(existing: Sequence[ResourceT], kind: type[ResourceT]) -> tuple[ResourceT, ...]:
        merged = {resource.key: resource for resource in existing}
        for resource in planned:
            if isinstance(resource, kind):
                previous = merged.get(resource.key)
                merged[resource.key] = resource if previous is None else _as_old_as(resource, previous)
        return tuple(merged.values())

    return Objects(
        inferences=overlay(objects.inferences, Inference),
        accesses=overlay(objects.accesses, ModelAccess),
        features=overlay(objects.features, FeatureCompute),
        pools=overlay(objects.pools, ComputePool),
        overrides=overlay(objects.overrides, ComputeOverride),
        autoscalers=objects.autoscalers,
        planned=frozenset((resource.KIND, resource.key) for resource in planned),
        unlisted=objects.unlisted,
        unread=objects.unread | {(manifest.kind, manifest.key) for manifest in manifests.refused},
    )


def _as_old_as(one: ResourceT, before: ResourceT) -> ResourceT:
    """Return the manifest with the creation time of the object that it changes.

    Applying a manifest does not change the age of an object.
    """
    creation = {"creation_timestamp": before.metadata.creation_timestamp}
    return one.model_copy(update={"metadata": one.metadata.model_copy(update=creation)})


def _refused(manifests: Manifests) -> tuple[Finding, ...]:
    text = OF_PROBLEMS[Problem.MANIFEST_REFUSED]
    return tuple(
        Finding(Problem.MANIFEST_REFUSED.value, text, manifest.kind, manifest.key, manifest.message)
        for manifest in manifests.refused
    )
