"""Complete names of objects in shells. Light on imports, because every command is declared with it."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from enum import StrEnum
from typing import Any, Final

import typer

from tidegate.cli.cluster_options import ClusterOptions
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions

_TIMEOUT_S: Final = 2.0


class CompletedKind(StrEnum):
    """The kind of object that an argument names, by its plural."""

    INFERENCE = "inferences"
    ACCESS = "modelaccesses"
    FEATURES = "featurecomputes"
    POOL = "computepools"


def complete_names(*kinds: CompletedKind) -> Callable[[typer.Context, str], list[str]]:
    """Return a callback for `typer.Argument(autocompletion=...)` that completes names of these kinds.

    It waits two seconds at most for the cluster; without an answer it offers nothing and prints nothing.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _list_completions(kinds, incomplete, ctx.params)

    return complete


def _list_completions(
    completed_kinds: Sequence[CompletedKind], incomplete: str, options: Mapping[str, Any]
) -> list[str]:
    """List the names that begin with `incomplete`; empty when the cluster does not answer.

    `options` holds the options typed so far: they choose the cluster, the user and the namespace.
    """
    kube_options = KubeOptions(
        options.get("namespace"),
        cluster=ClusterOptions(
            options.get("kubeconfig"), options.get("context"), options.get("acting_for") or ""
        ),
    )
    from tidegate.errors import TidegateError

    # The shell would print log lines in the middle of the line that the user types.
    logging.disable()
    try:
        with redirect_stderr(io.StringIO()):
            return asyncio.run(_list_names(completed_kinds, incomplete, kube_options))
    except (TidegateError, ValueError, OSError, TimeoutError):
        return []


async def _list_names(
    completed_kinds: Sequence[CompletedKind], incomplete: str, options: KubeOptions
) -> list[str]:
    from tidegate.kube.kinds import COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS

    kinds = {kind.plural: kind for kind in (COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS)}
    names: list[str] = []
    qualified = "/" in incomplete
    async with asyncio.timeout(_TIMEOUT_S), open_client(options) as (client, namespace):
        for kind in (kinds[completed_kind] for completed_kind in completed_kinds):
            if qualified and not kind.namespaced:
                continue
            within = "" if qualified or not kind.namespaced else namespace
            for body in await client.list(kind, namespace=within):
                metadata = body["metadata"]
                names.append(f"{metadata['namespace']}/{metadata['name']}" if qualified else metadata["name"])
    return sorted({name for name in names if name.startswith(incomplete)})
