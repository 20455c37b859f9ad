"""List the names of objects that complete an argument of the command line."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any, Final

from tidegate.cli.completion import CompletedKind
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.errors import TidegateError
from tidegate.kube.kinds import COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS, Kind

_TIMEOUT_S: Final = 2.0
_KINDS: Final[Mapping[CompletedKind, Kind]] = {
    CompletedKind.INFERENCE: INFERENCE,
    CompletedKind.ACCESS: MODEL_ACCESS,
    CompletedKind.FEATURES: FEATURE_COMPUTE,
    CompletedKind.POOL: COMPUTE_POOL,
}


def list_completions(
    completed_kinds: Sequence[CompletedKind], incomplete: str, options: Mapping[str, Any]
) -> list[str]:
    """List the names that begin with `incomplete`; empty when the cluster does not answer.

    `options` holds the options typed so far: they choose the cluster, the user and the namespace.
    """
    kube_options = KubeOptions(
        options.get("namespace"),
        kubeconfig=options.get("kubeconfig"),
        context=options.get("context"),
        acting_for=options.get("acting_for") or "",
    )
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
    names: list[str] = []
    qualified = "/" in incomplete
    async with asyncio.timeout(_TIMEOUT_S), open_client(options) as (client, default_namespace):
        for kind in (_KINDS[completed_kind] for completed_kind in completed_kinds):
            if qualified and not kind.namespaced:
                continue
            namespace = "" if qualified or not kind.namespaced else options.namespace or default_namespace
            for body in await client.list(kind, namespace=namespace):
                metadata = body["metadata"]
                names.append(f"{metadata['namespace']}/{metadata['name']}" if qualified else metadata["name"])
    return sorted({name for name in names if name.startswith(incomplete)})
