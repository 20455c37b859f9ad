"""Reads what `tidegate history` and `tidegate why` are about, and has it reported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.cli.reports.decision import HistoryReport, history
from tidegate.cli.reports.why import InferenceReport, PoolReport, Seen, why_inference, why_pool
from tidegate.cli.targets import Named, Target, find, named
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import ALLOCATION_DECISION, COMPUTE_OVERRIDE, COMPUTE_POOL


async def read_history(text: str | None, where: Where) -> HistoryReport:
    """The decisions about an Inference or a pool, or all. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, usual):
        if text is None:
            found = await decisions(client)
            whose = f"Inferences of namespace {where.namespace}" if where.namespace else "anybody"
            return history(found, whose, namespace=where.namespace)
        asked = named(text)
        try:
            target = await find(client, text, where, usual)
        except PermanentError:
            # One that is gone has a history as well, as long as its decisions are kept.
            gone = history(
                await decisions(client),
                f"Inference {_whole(asked, where, usual)}",
                inference=_whole(asked, where, usual),
            )
            if asked.kind is OverrideKind.COMPUTE_POOL or not gone.decisions:
                raise
            return gone
        if target.kind is OverrideKind.COMPUTE_POOL:
            return history(await decisions(client, target.key.name), str(target), pool=target.key.name)
        return history(await decisions(client), str(target), inference=str(target.key))


async def read_why(text: str, where: Where) -> InferenceReport | PoolReport:
    """Why an Inference or a pool is as it is. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, usual):
        target = await find(client, text, where, usual)
        inference, pool = await read_target(client, target)
        found = await decisions(client, pool.metadata.name) if pool is not None else ()
        seen = Seen(pool, found, await overrides(client), datetime.now(UTC))
    if inference is not None:
        return why_inference(inference, seen)
    if pool is None:
        message = f"{target} has just been deleted"
        raise PermanentError(message)
    return why_pool(pool, seen)


async def read_target(client: KubeClient, target: Target) -> tuple[Inference | None, ComputePool | None]:
    """The Inference, if it is one, and the pool that it is or is placed in, if there is one."""
    body = target.body or {}
    if target.kind is OverrideKind.COMPUTE_POOL:
        return None, ComputePool.parse(body)
    inference = Inference.parse(body)
    if inference.spec.placement is None:
        return inference, None
    found = await client.get(COMPUTE_POOL, ObjectKey("", inference.spec.placement.pool))
    return inference, None if found is None else ComputePool.parse(found)


async def decisions(client: KubeClient, pool: str | None = None) -> Sequence[AllocationDecision]:
    """Those of one pool, or all, in any order."""
    fields = "" if pool is None else f"spec.pool={pool}"
    bodies = await client.list(ALLOCATION_DECISION, fields=fields)
    return [AllocationDecision.parse(body) for body in bodies]


async def overrides(client: KubeClient) -> Sequence[ComputeOverride]:
    """All, in any order."""
    return [ComputeOverride.parse(body) for body in await client.list(COMPUTE_OVERRIDE)]


def _whole(asked: Named, where: Where, usual: str) -> str:
    return str(ObjectKey(asked.namespace or where.namespace or usual, asked.name))
