"""Read the present load of pools and Inferences: traffic at the gateways, sampled twice, and the allocator's demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.planning.access.traffic import SOURCE
from tidegate.planning.access.value_classes import RouteDemands, SharedInferences, index_routes, index_shared
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape
from tidegate.reports.orders import TopOrder
from tidegate.reports.top import TopInferences, TopInputs, TopPools, report_inferences, report_pools
from tidegate.services.endpoints import list_ready_pods
from tidegate.services.installation import find_release, gateway_selector
from tidegate.services.listing import KindLister, list_foreign_targets, list_sharing_accesses
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import ScrapeTarget

if TYPE_CHECKING:
    from tidegate.services.what_if import LastSolverInput

METRICS_PORT: Final = 9902
_MAX_GATEWAYS: Final = 50
"""The most gateways to sample; further ones count as silent."""
_FORWARD_TIMEOUT: Final = timedelta(minutes=2)

FetchInput = Callable[[KubeClient, str, str, str], Awaitable["LastSolverInput"]]
"""Fetches the solver's last input about a pool from the leader of a release in a namespace; raises TidegateError."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """How to fetch the solver's last input, how long to sample the gateways, and where.

    That is at these host:port, or by port forwards to those of a release.
    """

    fetch_input: FetchInput
    window_s: float
    addresses: Sequence[str] = ()
    system_namespace: str | None = None
    """The namespace of the installation, needed if there are several."""


async def read_top_inferences(
    client: KubeClient, namespace: str | None, sampling: TopOptions, order: TopOrder, labels: str = ""
) -> TopInferences:
    """Return the busiest Inferences of a namespace, or of all for None, that have the labels. Raises TidegateError if they cannot be read."""
    reader = KindLister(client, (namespace or "",))
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference, selector=labels)
    reader.check_readable()
    accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
    elsewhere, skipped = await list_sharing_accesses(client, inferences, namespace or "")
    reader.skipped.extend(skipped)
    accesses = (*accesses, *elsewhere)
    # A target that is not shown takes its part of the requests all the same.
    targets, skipped = await list_foreign_targets(client, accesses if namespace or labels else ())
    reader.skipped.extend(skipped)
    routes = index_routes(accesses, _index_consent((*inferences, *targets)))
    pool_names = {
        share.name
        for inference in inferences
        if inference.spec.placement is not None
        for share in inference.spec.placement.pool_shares
    }
    pools = await KindLister(client, ("",)).list_parsed(kinds.COMPUTE_POOL, ComputePool)
    inputs = await _sample_traffic(
        client, sampling, routes, [pool for pool in pools if pool.metadata.name in pool_names]
    )
    return report_inferences(inferences, _with_skipped(inputs, reader), namespace, order)


async def read_top_pools(client: KubeClient, sampling: TopOptions, labels: str = "") -> TopPools:
    """Return the pools that have the labels, the fullest first. Raises TidegateError if they cannot be read."""
    reader = KindLister(client, ("",))
    pools = await reader.list_parsed(kinds.COMPUTE_POOL, ComputePool, selector=labels)
    reader.check_readable()
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
    accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
    decisions = await reader.list_parsed(kinds.ALLOCATION_DECISION, AllocationDecision)
    # A pool's row has no demand, so the allocator's is not read.
    routes = index_routes(accesses, _index_consent(inferences))
    inputs = await _sample_traffic(client, sampling, routes, ())
    return report_pools(pools, inferences, decisions, _with_skipped(inputs, reader))


def _index_consent(inferences: Iterable[Inference]) -> SharedInferences:
    return index_shared((inference.key, inference.metadata.annotations) for inference in inferences)


async def _sample_traffic(
    client: KubeClient, sampling: TopOptions, routes: RouteDemands, pools: Sequence[ComputePool]
) -> TopInputs:
    release, namespace = await find_release(client, sampling.system_namespace)
    if sampling.addresses:
        scrape = await sample_gateways(
            [ScrapeTarget(address, address) for address in sampling.addresses], routes, sampling.window_s
        )
    else:
        scrape = await sample_release_gateways(client, release, namespace, routes, sampling.window_s)
    demand, notes = (
        await read_demand(client, pools, release, namespace, sampling.fetch_input) if pools else ({}, ())
    )
    return TopInputs(scrape, sampling.window_s, datetime.now(UTC), demand, notes)


def _with_skipped(inputs: TopInputs, reader: KindLister) -> TopInputs:
    return replace(inputs, notes=(*inputs.notes, *(f"left out: {reason}" for reason in reader.skipped)))


async def sample_release_gateways(
    client: KubeClient, release: str, namespace: str, routes: RouteDemands, window_s: float
) -> MetricsScrape:
    """Sample the gateways of a release over some seconds, by port forwards to their pods.

    Return a failure if none is ready.
    """
    try:
        ready = await list_ready_pods(client, namespace, gateway_selector(release))
    except TidegateError as error:
        failure = str(error)
        return MetricsScrape(SOURCE, dict[ObjectKey, InferenceMetrics](), timedelta(), failure=failure)
    async with AsyncExitStack() as forwards:
        gateways = [
            ScrapeTarget(
                key.name,
                await forwards.enter_async_context(client.forward_port(key, METRICS_PORT, _FORWARD_TIMEOUT)),
            )
            for key in ready[:_MAX_GATEWAYS]
        ]
        scrape = await sample_gateways(gateways, routes, window_s)
    beyond = tuple(key.name for key in ready[_MAX_GATEWAYS:])
    return MetricsScrape(
        scrape.source,
        scrape.by_key,
        scrape.window,
        silent_gateways=(*scrape.silent_gateways, *beyond),
        failure=_explain_failure(scrape),
    )


async def sample_gateways(
    gateways: Sequence[ScrapeTarget], routes: RouteDemands, window_s: float
) -> MetricsScrape:
    """Sample these gateways over some seconds."""
    traffic = GatewayTraffic(lambda: gateways, lambda: routes)
    await traffic.scrape_signals()
    await asyncio.sleep(window_s)
    return await traffic.scrape_signals()


def _explain_failure(scrape: MetricsScrape) -> str:
    """Return the failure with the right that users most often lack.

    A port forward does not say why it fails.
    """
    return (
        f"{scrape.failure}; port forwards need the verbs get and create of pods/portforward"
        if scrape.failure
        else ""
    )


async def read_demand(
    client: KubeClient,
    pools: Sequence[ComputePool],
    release: str,
    namespace: str,
    fetch_input: FetchInput,
) -> tuple[Mapping[str, float], Sequence[str]]:
    """Return the allocator's requests per second by Inference, and why those of some pools are unknown."""
    # The solver takes a second to import, and only its input is needed here.
    from tidegate.allocation import codec

    demand, notes = dict[str, float](), list[str]()
    for pool in pools:
        try:
            last = await fetch_input(client, pool.metadata.name, release, namespace)
            snapshot = codec.decode_snapshot(last.snapshot)
        except (TidegateError, ValueError) as error:
            notes.append(f"the allocator's demand in ComputePool {pool.key} is unknown: {error}")
            continue
        demand.update(
            {
                inference.key: inference.load.rates[0]
                for inference in snapshot.inferences
                if inference.load is not None
            }
        )
    return demand, notes
