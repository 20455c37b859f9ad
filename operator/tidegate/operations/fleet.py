"""Read the fleet as far as the user may, and report it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tidegate import __version__
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.errors import TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.operations.installation import OURS
from tidegate.operations.listing import Lister
from tidegate.reports.fleet import Fleet, FleetReport, fleet

_VERSION = "app.kubernetes.io/version"


async def fleet_of(client: KubeClient, namespace: str | None, usual: str) -> FleetReport:
    """Report the objects of a namespace, or of all for None.

    A user who may not list all namespaces gets `usual` alone. Raises TidegateError if nothing can be read.
    """
    reader = Lister(client, (namespace or "",))
    inferences = await reader.read(kinds.INFERENCE, Inference)
    if namespace is None and Inference.KIND in reader.unlisted:
        refusals, namespace = reader.skipped, usual
        reader = Lister(client, (usual,))
        inferences = await reader.read(kinds.INFERENCE, Inference)
        reader.skipped[:0] = [f"other namespaces than {usual}: {reason}" for reason in refusals]
    inventory = Fleet(
        inferences=inferences,
        accesses=await reader.read(kinds.MODEL_ACCESS, ModelAccess),
        features=await reader.read(kinds.FEATURE_COMPUTE, FeatureCompute),
        pools=await reader.read(kinds.COMPUTE_POOL, ComputePool),
        overrides=await reader.read(kinds.COMPUTE_OVERRIDE, ComputeOverride),
        decisions=await reader.read(kinds.ALLOCATION_DECISION, AllocationDecision),
        versions=await _versions(client),
        skipped=reader.skipped,
    )
    reader.check()
    return fleet(inventory, datetime.now(UTC), __version__, namespace)


async def _versions(client: KubeClient) -> Mapping[str, str]:
    """Return the versions of the control plane's Deployments; empty for users who may not list them, as most."""
    try:
        deployments = await client.list(kinds.DEPLOYMENT, selector=OURS)
    except TidegateError:
        return {}
    return {
        f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}": deployment["metadata"][
            "labels"
        ].get(_VERSION, "")
        for deployment in deployments
    }
