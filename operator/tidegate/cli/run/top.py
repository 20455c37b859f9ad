"""Read what `tidegate top` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.reports.top import TopInferences, TopInputs, TopOrder, TopPools, report_inferences, report_pools
from tidegate.services.installation import find_release
from tidegate.services.listing import KindLister
from tidegate.services.traffic import read_demand, sample_gateways, sample_release_gateways
from tidegate.telemetry.gateways import ScrapeTarget


@dataclass(frozen=True, slots=True)
class TopOptions:
    """How long to sample the gateways, and where: at these host:port, or by port forwards to those of a release."""

    window_s: float
    addresses: Sequence[str] = ()
    system_namespace: str | None = None
    """The namespace of the installation, needed if there are several."""


async def read_top_inferences(options: KubeOptions, sampling: TopOptions, order: TopOrder) -> TopInferences:
    """Return the busiest Inferences of a namespace, or of all. Raises TidegateError if they cannot be read."""
    async with open_client(options) as (client, default_namespace):
        namespace = None if options.everywhere else options.namespace or default_namespace
        reader = KindLister(client, (namespace or "",))
        inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
        reader.check_readable()
        accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
        pool_names = {
            inference.spec.placement.pool for inference in inferences if inference.spec.placement is not None
        }
        pools = await KindLister(client, ("",)).list_parsed(kinds.COMPUTE_POOL, ComputePool)
        inputs = await _sample_traffic(
            client, sampling, accesses, [pool for pool in pools if pool.metadata.name in pool_names]
        )
        return report_inferences(inferences, _with_skipped(inputs, reader), namespace, order)


async def read_top_pools(options: KubeOptions, sampling: TopOptions) -> TopPools:
    """Return all pools, the fullest first. Raises TidegateError if they cannot be read."""
    async with open_client(options) as (client, _):
        reader = KindLister(client, ("",))
        pools = await reader.list_parsed(kinds.COMPUTE_POOL, ComputePool)
        reader.check_readable()
        inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
        accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
        decisions = await reader.list_parsed(kinds.ALLOCATION_DECISION, AllocationDecision)
        # A pool's row has no demand, so the allocator's is not read.
        inputs = await _sample_traffic(client, sampling, accesses, ())
        return report_pools(pools, inferences, decisions, _with_skipped(inputs, reader))


async def _sample_traffic(
    client: KubeClient, sampling: TopOptions, accesses: Sequence[ModelAccess], pools: Sequence[ComputePool]
) -> TopInputs:
    release, namespace = await find_release(client, sampling.system_namespace)
    if sampling.addresses:
        scrape = await sample_gateways(
            [ScrapeTarget(address, address) for address in sampling.addresses], accesses, sampling.window_s
        )
    else:
        scrape = await sample_release_gateways(client, release, namespace, accesses, sampling.window_s)
    demand, notes = await read_demand(client, pools, release, namespace) if pools else ({}, ())
    return TopInputs(scrape, sampling.window_s, datetime.now(UTC), demand, notes)


def _with_skipped(inputs: TopInputs, reader: KindLister) -> TopInputs:
    return replace(inputs, notes=(*inputs.notes, *(f"left out: {reason}" for reason in reader.skipped)))
