"""Reach processes of the cluster: the ready pods of a selector, and JSON from an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import aiohttp

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import POD
from tidegate.planning.pods import parse_pods
from tidegate_dataplane.contract.answers import make_bounded_session, parse_json, read_body

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_MAX_BYTES: Final = 256 << 20
"""Larger than the routing, and than the solver's input, of any fleet."""


async def list_ready_pods(client: KubeClient, namespace: str, selector: str) -> Sequence[ObjectKey]:
    """Return the ready pods of a selector, without those that are terminating. Raises PermanentError if there are none."""
    views = parse_pods(await client.list(POD, namespace=namespace, selector=selector))
    ready = [view.key for view in views if view.ready and not view.terminating]
    if not ready:
        message = f"none of {len(views)} pods with the labels {selector} in namespace {namespace} is ready"
        raise PermanentError(message)
    return ready


async def fetch_json(address: str, path: str, process: str) -> dict[str, Any]:
    """Fetch JSON from `process` at host:port. Raises ApiUnavailableError if it does not answer."""
    try:
        async with (
            make_bounded_session(_TIMEOUT) as session,
            session.get(f"http://{address}{path}") as response,
        ):
            answer: dict[str, Any] = parse_json(await read_body(response, _MAX_BYTES))
            return answer
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        message = f"no {process} answers at {address}: {error}"
        raise ApiUnavailableError(message) from error
