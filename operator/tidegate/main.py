"""The command `tidegate`: the three processes of the operator, and the tools for people.

Each process is imported by its own command: together they take three seconds, for which nobody waits who asks a question.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate import __version__
from tidegate.cli.calibrate import calibrate
from tidegate.cli.pools import register as register_pools
from tidegate.cli.xds import register
from tidegate.errors import TidegateError
from tidegate.runtime.logging import LogFormat, configure_logging
from tidegate.settings import PodIdentity, Settings

app = typer.Typer(
    name="tidegate",
    help="Serves recommendation and ads models on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Cluster to connect to; default $KUBECONFIG, and in a pod its own ServiceAccount."),
]


@app.command()
def controllers(kubeconfig: Kubeconfig = None) -> None:
    """Run the controllers: watch, elect a leader, reconcile."""
    from tidegate.processes.controllers import run_controllers

    settings = _start()
    _run(run_controllers(settings, PodIdentity(), _cluster(kubeconfig)))


xds = typer.Typer(name="xds", help="The xDS server: without a command, run it.", invoke_without_command=True)
register(xds)
app.add_typer(xds)

pools = typer.Typer(name="pools", help="ComputePools: what to set up for them.", no_args_is_help=True)
register_pools(pools)
app.add_typer(pools)


@pools.callback()
def _pools() -> None:
    """A group, though it has one command so far."""


@xds.callback()
def serve_xds(context: typer.Context, kubeconfig: Kubeconfig = None) -> None:
    """Run the xDS server that configures the gateways; or, with a command, ask those that run."""
    if context.invoked_subcommand is not None:
        return
    from tidegate.processes.xds import run_xds

    settings = _start()
    _run(run_xds(settings, PodIdentity(), _cluster(kubeconfig)))


@app.command()
def web(kubeconfig: Kubeconfig = None) -> None:
    """Run the dashboard and the REST API."""
    from tidegate.processes.web import run_web

    settings = _start()
    _run(run_web(settings, _cluster(kubeconfig)))


app.command()(calibrate)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _start() -> Settings:
    settings = Settings()
    configure_logging(level=settings.log_level, log_format=LogFormat(settings.log_format))
    return settings


def _cluster(kubeconfig: Path | None) -> Path | None:
    if kubeconfig is not None:
        # kopf looks nowhere else: it would watch another cluster than the one that is written to, or none.
        os.environ["KUBECONFIG"] = str(kubeconfig)
    named = os.environ.get("KUBECONFIG")
    return Path(named) if named else None


def _run(process: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(process)
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)


def _mount_local_cluster() -> None:
    """`tidegate local …` and `tidegate demo …`, where the local cluster is installed; the image goes without."""
    if find_spec("tidegate_localcluster") is None:
        return
    from tidegate_localcluster.cli import app as local
    from tidegate_localcluster.demo.cli import app as demo

    app.add_typer(local, name="local")
    app.add_typer(demo, name="demo")


def main() -> None:
    """Entry point of `tidegate` and `kubectl tidegate`."""
    _mount_local_cluster()
    app()
