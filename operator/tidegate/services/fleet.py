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
from tidegate.reports.fleet import FleetObjects, FleetReport, report_fleet
from tidegate.services.installation import TIDEGATE_SELECTOR
from tidegate.services.listing import KindLister

_VERSION_LABEL = "app.kubernetes.io/version"


async def read_fleet(
    client: KubeClient, namespace: str | None, default_namespace: str, labels: str = ""
) -> FleetReport:
    """Report the objects of a namespace, or of all for None, and with `labels` only those that have them.

    Pools, and what the allocators decided, belong to all teams and are reported in any case.
    A user who may not list all namespaces gets `default_namespace` alone. Raises TidegateError if nothing can be read.
    """
    reader = KindLister(client, (namespace or "",))
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference, selector=labels)
    if namespace is None and Inference.KIND in reader.unlisted:
        refusals, namespace = reader.skipped, default_namespace
        reader = KindLister(client, (default_namespace,))
        inferences = await reader.list_parsed(kinds.INFERENCE, Inference, selector=labels)
        reader.skipped[:0] = [f"other namespaces than {default_namespace}: {reason}" for reason in refusals]
    inventory = FleetObjects(
        inferences=inferences,
        accesses=await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess, selector=labels),
        features=await reader.list_parsed(kinds.FEATURE_COMPUTE, FeatureCompute, selector=labels),
        pools=await reader.list_parsed(kinds.COMPUTE_POOL, ComputePool),
        overrides=await reader.list_parsed(kinds.COMPUTE_OVERRIDE, ComputeOverride),
        decisions=await reader.list_parsed(kinds.ALLOCATION_DECISION, AllocationDecision),
        versions=await _list_versions(client),
        skipped=reader.skipped,
    )
    reader.check_readable()
    return report_fleet(inventory, datetime.now(UTC), __version__, namespace)


async def _list_versions(client: KubeClient) -> Mapping[str, str]:
    """Return the versions of the control plane's Deployments; empty for users who may not list them, as most."""
    try:
        deployments = await client.list(kinds.DEPLOYMENT, selector=TIDEGATE_SELECTOR)
    except TidegateError:
        return {}
    return {
        f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}": deployment["metadata"][
            "labels"
        ].get(_VERSION_LABEL, "")
        for deployment in deployments
    }
