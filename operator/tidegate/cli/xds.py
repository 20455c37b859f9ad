"""Declare `tidegate xds status | dump | diff`: what the xDS servers serve and how far each proxy is, as the servers report it."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from tidegate.cli.options import (
    ActingFor,
    Context,
    Kubeconfig,
    KubeOptions,
    Output,
    OutputFormat,
    print_report,
)
from tidegate.cli.xds_servers import CONTENT_PORT, REPORT_PORT, XdsServers
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.reports.report import Report

ReportT = TypeVar("ReportT", bound="Report")
Address = Annotated[
    str | None,
    typer.Option(help="host:port of one xDS server, instead of querying all through the API server."),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the xDS servers.")]
Revision = Annotated[str, typer.Argument(help="A revision, its beginning, current or previous.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=f"Show the content under this name, from port {CONTENT_PORT}, which listens on loopback alone.",
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate xds`."""
    app.command("status")(status)
    app.command("dump")(dump)
    app.command("diff")(diff)
    app.command("bootstrap")(bootstrap)


def status(
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show every connected proxy, and for each type whether it runs the newest (SYNCED, STALE, NACKED); and the Secrets of their TLS port."""
    servers = XdsServers(address, namespace, KubeOptions(namespace, False, kubeconfig, context, acting_for))
    answers = _query_or_exit(servers, REPORT_PORT, "/v1/proxies", {})
    from tidegate.reports.xds import XdsStatusReport

    print_report(_parse_or_exit(lambda: XdsStatusReport.from_answers(answers)), output)


def dump(
    revision: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the names and versions of a snapshot's resources, or the contents of those with one name. Secrets are left out."""
    servers = XdsServers(address, namespace, KubeOptions(namespace, False, kubeconfig, context, acting_for))
    body = _query_first(
        servers, _choose_port(name), f"/v1/snapshots/{quote(revision, safe='')}", _name_query(name)
    )
    from tidegate.reports.xds import SnapshotReport

    _print_content(_parse_or_exit(lambda: SnapshotReport.model_validate(body)), name, output)


def diff(
    before: Revision = "previous",
    after: Revision = "current",
    name: Name = None,
    address: Address = None,
    namespace: Namespace = "tidegate-system",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the names that differ between two revisions, or what differs under one name. Secrets are left out."""
    servers = XdsServers(address, namespace, KubeOptions(namespace, False, kubeconfig, context, acting_for))
    body = _query_first(
        servers, _choose_port(name), "/v1/diff", {"from": before, "to": after, **_name_query(name)}
    )
    from tidegate.reports.xds import SnapshotDiffReport

    _print_content(_parse_or_exit(lambda: SnapshotDiffReport.model_validate(body)), name, output)


def _print_content(report: Report, name: str | None, output: OutputFormat) -> None:
    """Print a report; the contents of a resource have no text form, so they are written as JSON."""
    print_report(report, OutputFormat.JSON if name is not None and output is OutputFormat.TEXT else output)


def _parse_or_exit(parse: Callable[[], ReportT]) -> ReportT:
    """Parse the answer; print one line to stderr and exit with 1 if it does not come from an xDS server."""
    try:
        return parse()
    except ValueError as error:
        details = " ".join(str(error).split())
        typer.echo(
            f"tidegate: cannot parse the answer: it is not from an xDS server of this version: {details}",
            err=True,
        )
        sys.exit(1)


def _name_query(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}


def _choose_port(name: str | None) -> int:
    """Return the port that answers: names are served to any client of a server, contents on its loopback alone."""
    return REPORT_PORT if name is None else CONTENT_PORT


def bootstrap(
    server: Annotated[
        str, typer.Option(help="host:port of the xDS servers, as the client reaches them.")
    ] = "tidegate-xds.tidegate-system:18000",
    node: Annotated[str, typer.Option(help="Name of the client, unique among all proxies and clients.")] = "",
    certificates: Annotated[
        str | None,
        typer.Option(
            help="Folder of the client with ca.crt, tls.crt and tls.key, for servers with TLS; --node is then the name in the "
            "certificate."
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
    from tidegate.routing.proxyless import build_bootstrap as grpc_bootstrap

    name = node or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    typer.echo(grpc_bootstrap(server, name, certificates))


def _query_first(servers: XdsServers, port: int, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of any server that knows the revision: all replicas make the same revisions of the same objects."""
    return next(iter(_query_or_exit(servers, port, path, query).values()))


def _query_or_exit(
    servers: XdsServers, port: int, path: str, query: Mapping[str, str]
) -> Mapping[str, dict[str, Any]]:
    # The API server's client takes a second to import, which --help should not.
    from tidegate.cli.run.xds_client import query_servers

    try:
        answers = query_servers(servers, port, path, query)
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)
    for missing in answers.failures:
        typer.echo(f"tidegate: left out: {missing}", err=True)
    return answers.by_server
