"""`tidegate xds status | dump | diff`: what the xDS servers serve and how far each proxy is, as the servers report it."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    ExitStatus,
    KubeOptions,
    Output,
    OutputFormat,
    exit_with_error,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.report import Report

ReportT = TypeVar("ReportT", bound="Report")
Address = Annotated[
    str | None,
    typer.Option(help="host:port of one xDS server, instead of querying all through the API server."),
]
XdsNamespace = Annotated[str, typer.Option("--system-namespace", help="Namespace of the xDS servers.")]
Revision = Annotated[str, typer.Argument(help="A revision, its beginning, current or previous.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Show the content under this name, from port 18002, which listens on loopback alone.",
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate xds`."""
    app.command("status")(status)
    app.command("dump")(dump)
    app.command("diff")(diff)
    app.command("bootstrap")(bootstrap)


@with_cluster_options
def status(
    address: Address = None,
    system: XdsNamespace = "tidegate-system",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show every connected proxy, and for each type whether it runs the newest (SYNCED, STALE, NACKED); and the Secrets of their TLS port."""
    options = KubeOptions(system, cluster=cluster)
    answers = _query_servers(options, address, "/v1/proxies")
    from tidegate.reports.xds import XdsStatusReport

    print_report(_parse_or_exit(lambda: XdsStatusReport.from_answers(answers)), output)


@with_cluster_options
def dump(
    revision: Revision = "current",
    name: Name = None,
    address: Address = None,
    system: XdsNamespace = "tidegate-system",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show the names and versions of a snapshot's resources, or the contents of those with one name. Secrets are left out."""
    options = KubeOptions(system, cluster=cluster)
    path = f"/v1/snapshots/{quote(revision, safe='')}"
    body = _query_first(options, address, path, {}, name)
    from tidegate.reports.xds import SnapshotReport

    _print_content(_parse_or_exit(lambda: SnapshotReport.model_validate(body)), name, output)


@with_cluster_options
def diff(
    before: Revision = "previous",
    after: Revision = "current",
    name: Name = None,
    address: Address = None,
    system: XdsNamespace = "tidegate-system",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show the names that differ between two revisions, or what differs under one name. Secrets are left out."""
    options = KubeOptions(system, cluster=cluster)
    body = _query_first(options, address, "/v1/diff", {"from": before, "to": after}, name)
    from tidegate.reports.xds import SnapshotDiffReport

    _print_content(_parse_or_exit(lambda: SnapshotDiffReport.model_validate(body)), name, output)


def _print_content(report: Report, name: str | None, output: OutputFormat) -> None:
    """Print a report; the contents of a resource have no text form, so they are written as JSON."""
    print_report(report, OutputFormat.JSON if name is not None and output is OutputFormat.TEXT else output)


def _parse_or_exit(parse: Callable[[], ReportT]) -> ReportT:
    """Parse the answer; print one line to stderr and exit if it does not come from an xDS server."""
    try:
        return parse()
    except ValueError as error:
        details = " ".join(str(error).split())
        message = f"cannot parse the answer: it is not from an xDS server of this version: {details}"
        exit_with_error(message, ExitStatus.UNKNOWN)


def bootstrap(
    server: Annotated[
        str,
        typer.Option(
            help="host:port of the xDS servers, as the client reaches them: <release>-xds.<its namespace>:18000."
        ),
    ],
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
        message = "--certificates needs --node, a name that the certificate is for: <pod>.<namespace> for *.<namespace>"
        raise typer.BadParameter(message)
    from tidegate.routing.proxyless import build_bootstrap as grpc_bootstrap

    name = node or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    typer.echo(grpc_bootstrap(server, name, certificates))


def _query_first(
    options: KubeOptions, address: str | None, path: str, query: Mapping[str, str], name: str | None
) -> dict[str, Any]:
    """Return the answer of any server that knows the revision: all replicas make the same revisions of the same objects.

    With `name`, ask for contents: names are served to any client of a server, contents on its loopback alone.
    """
    if name is not None:
        query = {**query, "name": name}
    target = f"{path}?{urlencode(query)}" if query else path
    return next(iter(_query_servers(options, address, target, contents=name is not None).values()))


def _query_servers(
    options: KubeOptions, address: str | None, target: str, *, contents: bool = False
) -> Mapping[str, dict[str, Any]]:
    """Query the server at `address`, or all; print which ones do not answer."""
    from tidegate.services import xds

    async def read_responses() -> xds.XdsResponses:
        if address is not None:
            return await xds.query_address(address, target)
        async with open_client(options) as (client, namespace):
            port = xds.CONTENT_PORT if contents else xds.REPORT_PORT
            return await xds.query_servers(client, namespace, port, target)

    responses = run_or_exit(read_responses())
    for failure in responses.failures:
        typer.echo(f"tidegate: left out: {failure}", err=True)
    return responses.by_server
