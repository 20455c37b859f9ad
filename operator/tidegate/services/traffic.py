"""Sample the gateways' statistics twice with the user's rights, and read the allocator's demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import POD
from tidegate.planning.access.traffic import SOURCE, compute_shares
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape
from tidegate.planning.pods import parse_pods
from tidegate.services.installation import INSTANCE_LABEL, TIDEGATE_SELECTOR
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import ScrapeTarget

METRICS_PORT: Final = 9902
_MAX_GATEWAYS: Final = 50
"""The most gateways to sample; further ones count as silent."""
_FORWARD_TIMEOUT: Final = timedelta(minutes=2)


async def sample_release_gateways(
    client: KubeClient, release: str, namespace: str, accesses: Sequence[ModelAccess], window_s: float
) -> MetricsScrape:
    """Sample the gateways of a release over some seconds, by port forwards to their pods.

    Return a failure if none is ready.
    """
    selector = f"{TIDEGATE_SELECTOR},{INSTANCE_LABEL}={release},app.kubernetes.io/component=gateway"
    try:
        bodies = await client.list(POD, namespace=namespace, selector=selector)
    except TidegateError as error:
        return _failed_scrape(str(error))
    ready = [view.key for view in parse_pods(bodies) if view.ready and not view.terminating]
    if not ready:
        return _failed_scrape(
            f"none of {len(bodies)} pods with the labels {selector} in namespace {namespace} is ready"
        )
    async with AsyncExitStack() as forwards:
        gateways = [
            ScrapeTarget(
                key.name,
                await forwards.enter_async_context(client.forward_port(key, METRICS_PORT, _FORWARD_TIMEOUT)),
            )
            for key in ready[:_MAX_GATEWAYS]
        ]
        scrape = await sample_gateways(gateways, accesses, window_s)
    beyond = tuple(key.name for key in ready[_MAX_GATEWAYS:])
    return MetricsScrape(
        scrape.source,
        scrape.by_key,
        scrape.window,
        silent_gateways=(*scrape.silent_gateways, *beyond),
        failure=_explain_failure(scrape),
    )


async def sample_gateways(
    gateways: Sequence[ScrapeTarget], accesses: Sequence[ModelAccess], window_s: float
) -> MetricsScrape:
    """Sample these gateways over some seconds."""
    shares = compute_shares(accesses)
    traffic = GatewayTraffic(lambda: gateways, lambda: shares)
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
    client: KubeClient, pools: Sequence[ComputePool], release: str, namespace: str
) -> tuple[Mapping[str, float], Sequence[str]]:
    """Return the allocator's requests per second by Inference, and why those of some pools are unknown."""
    # The solver takes a second to import, and only its input is needed here.
    from tidegate.allocation import codec
    from tidegate.services import what_if

    demand, notes = dict[str, float](), list[str]()
    for pool in pools:
        try:
            last = await what_if.fetch_from_leader(client, pool.metadata.name, release, namespace)
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


def _failed_scrape(failure: str) -> MetricsScrape:
    return MetricsScrape(SOURCE, dict[ObjectKey, InferenceMetrics](), timedelta(), failure=failure)
