"""Asks the cluster for names that complete what was typed."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any, Final

from tidegate.cli.completion import Named
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.errors import TidegateError
from tidegate.kube.kinds import COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS, Kind

_PATIENCE_S: Final = 2.0
_KINDS: Final[Mapping[Named, Kind]] = {
    Named.INFERENCE: INFERENCE,
    Named.ACCESS: MODEL_ACCESS,
    Named.FEATURES: FEATURE_COMPUTE,
    Named.POOL: COMPUTE_POOL,
}


def found(kinds: Sequence[Named], incomplete: str, options: Mapping[str, Any]) -> list[str]:
    """`options` are those that were typed before: which cluster, in whose name, which namespace. Nothing, where it fails."""
    where = Where(
        options.get("namespace"),
        kubeconfig=options.get("kubeconfig"),
        context=options.get("context"),
        acting_for=options.get("acting_for") or "",
    )
    # The shell shows what is said beside the candidates in the middle of the line that is being typed.
    logging.disable()
    try:
        with redirect_stderr(io.StringIO()):
            return asyncio.run(_asked(kinds, incomplete, where))
    except (TidegateError, ValueError, OSError, TimeoutError):
        return []


async def _asked(kinds: Sequence[Named], incomplete: str, where: Where) -> list[str]:
    names: list[str] = []
    whole = "/" in incomplete
    async with asyncio.timeout(_PATIENCE_S), connected(where) as (client, usual):
        for kind in (_KINDS[each] for each in kinds):
            if whole and not kind.namespaced:
                continue
            namespace = "" if whole or not kind.namespaced else where.namespace or usual
            for body in await client.list(kind, namespace=namespace):
                metadata = body["metadata"]
                names.append(f"{metadata['namespace']}/{metadata['name']}" if whole else metadata["name"])
    return sorted({name for name in names if name.startswith(incomplete)})
