"""Read what `tidegate top` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.operations.installation import release_of
from tidegate.operations.listing import Lister
from tidegate.operations.traffic import between, demand_of, gateways_between
from tidegate.reports.top import Busy, TopBy, TopInferences, TopPools, top_inferences, top_pools
from tidegate.telemetry.gateways import Gateway


@dataclass(frozen=True, slots=True)
class Measure:
    """How long to sample the gateways, and where: at these host:port, or by port forwards to those of a release."""

    window_s: float
    addresses: Sequence[str] = ()
    system: str | None = None
    """The namespace of the installation, needed if there are several."""


async def read_top_inferences(where: Where, measure: Measure, by: TopBy) -> TopInferences:
    """Return the busiest Inferences of a namespace, or of all. Raises TidegateError if they cannot be read."""
    async with connected(where) as (client, default_namespace):
        namespace = None if where.everywhere else where.namespace or default_namespace
        reader = Lister(client, (namespace or "",))
        inferences = await reader.read(kinds.INFERENCE, Inference)
        reader.check()
        accesses = await reader.read(kinds.MODEL_ACCESS, ModelAccess)
        pool_names = {
            inference.spec.placement.pool for inference in inferences if inference.spec.placement is not None
        }
        pools = await Lister(client, ("",)).read(kinds.COMPUTE_POOL, ComputePool)
        inputs = await _busy(
            client, measure, accesses, [pool for pool in pools if pool.metadata.name in pool_names]
        )
        return top_inferences(inferences, _with(inputs, reader), namespace, by)


async def read_top_pools(where: Where, measure: Measure) -> TopPools:
    """Return all pools, the fullest first. Raises TidegateError if they cannot be read."""
    async with connected(where) as (client, _):
        reader = Lister(client, ("",))
        pools = await reader.read(kinds.COMPUTE_POOL, ComputePool)
        reader.check()
        inferences = await reader.read(kinds.INFERENCE, Inference)
        accesses = await reader.read(kinds.MODEL_ACCESS, ModelAccess)
        decisions = await reader.read(kinds.ALLOCATION_DECISION, AllocationDecision)
        # A pool's row has no demand, so the allocator's is not read.
        inputs = await _busy(client, measure, accesses, ())
        return top_pools(pools, inferences, decisions, _with(inputs, reader))


async def _busy(
    client: KubeClient, measure: Measure, accesses: Sequence[ModelAccess], pools: Sequence[ComputePool]
) -> Busy:
    release, namespace = await release_of(client, measure.system)
    if measure.addresses:
        scrape = await between(
            [Gateway(address, address) for address in measure.addresses], accesses, measure.window_s
        )
    else:
        scrape = await gateways_between(client, release, namespace, accesses, measure.window_s)
    demand, notes = await demand_of(client, pools, release, namespace) if pools else ({}, ())
    return Busy(scrape, measure.window_s, datetime.now(UTC), demand, notes)


def _with(busy: Busy, reader: Lister) -> Busy:
    return replace(busy, notes=(*busy.notes, *(f"left out: {reason}" for reason in reader.skipped)))
