"""Read the decisions that `tidegate history` and `tidegate why` report."""

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
    """Return the decisions about an Inference or a pool, or all. Raises TidegateError if they cannot be read."""
    async with connected(where) as (client, default_namespace):
        if text is None:
            all_decisions = await decisions(client)
            subject = f"Inferences of namespace {where.namespace}" if where.namespace else "anybody"
            return history(all_decisions, subject, namespace=where.namespace)
        name = named(text)
        try:
            target = await find(client, text, where, default_namespace)
        except PermanentError:
            # A deleted Inference has a history as long as its decisions exist.
            report = history(
                await decisions(client),
                f"Inference {_whole(name, where, default_namespace)}",
                inference=_whole(name, where, default_namespace),
            )
            if name.kind == COMPUTE_POOL or not report.decisions:
                raise
            return report
        if target.kind is OverrideKind.COMPUTE_POOL:
            return history(await decisions(client, target.key.name), str(target), pool=target.key.name)
        return history(await decisions(client), str(target), inference=str(target.key))


async def read_why(text: str, where: Where) -> InferenceReport | PoolReport:
    """Explain why an Inference or a pool is as it is. Raises TidegateError if it cannot be read."""
    async with connected(where) as (client, default_namespace):
        target = await find(client, text, where, default_namespace)
        inference, pool = await read_target(client, target.kind, target.key)
        pool_decisions = await decisions(client, pool.metadata.name) if pool is not None else ()
        observation = Seen(pool, pool_decisions, await overrides(client), datetime.now(UTC))
    if inference is not None:
        return why_inference(inference, observation)
    if pool is None:
        message = f"{target} has just been deleted"
        raise PermanentError(message)
    return why_pool(pool, observation)


def _whole(asked: Asked, where: Where, usual: str) -> str:
    return str(ObjectKey(asked.namespace or where.namespace or usual, asked.name))
