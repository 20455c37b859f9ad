"""Read the decisions that `tidegate history` and `tidegate why` report."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.compute_override import OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.cli.run.object_names import ObjectName, parse_object_name
from tidegate.cli.run.targets import find_target, parse_target_name
from tidegate.errors import PermanentError
from tidegate.kube.kinds import COMPUTE_POOL, MODEL_ACCESS
from tidegate.reports.access_explanation import AccessExplanation, explain_access
from tidegate.reports.decision import HistoryReport, report_history
from tidegate.reports.explanation import (
    ExplanationInputs,
    InferenceReport,
    PoolReport,
    explain_inference,
    explain_pool,
)
from tidegate.services.objects import list_decisions, list_overrides, read_access, read_target


async def read_history(text: str | None, options: KubeOptions) -> HistoryReport:
    """Return the decisions about an Inference or a pool, or all. Raises TidegateError if they cannot be read."""
    async with open_client(options) as (client, default_namespace):
        if text is None:
            all_decisions = await list_decisions(client)
            subject = f"Inferences of namespace {options.namespace}" if options.namespace else "anybody"
            return report_history(all_decisions, subject, namespace=options.namespace)
        name = parse_target_name(text)
        try:
            target = await find_target(client, text, options, default_namespace)
        except PermanentError:
            # A deleted Inference has a history as long as its decisions exist.
            report = report_history(
                await list_decisions(client),
                f"Inference {_full_name(name, options, default_namespace)}",
                inference=_full_name(name, options, default_namespace),
            )
            if name.kind == COMPUTE_POOL or not report.decisions:
                raise
            return report
        if target.kind is OverrideKind.COMPUTE_POOL:
            return report_history(
                await list_decisions(client, target.key.name), str(target), pool=target.key.name
            )
        return report_history(await list_decisions(client), str(target), inference=str(target.key))


async def read_explanation(
    text: str, options: KubeOptions
) -> InferenceReport | PoolReport | AccessExplanation:
    """Explain why an Inference, a pool or a ModelAccess is as it is. Raises TidegateError if it cannot be read."""
    async with open_client(options) as (client, default_namespace):
        name = parse_object_name(text)
        if name.kind == MODEL_ACCESS:
            key = ObjectKey(name.namespace or options.namespace or default_namespace, name.name)
            return explain_access(await read_access(client, key))
        target = await find_target(client, text, options, default_namespace)
        inference, pool = await read_target(client, target.kind, target.key)
        pool_decisions = await list_decisions(client, pool.metadata.name) if pool is not None else ()
        observation = ExplanationInputs(pool, pool_decisions, await list_overrides(client), datetime.now(UTC))
    if inference is not None:
        return explain_inference(inference, observation)
    if pool is None:
        message = f"{target} has just been deleted"
        raise PermanentError(message)
    return explain_pool(pool, observation)


def _full_name(name: ObjectName, options: KubeOptions, default_namespace: str) -> str:
    return str(ObjectKey(name.namespace or options.namespace or default_namespace, name.name))
