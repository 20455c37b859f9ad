"""Send requests to xDS servers: to every pod of an installation through the API server, or to one address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import POD
from tidegate.services.endpoints import fetch_json

REPORT_PORT: Final = 18001
CONTENT_PORT: Final = 18002
"""It listens on loopback alone."""
_SELECTOR: Final = "app.kubernetes.io/name=tidegate,app.kubernetes.io/component=xds"


@dataclass(frozen=True, slots=True)
class XdsResponses:
    """The responses of the servers by pod or address, at least one; and why the others did not respond."""

    by_server: Mapping[str, dict[str, Any]]
    failures: tuple[str, ...] = ()


async def query_address(address: str, path: str) -> XdsResponses:
    """Query the xDS server at host:port. Raises TidegateError if it does not answer, or knows no such resource."""
    return XdsResponses({address: _check_response(await fetch_json(address, path, "xDS server"))})


async def query_servers(client: KubeClient, namespace: str, port: int, path: str) -> XdsResponses:
    """Query every running xDS pod in a namespace.

    Raises TidegateError, with the way out, when none answers, or when none knows the requested resource.
    """
    pods = await client.list(POD, namespace=namespace, selector=_SELECTOR)
    names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    if not names:
        message = (
            f"none of {len(pods)} pods with the labels {_SELECTOR} in namespace {namespace} runs: "
            "name the namespace of the xDS servers with --system-namespace, or look at them with kubectl get pods -A -l "
            f"{_SELECTOR}"
        )
        raise PermanentError(message)

    async def query_pod(name: str) -> dict[str, Any] | TidegateError:
        try:
            body = await client.read_from_pod(ObjectKey(namespace, name), port, path)
            return _check_response(body)
        except TidegateError as error:
            return error

    results = dict(zip(names, await asyncio.gather(*map(query_pod, names)), strict=True))
    failed = [result for result in results.values() if isinstance(result, TidegateError)]
    responses = {name: result for name, result in results.items() if not isinstance(result, TidegateError)}
    if not responses:
        raise failed[0]
    return XdsResponses(responses, tuple(map(str, failed)))


def _check_response(response: dict[str, Any]) -> dict[str, Any]:
    if "error" in response:
        raise PermanentError(response["error"])
    return response
