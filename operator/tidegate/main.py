"""The command `tidegate`: the three processes of the operator, and the tools for people.

Each command imports its own process: together the imports take three seconds, which would delay every other command.
"""

import asyncio
import atexit
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate import __version__
from tidegate.cli.analyze import register_commands as register_analyze
from tidegate.cli.bench import register_commands as register_bench
from tidegate.cli.calibrate import calibrate
from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.convert import register_commands as register_convert
from tidegate.cli.decisions import register_commands as register_decisions
from tidegate.cli.doctor import register_commands as register_doctor
from tidegate.cli.feature_catalogue import register_commands as register_feature_catalogue
from tidegate.cli.feature_drift import register_commands as register_feature_drift
from tidegate.cli.features import register_commands as register_features
from tidegate.cli.get import register_commands as register_get
from tidegate.cli.help_pages import SERVER_PANEL, PanelGroup, complete_help, find_panel
from tidegate.cli.optimize import optimize_file
from tidegate.cli.options import (
    Output,
    OutputFormat,
    SystemNamespace,
    print_report,
    run_or_exit,
)
from tidegate.cli.overrides import register_commands as register_overrides
from tidegate.cli.plan import register_commands as register_plan
from tidegate.cli.pools import register_commands as register_pools
from tidegate.cli.record import register_commands as register_record
from tidegate.cli.release import register_commands as register_release
from tidegate.cli.report import register_commands as register_report
from tidegate.cli.simulate import register_commands as register_simulate
from tidegate.cli.status import register_commands as register_status
from tidegate.cli.top import register_commands as register_top
from tidegate.cli.xds import register_commands
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.settings import ControlPlaneSettings

app = typer.Typer(
    name="tidegate",
    help="Serves recommendation and ads models on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=PanelGroup,
)

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Cluster to connect to; default $KUBECONFIG, and in a pod its own ServiceAccount."),
]


@app.command("controllers")
def start_controllers(kubeconfig: Kubeconfig = None) -> None:
    """Run the controllers: watch, elect a leader, reconcile."""
    from tidegate.settings import PodIdentity

    # By name: the controllers build on this package, which therefore imports nothing of theirs (ADR 1).
    process = import_module("tidegate_controllers.process")
    settings = _load_settings()
    _run_process(process.run_controllers(settings, PodIdentity(), _select_kubeconfig(kubeconfig)))


xds = typer.Typer(
    name="xds", help="Inspect the xDS servers, which configure the gateways.", no_args_is_help=True
)
register_commands(xds)
app.add_typer(xds)

pools = typer.Typer(name="pools", help="Configure nodes for ComputePools.", no_args_is_help=True)
register_pools(pools)
app.add_typer(pools)


features = typer.Typer(
    name="features",
    help="Show the features of FeatureComputes, and compute them without a cluster.",
    no_args_is_help=True,
)
register_feature_catalogue(features)
register_feature_drift(features)
register_features(features)
app.add_typer(features)


release = typer.Typer(
    name="release", help="Show and control releases of ModelAccesses.", no_args_is_help=True
)
register_release(release)
app.add_typer(release)


top = typer.Typer(name="top", help="Show the present load of pools and Inferences.", no_args_is_help=True)
register_top(top)
app.add_typer(top)


convert = typer.Typer(
    name="convert", help="Convert objects of other systems into Tidegate's.", no_args_is_help=True
)
register_convert(convert)
app.add_typer(convert)


@convert.callback()
def _group_convert() -> None:
    """Make `convert` a group, although it has only one command."""


@pools.callback()
def _group_pools() -> None:
    """Make `pools` a group, although it has only one command."""


@xds.command("serve", rich_help_panel=SERVER_PANEL)
def serve_xds(kubeconfig: Kubeconfig = None) -> None:
    """Run the xDS server that configures the gateways."""
    from tidegate.processes.xds import run_xds
    from tidegate.settings import PodIdentity

    settings = _load_settings()
    _run_process(run_xds(settings, PodIdentity(), _select_kubeconfig(kubeconfig)))


@app.command("web")
def serve_web(kubeconfig: Kubeconfig = None) -> None:
    """Run the dashboard and the REST API."""
    from tidegate.processes.web import run_web
    from tidegate.settings import PodIdentity

    settings = _load_settings()
    _run_process(run_web(settings, PodIdentity(), _select_kubeconfig(kubeconfig)))


@app.command("dashboard")
@with_cluster_options
def open_dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; default a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser, if this is a terminal.")] = True,
    prometheus: Annotated[
        str,
        typer.Option(
            help="Address of Prometheus for rates, latencies and charts, like http://127.0.0.1:9090."
        ),
    ] = "",
    controllers: Annotated[
        str, typer.Option(help="host:port of the controllers' probes, if they do not run in pods.")
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace to show; default all, or the context's namespace if you may not list all.",
        ),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show a recorded fleet of 12 GPU nodes; no cluster is needed.")
    ] = False,
    system: SystemNamespace = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Run the dashboard on this machine, with the rights of your kubeconfig; the cluster needs no installation for it."""
    from tidegate.processes.dashboard import DashboardOptions, run_dashboard, run_recorded_dashboard

    options = DashboardOptions(cluster, namespace, system, port, browser, prometheus, controllers)
    run_or_exit(run_recorded_dashboard(options) if recorded else run_dashboard(options))


app.command("calibrate")(calibrate)
app.command("optimize")(optimize_file)
register_status(app)
register_get(app)
register_report(app)
register_bench(app)
register_decisions(app)
register_overrides(app)
register_analyze(app)
register_doctor(app)
register_plan(app)
register_record(app)
register_simulate(app)


@app.command("version")
def print_version(output: Output = OutputFormat.TEXT) -> None:
    """Print the version of this command; `tidegate status` shows the installation's."""
    if output is OutputFormat.TEXT:
        typer.echo(__version__)
        return
    from tidegate.reports.report import VersionReport

    print_report(VersionReport(version=__version__), output)


complete_help(app)


def _load_settings() -> "ControlPlaneSettings":
    from tidegate.runtime.logging import LogFormat, configure_logging
    from tidegate.settings import ControlPlaneSettings

    settings = ControlPlaneSettings()
    configure_logging(level=settings.log_level, log_format=LogFormat(settings.log_format))
    return settings


def _select_kubeconfig(kubeconfig: Path | None) -> Path | None:
    if kubeconfig is not None:
        # kopf reads only this variable: without it kopf would watch another cluster, or none.
        os.environ["KUBECONFIG"] = str(kubeconfig)
    path = os.environ.get("KUBECONFIG")
    return Path(path) if path else None


def _run_process(process: Coroutine[Any, Any, None]) -> None:
    gc.freeze()  # what is imported stays
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        asyncio.run(process)
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)


def _mount_local_cluster() -> None:
    """Add `tidegate local …` and `tidegate demo …` if the local cluster is installed; images do not contain it.

    Each command imports its module when it runs: the imports take a second, which would delay every other command.
    """
    if find_spec("tidegate_localcluster") is None:
        return
    for name, module, about in _LOCAL_COMMANDS:
        if _completion_variable(Path(sys.argv[0]).name) in os.environ:
            # Completion needs their commands.
            app.add_typer(import_module(module).app, name=name, rich_help_panel=find_panel(name))
        else:
            app.command(
                name,
                help=about,
                rich_help_panel=find_panel(name),
                add_help_option=False,
                context_settings=_PASS_THROUGH,
            )(_delegate_to(module))


_LOCAL_COMMANDS: Final = (
    ("local", "tidegate_localcluster.cli", "A real Kubernetes cluster on this machine, without Docker."),
    (
        "demo",
        "tidegate_localcluster.demo.cli",
        "A real model on a real cluster: trained, served, scored, and swapped under load.",
    ),
)
_PASS_THROUGH: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def _delegate_to(module: str) -> Callable[[typer.Context], None]:
    """Return a command that passes all its arguments to the app of a module."""

    def delegate(context: typer.Context) -> None:
        import_module(module).app(context.args, prog_name=context.command_path)

    return delegate


_COLLECTION_THRESHOLDS: Final = gc.get_threshold()
_IMPORT_THRESHOLD: Final = 50_000
"""New objects between two searches for garbage while modules are imported, which leave hardly any."""


def main() -> None:
    """Run `tidegate` or `kubectl tidegate`."""
    gc.set_threshold(_IMPORT_THRESHOLD, *_COLLECTION_THRESHOLDS[1:])
    # Python would end with a search of all that is imported, which takes as long as many a command.
    atexit.register(gc.freeze)
    _mount_local_cluster()
    program = Path(sys.argv[0]).name
    # Messages show the command as users of kubectl have typed it.
    app(prog_name=program.replace("kubectl-", "kubectl ", 1), complete_var=_completion_variable(program))


def _completion_variable(program: str) -> str:
    """Return the environment variable that a shell sets for completion."""
    return f"_{program}_COMPLETE".replace("-", "_").upper()
