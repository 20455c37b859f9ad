"""Whom `tidegate xds` asks: every xDS server of a cluster through its API server, or one at an address."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError, TidegateError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.kinds import POD

REPORT_PORT: Final = 18001
CONTENTS_PORT: Final = 18002

_PATIENCE: Final = timedelta(seconds=30)
_SELECTOR: Final = "app.kubernetes.io/name=tidegate,app.kubernetes.io/component=xds"


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the xDS servers are. With `address` (host:port) one is asked directly, and nothing else counts."""

    address: str | None
    namespace: str
    kubeconfig: Path | None
    context: str | None


@dataclass(frozen=True, slots=True)
class Answers:
    """What the servers said, by pod or address, at least one; and why those did not that were asked in vain."""

    said: Mapping[str, dict[str, Any]]
    missing: tuple[str, ...] = ()


def ask(servers: Servers, port: int, path: str, query: Mapping[str, str]) -> Answers:
    """Asks them all. Raises TidegateError, with the way out, when none answers, or none knows what is asked for."""
    target = f"{path}?{urlencode(query)}" if query else path
    if servers.address is not None:
        return asyncio.run(_directly(servers.address, target))
    return asyncio.run(_through_api_server(servers, port, target))


async def _directly(address: str, target: str) -> Answers:
    timeout = aiohttp.ClientTimeout(total=_PATIENCE.total_seconds())
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{address}{target}") as response,
        ):
            said = await response.json()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        message = f"no xDS server answers at {address}: {error}"
        raise ApiUnavailableError(message) from error
    return Answers({address: _known(said)})


async def _through_api_server(servers: Servers, port: int, target: str) -> Answers:
    settings = ClientSettings(
        field_manager="tidegate-cli", user_agent="tidegate-cli", request_timeout=_PATIENCE
    )
    kubeconfig = servers.kubeconfig or usual_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=servers.context) as client:
        pods = await client.list(POD, namespace=servers.namespace, selector=_SELECTOR)
        names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
        if not names:
            message = (
                f"none of {len(pods)} pods with the labels {_SELECTOR} in namespace {servers.namespace} runs: "
                "name the namespace of the xDS servers with -n, or look at them with kubectl get pods -A -l "
                f"{_SELECTOR}"
            )
            raise PermanentError(message)

        async def one(name: str) -> dict[str, Any] | TidegateError:
            try:
                found = await client.read_from_pod(ObjectKey(servers.namespace, name), port, target)
                return _known(found)
            except TidegateError as error:
                return error

        answers = dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))
    failed = [answer for answer in answers.values() if isinstance(answer, TidegateError)]
    said = {name: answer for name, answer in answers.items() if not isinstance(answer, TidegateError)}
    if not said:
        raise failed[0]
    return Answers(said, tuple(map(str, failed)))


def _known(said: dict[str, Any]) -> dict[str, Any]:
    if "error" in said:
        raise PermanentError(said["error"])
    return said


def usual_kubeconfig() -> Path | None:
    """As kubectl finds it; None in a pod, which has its ServiceAccount."""
    named = os.environ.get("KUBECONFIG")
    if named:
        return Path(named)
    usual = Path.home() / ".kube" / "config"
    return usual if usual.exists() else None
