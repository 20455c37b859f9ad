"""`tidegate xds status | dump | diff`: what the xDS servers serve and how far each proxy is, asked of the servers themselves."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import typer

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError, TidegateError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.kinds import POD
from tidegate.routing.grpc.bootstrap import bootstrap as grpc_bootstrap

_PATIENCE: Final = timedelta(seconds=30)
_REPORT_PORT: Final = 18001
_CONTENTS: Final = "127.0.0.1:18002"
_SELECTOR: Final = "app.kubernetes.io/name=tidegate,app.kubernetes.io/component=xds"


class Format(StrEnum):
    """How answers are written."""

    TEXT = "text"
    JSON = "json"


Address = Annotated[
    str | None,
    typer.Option(help="host:port of one xDS server's report, instead of asking through the API server."),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where the xDS servers run.")]
KubeconfigOption = Annotated[
    Path | None, typer.Option(help="Cluster to connect to; default $KUBECONFIG.", show_default=False)
]
Revision = Annotated[str, typer.Argument(help="A revision, its beginning, current or previous.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=f"Show the content under this name; asks {_CONTENTS}, which only an xDS server's own pod reaches.",
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tidegate xds`."""
    app.command("status")(status)
    app.command("dump")(dump)
    app.command("diff")(diff)
    app.command("bootstrap")(bootstrap)


def status(
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: KubeconfigOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show every connected proxy, and for each type whether it runs the newest (SYNCED, STALE, NACKED)."""
    answers = _ask("/v1/proxies", {}, address, namespace, kubeconfig)
    proxies = [{**proxy, "server": server} for server, said in answers.items() for proxy in said["proxies"]]
    if output is Format.JSON:
        typer.echo(json.dumps({"proxies": proxies}, indent=2))
        return
    for line in status_lines(proxies):
        typer.echo(line)


def dump(
    revision: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: KubeconfigOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the names and versions of a snapshot's resources, or what is in those of one name. Secrets are left out."""
    place = _place(name, address, namespace, kubeconfig)
    found = _first(f"/v1/snapshots/{revision}", _named(name), *place)
    _show(found, dump_lines(found), name, output)


def diff(
    before: Revision = "previous",
    after: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: KubeconfigOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the names that differ between two revisions, or what differs under one name. Secrets are left out."""
    place = _place(name, address, namespace, kubeconfig)
    found = _first("/v1/diff", {"from": before, "to": after, **_named(name)}, *place)
    _show(found, diff_lines(found), name, output)


def _show(found: Mapping[str, Any], lines: Iterator[str], name: str | None, output: Format) -> None:
    """Content has no other form than JSON; of names, `lines` are the text."""
    if output is Format.JSON or name is not None:
        typer.echo(json.dumps(found, indent=2))
        return
    for line in lines:
        typer.echo(line)


def dump_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The revision, and a line for each resource."""
    yield f"revision {found['revision']}"
    for kind, resources in found["resources"].items():
        for resource in resources:
            yield f"{kind:10}{resource['version']}  {resource['name']}"


def diff_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Both revisions, and a line for each resource that differs."""
    yield f"{found['from']} -> {found['to']}"
    for kind, changes in found["changes"].items():
        for change in changes:
            yield f"{change['change']:9}{kind:10}{change['name']}"


def _named(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}


def _place(
    name: str | None, address: str | None, namespace: str, kubeconfig: Path | None
) -> tuple[str | None, str, Path | None]:
    """Whom to ask; content is told inside the pod alone, so without an address this must run there."""
    return (_CONTENTS if name is not None and address is None else address), namespace, kubeconfig


def bootstrap(
    server: Annotated[
        str, typer.Option(help="host:port of the xDS servers, as the client reaches them.")
    ] = "tidegate-xds.tidegate-system:18000",
    node: Annotated[str, typer.Option(help="Name of the client, unique among all proxies and clients.")] = "",
) -> None:
    """Print the bootstrap with which a gRPC client calls xds:/// targets, for GRPC_XDS_BOOTSTRAP_CONFIG."""
    typer.echo(grpc_bootstrap(server, node or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"))


def status_lines(proxies: list[dict[str, Any]]) -> list[str]:
    """One line for each proxy, and one more where it refuses something."""
    if not proxies:
        return ["no proxy is connected"]
    lines = [f"{'PROXY':40}{'REVISION':18}TYPES"]
    for proxy in proxies:
        types = " ".join(f"{kind}={state}" for kind, state in proxy["types"].items())
        lines.append(f"{proxy['node']:40}{proxy['revision'] or '-':18}{types}")
        lines += [f"  refused: {proxy['nack']}"] if proxy["nack"] else []
    return lines


Answers = dict[str, dict[str, Any]]


def _first(path: str, query: Mapping[str, str], *place: Any) -> dict[str, Any]:
    """The answer of any server that knows the revision: all replicas make the same ones of the same objects."""
    return next(iter(_ask(path, query, *place).values()))


def _ask(
    path: str, query: Mapping[str, str], address: str | None, namespace: str, kubeconfig: Path | None
) -> Answers:
    try:
        if address is not None:
            return asyncio.run(_directly(address, path, query))
        named = kubeconfig or os.environ.get("KUBECONFIG")
        return asyncio.run(_through_api_server(path, query, namespace, Path(named) if named else None))
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)


async def _directly(address: str, path: str, query: Mapping[str, str]) -> Answers:
    timeout = aiohttp.ClientTimeout(total=_PATIENCE.total_seconds())
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{address}{path}", params=query) as response,
        ):
            said = await response.json()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        message = f"no xDS server answers at {address}: {error}"
        raise ApiUnavailableError(message) from error
    if "error" in said:
        raise PermanentError(said["error"])
    return {address: said}


async def _through_api_server(
    path: str, query: Mapping[str, str], namespace: str, kubeconfig: Path | None
) -> Answers:
    settings = ClientSettings(
        field_manager="tidegate-cli", user_agent="tidegate-cli", request_timeout=_PATIENCE
    )
    answers: Answers = {}
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig) as client:
        for pod in await client.list(POD, namespace=namespace, selector=_SELECTOR):
            name = pod["metadata"]["name"]
            said = await client.read_from_pod(ObjectKey(namespace, name), _REPORT_PORT, path, query)
            if said is not None:
                answers[name] = said
    if not answers:
        message = (
            f"no xDS server in namespace {namespace} knows {path}: "
            "choose its namespace with -n, or a revision that tidegate xds dump still shows"
        )
        raise PermanentError(message)
    return answers
