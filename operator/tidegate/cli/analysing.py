"""Reads what `tidegate analyze` looks at, and has it reported."""

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
    """What is wrong in a namespace, or everywhere, once `files` were applied. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, usual):
        namespace = where.namespace or usual
        manifests = read_manifests(files, namespace)
        # What a file is beside is what there is in its own namespace.
        places = {namespace} | {one.key.namespace for one in manifests.objects if one.key.namespace}
        reader = Lister(client, ("",) if where.everywhere else sorted(places))
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
    found = (*_refused(manifests), *findings(planned))
    if manifests.others:
        reader.skipped.append(f"{manifests.others} documents of other kinds in the files")
    looked_at = len(list(planned.all())) + len(manifests.refused)
    return analysis(found, looked_at, suppressed=suppressed, skipped=reader.skipped)


async def analyse_files(files: Sequence[Path], namespace: str, suppressed: Collection[str]) -> AnalysisReport:
    """What is wrong with files beside each other, whatever a cluster has. Raises PermanentError when they cannot be read."""
    manifests = read_manifests(files, namespace)
    # Pools are other people's, mostly, and in other files.
    pools = any(isinstance(one, ComputePool) for one in manifests.objects)
    unlisted = frozenset[str]() if pools else frozenset({ComputePool.KIND})
    planned = _overlaid(Objects(unlisted=unlisted), manifests)
    placed = any(one.spec.placement is not None for one in planned.inferences)
    skipped = ["computepools: the files have none"] if placed and not pools else []
    if manifests.others:
        skipped.append(f"{manifests.others} documents of other kinds")
    looked_at = len(manifests.objects) + len(manifests.refused)
    found = (*_refused(manifests), *findings(planned))
    return analysis(found, looked_at, suppressed=suppressed, skipped=skipped)


async def _autoscalers(reader: Lister) -> dict[ObjectKey, str]:
    """The names of those that scale Inferences, by the Inference."""
    found: dict[ObjectKey, str] = {}
    for body in await reader.bodies(kinds.HORIZONTAL_POD_AUTOSCALER):
        view = autoscaler_view(body)
        if view is not None:
            found[view.inference] = view.key.name
    return found


def _overlaid(objects: Objects, manifests: Manifests) -> Objects:
    """The objects as they would be once the manifests were applied."""
    planned = manifests.objects

    def laid(there: Sequence[ResourceT], kind: type[ResourceT]) -> tuple[ResourceT, ...]:
        after = {one.key: one for one in there}
        for one in planned:
            if isinstance(one, kind):
                before = after.get(one.key)
                after[one.key] = one if before is None else _as_old_as(one, before)
        return tuple(after.values())

    return Objects(
        inferences=laid(objects.inferences, Inference),
        accesses=laid(objects.accesses, ModelAccess),
        features=laid(objects.features, FeatureCompute),
        pools=laid(objects.pools, ComputePool),
        overrides=laid(objects.overrides, ComputeOverride),
        autoscalers=objects.autoscalers,
        planned=frozenset((one.KIND, one.key) for one in planned),
        unlisted=objects.unlisted,
        unread=objects.unread | {(each.kind, each.key) for each in manifests.refused},
    )


def _as_old_as(one: ResourceT, before: ResourceT) -> ResourceT:
    """What is changed by applying it stays as old as it was."""
    made = {"creation_timestamp": before.metadata.creation_timestamp}
    return one.model_copy(update={"metadata": one.metadata.model_copy(update=made)})


def _refused(manifests: Manifests) -> tuple[Finding, ...]:
    text = OF_PROBLEMS[Problem.MANIFEST_REFUSED]
    return tuple(
        Finding(Problem.MANIFEST_REFUSED.value, text, each.kind, each.key, each.message)
        for each in manifests.refused
    )
