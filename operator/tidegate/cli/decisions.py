"""`tidegate history` and `tidegate why`: decisions about compute, and why things are as they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.following import Watch, show_or_follow
from tidegate.cli.options import (
    Everywhere,
    KubeOptions,
    NameAfterKind,
    Namespace,
    Output,
    OutputFormat,
    Selector,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.reports.access_explanation import AccessExplanation
    from tidegate.reports.decision import HistoryReport
    from tidegate.reports.explanation import InferenceReport, PoolReport

Target = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE|POOL|modelaccess/NAME",
        help="Name; namespace/name of an Inference; or with its kind: inference/name, pool/name, modelaccess/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE, CompletedKind.POOL),
    ),
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="INFERENCE|POOL",
        help="Inference or pool of the decisions; default all. A name; namespace/name of an Inference; inference/name or pool/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE, CompletedKind.POOL),
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate`."""
    app.command("history")(history)
    app.command("why")(explain)


@with_cluster_options
def history(
    target: OptionalTarget = None,
    name: NameAfterKind = None,
    watch: Watch = False,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    selector: Selector = "",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show what the allocators decided, the newest first; without a name, -n and -l keep to decisions that move these Inferences."""
    from tidegate.cli.object_names import join_kind

    options = KubeOptions(namespace, everywhere, cluster)
    text = None if target is None else join_kind(target, name)
    if selector and text is not None:
        message = f"--selector chooses Inferences, and {text} is one object: leave one of them out"
        raise typer.BadParameter(message)

    async def find_reader(client: KubeClient, chosen: str) -> Callable[[], Awaitable[HistoryReport]]:
        return lambda: _read_history(client, text, selector, options, chosen)

    show_or_follow(options, find_reader, output, watch=watch)


@with_cluster_options
def explain(
    target: Target,
    name: NameAfterKind = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show what an Inference or a ComputePool has, which decision gave it that and why, and which conditions are unhealthy.

    For a ModelAccess: how far its newest spec has come, from the API server to the gateways, and the first stage that is behind.
    """
    from tidegate.cli.object_names import join_kind

    options = KubeOptions(namespace, everywhere, cluster)
    print_report(run_or_exit(_read_explanation(join_kind(target, name), options)), output)


async def _read_history(
    client: KubeClient, text: str | None, labels: str, options: KubeOptions, namespace: str
) -> HistoryReport:
    """Return the decisions about an Inference or a pool, about Inferences with these labels, or all. Raises TidegateError if they cannot be read."""
    from tidegate.api.compute_override import OverrideKind
    from tidegate.api.meta import ObjectKey
    from tidegate.cli.object_names import find_target, parse_target_name
    from tidegate.errors import PermanentError
    from tidegate.kube.kinds import COMPUTE_POOL
    from tidegate.reports.decision import report_history
    from tidegate.services.objects import list_decisions, list_inference_keys

    if text is None:
        all_decisions = await list_decisions(client)
        if labels:
            keys, listed = await list_inference_keys(client, options.namespace, namespace, labels)
            place = f" in namespace {listed}" if listed is not None else ""
            return report_history(
                all_decisions, f"Inferences with {labels}{place}", moving=frozenset(map(str, keys))
            )
        subject = f"Inferences of namespace {options.namespace}" if options.namespace else "anybody"
        return report_history(all_decisions, subject, namespace=options.namespace)
    name = parse_target_name(text)
    try:
        target = await find_target(client, text, options, namespace)
    except PermanentError:
        # A deleted Inference has a history as long as its decisions exist.
        key = ObjectKey(name.namespace or namespace, name.name)
        report = report_history(await list_decisions(client), f"Inference {key}", inference=str(key))
        if name.kind == COMPUTE_POOL or not report.decisions:
            raise
        return report
    if target.kind is OverrideKind.COMPUTE_POOL:
        return report_history(
            await list_decisions(client, target.key.name), str(target), pool=target.key.name
        )
    return report_history(await list_decisions(client), str(target), inference=str(target.key))


async def _read_explanation(
    text: str, options: KubeOptions
) -> InferenceReport | PoolReport | AccessExplanation:
    """Explain why an Inference, a pool or a ModelAccess is as it is. Raises TidegateError if it cannot be read."""
    from datetime import UTC, datetime

    from tidegate.api.meta import ObjectKey
    from tidegate.cli.object_names import find_target, parse_object_name
    from tidegate.errors import PermanentError
    from tidegate.kube.kinds import MODEL_ACCESS
    from tidegate.reports.access_explanation import explain_access
    from tidegate.reports.explanation import ExplanationInputs, explain_inference, explain_pool
    from tidegate.services.objects import list_decisions, list_overrides, read_access, read_target

    async with open_client(options) as (client, namespace):
        name = parse_object_name(text)
        if name.kind == MODEL_ACCESS:
            key = ObjectKey(name.namespace or namespace, name.name)
            return explain_access(await read_access(client, key))
        target = await find_target(client, text, options, namespace)
        inference, pool = await read_target(client, target.kind, target.key)
        pool_decisions = await list_decisions(client, pool.metadata.name) if pool is not None else ()
        observation = ExplanationInputs(pool, pool_decisions, await list_overrides(client), datetime.now(UTC))
    if inference is not None:
        return explain_inference(inference, observation)
    if pool is None:
        message = f"{target} has just been deleted"
        raise PermanentError(message)
    return explain_pool(pool, observation)
