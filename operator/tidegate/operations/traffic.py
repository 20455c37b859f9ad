"""Looks twice at the gateways' own pages of statistics, with the rights of whoever asks, and reads what the allocator goes by."""

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
"""Gateways that are asked at most; those beyond count as silent."""
_FORWARD: Final = timedelta(minutes=2)


async def gateways_between(
    client: KubeClient, release: str, namespace: str, accesses: Sequence[ModelAccess], window_s: float
) -> Look:
    """What the gateways of a release counted in so many seconds, by port forwards to their pods; a failure where there are none."""
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
        look = await between(gateways, accesses, window_s)
    beyond = tuple(key.name for key in ready[_MOST:])
    return Look(look.source, look.by_key, look.window, silent=(*look.silent, *beyond), failure=_why(look))


async def between(gateways: Sequence[Gateway], accesses: Sequence[ModelAccess], window_s: float) -> Look:
    """What these gateways counted in so many seconds."""
    shares = shares_of(accesses)
    traffic = GatewayTraffic(lambda: gateways, lambda: shares)
    await traffic.look()
    await asyncio.sleep(window_s)
    return await traffic.look()


def _why(look: Look) -> str:
    """A port forward says nothing of why it carries nothing; the right to it is what most lack."""
    return f"{look.failure}; it takes the verbs get and create of pods/portforward" if look.failure else ""


async def demand_of(
    client: KubeClient, pools: Sequence[ComputePool], release: str, namespace: str
) -> tuple[Mapping[str, float], Sequence[str]]:
    """By Inference, what the allocator takes its requests per second to be; and why that is not known of some pools."""
    # The solver takes a second to import, and is only needed to read what it was asked.
    from tidegate.allocation import codec
    from tidegate.operations import what_if

    demand, notes = dict[str, float](), list[str]()
    for pool in pools:
        try:
            last = await what_if.of_leader(client, pool.metadata.name, release, namespace)
            snapshot = codec.decode_snapshot(last.snapshot)
        except (TidegateError, ValueError) as error:
            notes.append(
                f"what the allocator takes demand to be is not known of ComputePool {pool.key}: {error}"
            )
            continue
        demand.update({each.key: each.load.rates[0] for each in snapshot.inferences if each.load is not None})
    return demand, notes


def _failed(why: str) -> Look:
    return Look(SOURCE, dict[ObjectKey, Reading](), timedelta(), failure=why)
