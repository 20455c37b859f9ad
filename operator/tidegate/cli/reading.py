"""Reads what `tidegate history` and `tidegate why` are about, and has it reported."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.compute_override import OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.naming import Asked
from tidegate.cli.options import Where
from tidegate.cli.targets import find, named
from tidegate.errors import PermanentError
from tidegate.kube.kinds import COMPUTE_POOL
from tidegate.operations.objects import decisions, overrides, read_target
from tidegate.reports.decision import HistoryReport, history
from tidegate.reports.why import InferenceReport, PoolReport, Seen, why_inference, why_pool


async def read_history(text: str | None, where: Where) -> HistoryReport:
    """The decisions about an Inference or a pool, or all. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, usual):
        if text is None:
            found = await decisions(client)
            whose = f"Inferences of namespace {where.namespace}" if where.namespace else "anybody"
            return history(found, whose, namespace=where.namespace)
        wanted = named(text)
        try:
            target = await find(client, text, where, usual)
        except PermanentError:
            # One that is gone has a history as well, as long as its decisions are kept.
            gone = history(
                await decisions(client),
                f"Inference {_whole(wanted, where, usual)}",
                inference=_whole(wanted, where, usual),
            )
            if wanted.kind == COMPUTE_POOL or not gone.decisions:
                raise
            return gone
        if target.kind is OverrideKind.COMPUTE_POOL:
            return history(await decisions(client, target.key.name), str(target), pool=target.key.name)
        return history(await decisions(client), str(target), inference=str(target.key))


async def read_why(text: str, where: Where) -> InferenceReport | PoolReport:
    """Why an Inference or a pool is as it is. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, usual):
        target = await find(client, text, where, usual)
        inference, pool = await read_target(client, target.kind, target.key)
        found = await decisions(client, pool.metadata.name) if pool is not None else ()
        seen = Seen(pool, found, await overrides(client), datetime.now(UTC))
    if inference is not None:
        return why_inference(inference, seen)
    if pool is None:
        message = f"{target} has just been deleted"
        raise PermanentError(message)
    return why_pool(pool, seen)


def _whole(asked: Asked, where: Where, usual: str) -> str:
    return str(ObjectKey(asked.namespace or where.namespace or usual, asked.name))
