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
from tidegate.operations.installation import INSTANCE, OURS
from tidegate.planning.pods import pod_views
from tidegate.planning.signals import Look, Reading
from tidegate.planning.traffic import SOURCE, shares_of
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import Gateway

METRICS_PORT: Final = 9902
_MOST: Final = 50
"""The most gateways to sample; further ones count as silent."""
_FORWARD: Final = timedelta(minutes=2)


async def gateways_between(
    client: KubeClient, release: str, namespace: str, accesses: Sequence[ModelAccess], window_s: float
) -> Look:
    """Sample the gateways of a release over some seconds, by port forwards to their pods.

    Return a failure if none is ready.
    """
    selector = f"{OURS},{INSTANCE}={release},app.kubernetes.io/component=gateway"
    try:
        bodies = await client.list(POD, namespace=namespace, selector=selector)
    except TidegateError as error:
        return _failed(str(error))
    ready = [view.key for view in pod_views(bodies) if view.ready and not view.terminating]
    if not ready:
        return _failed(
            f"none of {len(bodies)} pods with the labels {selector} in namespace {namespace} is ready"
        )
    async with AsyncExitStack() as forwards:
        gateways = [
            Gateway(
                key.name, await forwards.enter_async_context(client.forwarded(key, METRICS_PORT, _FORWARD))
            )
            for key in ready[:_MOST]
        ]
        scrape = await between(gateways, accesses, window_s)
    beyond = tuple(key.name for key in ready[_MOST:])
    return Look(
        scrape.source, scrape.by_key, scrape.window, silent=(*scrape.silent, *beyond), failure=_why(scrape)
    )


async def between(gateways: Sequence[Gateway], accesses: Sequence[ModelAccess], window_s: float) -> Look:
    """Sample these gateways over some seconds."""
    shares = shares_of(accesses)
    traffic = GatewayTraffic(lambda: gateways, lambda: shares)
    await traffic.look()
    await asyncio.sleep(window_s)
    return await traffic.look()


def _why(look: Look) -> str:
    """Return the failure with the right that users most often lack.

    A port forward does not say why it fails.
    """
    return (
        f"{look.failure}; port forwards need the verbs get and create of pods/portforward"
        if look.failure
        else ""
    )


async def demand_of(
    client: KubeClient, pools: Sequence[ComputePool], release: str, namespace: str
) -> tuple[Mapping[str, float], Sequence[str]]:
    """Return the allocator's requests per second by Inference, and why those of some pools are unknown."""
    # The solver takes a second to import, and only its input is needed here.
    from tidegate.allocation import codec
    from tidegate.operations import what_if

    demand, notes = dict[str, float](), list[str]()
    for pool in pools:
        try:
            last = await what_if.of_leader(client, pool.metadata.name, release, namespace)
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


def _failed(why: str) -> Look:
    return Look(SOURCE, dict[ObjectKey, Reading](), timedelta(), failure=why)
