"""Send requests to xDS servers: to every pod of an installation through the API server, or to one address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import open_client
from tidegate.cli.interrupts import run_async
from tidegate.cli.xds_servers import XdsResponses, XdsServers
from tidegate.errors import ApiUnavailableError, PermanentError, TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import POD
from tidegate_dataplane.contract.answers import make_bounded_session, parse_json, read_body

_TIMEOUT: Final = timedelta(seconds=30)
_MAX_BYTES: Final = 256 << 20
"""Larger than the routing of any fleet."""
_SELECTOR: Final = "app.kubernetes.io/name=tidegate,app.kubernetes.io/component=xds"


def query_servers(servers: XdsServers, port: int, path: str, query: Mapping[str, str]) -> XdsResponses:
    """Query all servers, or the one at an address.

    Raises TidegateError, with the way out, when no server answers, or when none knows the requested resource.
    """
    target = f"{path}?{urlencode(query)}" if query else path
    if servers.address is not None:
        return run_async(_query_address(servers.address, target))
    return run_async(_query_pods(servers, port, target))


async def _query_address(address: str, target: str) -> XdsResponses:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT.total_seconds())
    try:
        async with (
            make_bounded_session(timeout) as session,
            session.get(f"http://{address}{target}") as response,
        ):
            body = parse_json(await read_body(response, _MAX_BYTES))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        message = f"no xDS server answers at {address}: {error}"
        raise ApiUnavailableError(message) from error
    return XdsResponses({address: _check_response(body)})


async def _query_pods(servers: XdsServers, port: int, target: str) -> XdsResponses:
    async with open_client(servers.options) as (client, _):
        return await query_all_servers(client, servers.namespace, port, target)


async def query_all_servers(client: KubeClient, namespace: str, port: int, target: str) -> XdsResponses:
    """Return the responses of every running xDS pod in a namespace. Raises as `query_servers` does."""
    pods = await client.list(POD, namespace=namespace, selector=_SELECTOR)
    names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    if not names:
        message = (
            f"none of {len(pods)} pods with the labels {_SELECTOR} in namespace {namespace} runs: "
            "name the namespace of the xDS servers with -n, or look at them with kubectl get pods -A -l "
            f"{_SELECTOR}"
        )
        raise PermanentError(message)

    async def query_pod(name: str) -> dict[str, Any] | TidegateError:
        try:
            body = await client.read_from_pod(ObjectKey(namespace, name), port, target)
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
