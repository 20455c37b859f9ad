"""`tidegate xds status | dump | diff`: what the xDS servers serve and how far each proxy is, asked of the servers themselves."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tidegate.cli.servers import CONTENTS_PORT, REPORT_PORT, Servers
from tidegate.errors import TidegateError


class Format(StrEnum):
    """How answers are written."""

    TEXT = "text"
    JSON = "json"


Address = Annotated[
    str | None,
    typer.Option(help="host:port of one xDS server, instead of asking all through the API server."),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where the xDS servers run.")]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option(help="Cluster to connect to; default $KUBECONFIG, then ~/.kube/config.", show_default=False),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default its current one.")
]
Revision = Annotated[str, typer.Argument(help="A revision, its beginning, current or previous.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=f"Show the content under this name, from port {CONTENTS_PORT}, which listens on loopback alone.",
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
    context: ContextOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show every connected proxy, and for each type whether it runs the newest (SYNCED, STALE, NACKED); and the Secrets of their TLS port."""
    servers = Servers(address, namespace, kubeconfig, context)
    answers = _ask(servers, REPORT_PORT, "/v1/proxies", {})
    proxies = [{**proxy, "server": server} for server, said in answers.items() for proxy in said["proxies"]]
    secrets = [
        {**secret, "server": server}
        for server, said in answers.items()
        for secret in said.get("gatewaySecrets", ())
    ]
    if output is Format.JSON:
        typer.echo(json.dumps({"proxies": proxies, "gatewaySecrets": secrets}, indent=2))
        return
    for line in (*status_lines(proxies), *secret_lines(secrets)):
        typer.echo(line)


def dump(
    revision: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the names and versions of a snapshot's resources, or what is in those of one name. Secrets are left out."""
    servers = Servers(address, namespace, kubeconfig, context)
    found = _first(servers, _port(name), f"/v1/snapshots/{quote(revision, safe='')}", _named(name))
    _show(found, dump_lines(found), name, output)


def diff(
    before: Revision = "previous",
    after: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the names that differ between two revisions, or what differs under one name. Secrets are left out."""
    servers = Servers(address, namespace, kubeconfig, context)
    found = _first(servers, _port(name), "/v1/diff", {"from": before, "to": after, **_named(name)})
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


def _port(name: str | None) -> int:
    """Names are told to whoever reaches a server; content is told on its own loopback alone."""
    return REPORT_PORT if name is None else CONTENTS_PORT


def bootstrap(
    server: Annotated[
        str, typer.Option(help="host:port of the xDS servers, as the client reaches them.")
    ] = "tidegate-xds.tidegate-system:18000",
    node: Annotated[str, typer.Option(help="Name of the client, unique among all proxies and clients.")] = "",
    certificates: Annotated[
        str | None,
        typer.Option(
            help="Folder of the client with ca.crt, tls.crt and tls.key, for servers with TLS; --node is then what the "
            "certificate is for."
        ),
    ] = None,
) -> None:
    """Print the bootstrap with which a gRPC client calls xds:/// targets, for GRPC_XDS_BOOTSTRAP_CONFIG."""
    if certificates is not None and not node:
        typer.echo(
            "tidegate: --certificates needs --node, a name that the certificate is for: <pod>.<namespace> for *.<namespace>",
            err=True,
        )
        sys.exit(1)
    from tidegate.routing.grpc.bootstrap import bootstrap as grpc_bootstrap

    name = node or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    typer.echo(grpc_bootstrap(server, name, certificates))


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


def secret_lines(secrets: list[dict[str, Any]]) -> list[str]:
    """One line for each Secret of the TLS port and xDS server, since each holds the last good one by itself; one more where something is wrong."""
    lines = [f"{'SECRET':28}{'ROLE':18}{'EXPIRES':22}SERVER"] if secrets else []
    for one in secrets:
        lines.append(f"{one['secret']:28}{one['role']:18}{one['expires'] or '-':22}{one['server']}")
        kept = "the last good one stays" if one["expires"] else "gateways have none from this server"
        lines += [f"  {one['problem']}; {kept}"] if one["problem"] else []
    return lines


def _first(servers: Servers, port: int, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The answer of any server that knows the revision: all replicas make the same ones of the same objects."""
    return next(iter(_ask(servers, port, path, query).values()))


def _ask(servers: Servers, port: int, path: str, query: Mapping[str, str]) -> Mapping[str, dict[str, Any]]:
    # The API server's client takes a second to import, for which nobody waits who asks for help.
    from tidegate.cli.asking import ask

    try:
        answers = ask(servers, port, path, query)
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)
    for missing in answers.missing:
        typer.echo(f"tidegate: left out: {missing}", err=True)
    return answers.said
