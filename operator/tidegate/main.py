"""The command `tidegate`: the three processes of the operator, and the tools for people.

Each process is imported by its own command: together they take three seconds, for which nobody waits who asks a question.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate import __version__
from tidegate.cli.bench import register as register_bench
from tidegate.cli.calibrate import calibrate
from tidegate.cli.decisions import register as register_decisions
from tidegate.cli.diagnosis import register as register_diagnosis
from tidegate.cli.get import register as register_get
from tidegate.cli.options import ActingFor, Context, Format, Output, System, answered, show
from tidegate.cli.overrides import register as register_overrides
from tidegate.cli.plan import register as register_plan
from tidegate.cli.pools import register as register_pools
from tidegate.cli.release import register as register_release
from tidegate.cli.report import register as register_report
from tidegate.cli.status import register as register_status
from tidegate.cli.top import register as register_top
from tidegate.cli.xds import register
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.settings import Settings

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
    from tidegate.settings import PodIdentity

    settings = _start()
    _run(run_controllers(settings, PodIdentity(), _cluster(kubeconfig)))


xds = typer.Typer(name="xds", help="The xDS server: without a command, run it.", invoke_without_command=True)
register(xds)
app.add_typer(xds)

pools = typer.Typer(name="pools", help="ComputePools: what to set up for them.", no_args_is_help=True)
register_pools(pools)
app.add_typer(pools)


release = typer.Typer(
    name="release", help="Releases of ModelAccesses: look at them, steer them.", no_args_is_help=True
)
register_release(release)
app.add_typer(release)


top = typer.Typer(name="top", help="What pools and Inferences do right now.", no_args_is_help=True)
register_top(top)
app.add_typer(top)


@pools.callback()
def _pools() -> None:
    """A group, though it has one command so far."""


@xds.callback()
def serve_xds(context: typer.Context, kubeconfig: Kubeconfig = None) -> None:
    """Run the xDS server that configures the gateways; or, with a command, ask those that run."""
    if context.invoked_subcommand is not None:
        return
    from tidegate.processes.xds import run_xds
    from tidegate.settings import PodIdentity

    settings = _start()
    _run(run_xds(settings, PodIdentity(), _cluster(kubeconfig)))


@app.command()
def web(kubeconfig: Kubeconfig = None) -> None:
    """Run the dashboard and the REST API."""
    from tidegate.processes.web import run_web
    from tidegate.settings import PodIdentity

    settings = _start()
    _run(run_web(settings, PodIdentity(), _cluster(kubeconfig)))


@app.command()
def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; default one that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open it, where this is a terminal.")] = True,
    prometheus: Annotated[
        str,
        typer.Option(
            help="Address of Prometheus, for rates, latencies and charts over time, like http://127.0.0.1:9090."
        ),
    ] = "",
    controllers: Annotated[
        str, typer.Option(help="host:port of the controllers' probes, where they are no pods.")
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Whose objects are shown; default all, or that of the context where you may not list all.",
        ),
    ] = None,
    system: System = None,
    context: Context = None,
    acting_for: ActingFor = "",
    kubeconfig: Kubeconfig = None,
) -> None:
    """Open the dashboard with the rights of your kubeconfig, on this machine alone; nothing need be installed for it."""
    from tidegate.cli.servers import usual_kubeconfig
    from tidegate.processes.dashboard import DashboardOptions, run_dashboard

    where = kubeconfig or usual_kubeconfig()
    answered(
        run_dashboard(
            DashboardOptions(
                where, context, acting_for, namespace, system, port, browser, prometheus, controllers
            )
        )
    )


app.command()(calibrate)
register_status(app)
register_get(app)
register_report(app)
register_bench(app)
register_decisions(app)
register_overrides(app)
register_diagnosis(app)
register_plan(app)


@app.command()
def version(output: Output = Format.TEXT) -> None:
    """Print the version of this command; `tidegate status` says the installation's."""
    if output is Format.TEXT:
        typer.echo(__version__)
        return
    from tidegate.reports.version import VersionReport

    show(VersionReport(version=__version__), output)


def _start() -> "Settings":
    from tidegate.runtime.logging import LogFormat, configure_logging
    from tidegate.settings import Settings

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
    """`tidegate local …` and `tidegate demo …`, where the local cluster is installed; the image goes without.

    Both are imported when they are asked for: they take a second, and whoever asks something else would wait for it.
    """
    if find_spec("tidegate_localcluster") is None:
        return
    for name, module, about in _LOCAL:
        if _complete_variable(Path(sys.argv[0]).name) in os.environ:
            # A shell that completes has to know their commands.
            app.add_typer(import_module(module).app, name=name)
        else:
            app.command(name, help=about, add_help_option=False, context_settings=_AS_IT_IS)(
                _handed_on(module)
            )


_LOCAL: Final = (
    ("local", "tidegate_localcluster.cli", "A real Kubernetes cluster on this machine, without Docker."),
    (
        "demo",
        "tidegate_localcluster.demo.cli",
        "A real model on a real cluster: trained, served, scored, and swapped under load.",
    ),
)
_AS_IT_IS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def _handed_on(module: str) -> Callable[[typer.Context], None]:
    """A command that gives all it is told to those of a module."""

    def hand_on(context: typer.Context) -> None:
        import_module(module).app(context.args, prog_name=context.command_path)

    return hand_on


def main() -> None:
    """Entry point of `tidegate` and `kubectl tidegate`."""
    _mount_local_cluster()
    program = Path(sys.argv[0]).name
    # kubectl's users read what they have typed.
    app(prog_name=program.replace("kubectl-", "kubectl ", 1), complete_var=_complete_variable(program))


def _complete_variable(program: str) -> str:
    """What a shell sets that wants to complete."""
    return f"_{program}_COMPLETE".replace("-", "_").upper()
