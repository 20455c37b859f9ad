"""`tidegate local`: starts, inspects, uses and stops a local cluster."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from tidegate_localcluster.checks import check_machine
from tidegate_localcluster.cluster import ClusterOptions, LocalCluster, Supplies
from tidegate_localcluster.device_plugin import SharedGpuPlugin
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.network import MAX_NODES
from tidegate_localcluster.simulated_nodes import SHARED_GPU
from tidegate_localcluster.state import ClusterPhase
from tidegate_localcluster.supplies import find_supplies

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
PASS_ARGUMENTS_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": list[str](),
    # Our options come first; the first argument that is none of them begins the command, `--` included.
    "allow_interspersed_args": False,
}

app = typer.Typer(no_args_is_help=True, help="A real Kubernetes cluster on this machine, without Docker.")

NameOption = Annotated[
    str, typer.Option("--name", help="Name of the cluster; each has its own state folder.")
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", help="Folder of the cluster's files [default: $TIDEGATE_HOME/clusters/NAME]."
    ),
]


@app.command()
def up(
    name: NameOption = "default",
    state_dir: StateDirOption = None,
    *,
    control_plane_only: Annotated[
        bool,
        typer.Option(
            "--control-plane-only",
            help="Start only etcd, API server and controllers: needs no root, runs no pods.",
        ),
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, max=MAX_NODES, help="Number of real nodes.")] = 1,
    simulated_gpu_nodes: Annotated[
        int, typer.Option(min=0, help="Number of GPU nodes that KWOK simulates.")
    ] = 0,
    image: Annotated[
        list[str] | None, typer.Option(help="Build and load only this image; repeatable [default: all].")
    ] = None,
    detach: Annotated[
        bool, typer.Option(help="Return when the cluster is ready, or stay and stop it on Ctrl-C.")
    ] = True,
) -> None:
    """Start a cluster and wait until it is ready; do nothing if it is ready already."""
    options = ClusterOptions(
        name=_check_name(name),
        nodes=nodes,
        simulated_gpu_nodes=simulated_gpu_nodes,
        control_plane_only=control_plane_only,
    )
    with _report_errors():
        cluster, progress = _open_cluster(name, state_dir), _make_progress()
        supplies = Supplies({})
        if cluster.find_supervisor() is None:
            if not control_plane_only:
                check_machine(cluster.files.path)
            supplies = find_supplies(_find_home(), options, image, progress)
        cluster.bring_up(options, supplies, progress)
        progress("ready")
        typer.echo(f"export KUBECONFIG={cluster.files.kubeconfig}")
        if not detach:
            _wait_for_interrupt(cluster, progress)


@app.command()
def down(name: NameOption = "default", state_dir: StateDirOption = None) -> None:
    """Stop the cluster, remove its data, and check that it leaves nothing on the machine."""
    with _report_errors():
        _stop_cluster(_open_cluster(name, state_dir), _make_progress())


@app.command()
def status(
    name: NameOption = "default",
    state_dir: StateDirOption = None,
    output: Annotated[str, typer.Option("--output", "-o", help="json, or text.")] = "text",
) -> None:
    """Show what runs and its addresses; exit with 1 unless the cluster is ready."""
    with _report_errors():
        document = _open_cluster(name, state_dir).read_status()
        if output == "json":
            typer.echo(json.dumps(document, indent=2))
        else:
            for line in _format_status(document):
                typer.echo(line)
        if document["state"] != ClusterPhase.READY:
            raise typer.Exit(1)


@app.command()
def logs(
    part: Annotated[
        str | None, typer.Argument(help="A part, as `status` names it [default: list the names].")
    ] = None,
    name: NameOption = "default",
    state_dir: StateDirOption = None,
) -> None:
    """Print the log of a part."""
    with _report_errors():
        log_files = _open_cluster(name, state_dir).find_log_files()
        if part is None:
            typer.echo("\n".join(sorted(log_files)))
            return
        if part not in log_files:
            raise LocalClusterError(f"there is no log of {part!r}; there are: {', '.join(sorted(log_files))}")
        with log_files[part].open("rb") as log:
            shutil.copyfileobj(log, sys.stdout.buffer)


@app.command(context_settings=PASS_ARGUMENTS_ON)
def kubectl(context: typer.Context, name: NameOption = "default", state_dir: StateDirOption = None) -> None:
    """Run kubectl as the cluster's administrator."""
    with _report_errors():
        cluster = _open_cluster(name, state_dir)
        environment = {**os.environ, "KUBECONFIG": str(cluster.files.kubeconfig)}
        binary = cluster.read_plan().binaries["kubectl"]
        os.execve(binary, [str(binary), *context.args], environment)  # noqa: S606  no shell is wanted


@app.command("exec", context_settings=PASS_ARGUMENTS_ON)
def execute_command(
    context: typer.Context, name: NameOption = "default", state_dir: StateDirOption = None
) -> None:
    """Run a command inside the cluster's namespaces, for instance `curl` to a pod's address."""
    with _report_errors():
        cluster = _open_cluster(name, state_dir)
        environment = {**os.environ, "KUBECONFIG": str(cluster.files.kubeconfig)}
        command = cluster.wrap_command(context.args or [os.environ.get("SHELL", "/bin/sh")])
        os.execvpe(command[0], command, environment)  # noqa: S606  no shell is wanted


@app.command("load-image")
def load_image(
    archive: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An OCI or Docker archive.")],
    ref: Annotated[
        str | None, typer.Option(help="Reference of the image [default: those in the archive].")
    ] = None,
    name: NameOption = "default",
    state_dir: StateDirOption = None,
) -> None:
    """Load a container image into every node."""
    with _report_errors():
        _open_cluster(name, state_dir).load_image(archive, ref)


@app.command()
def slices(
    count: Annotated[int, typer.Argument(min=1, max=1000, help="Number of slices.")],
    node: Annotated[str, typer.Option(help="The real node.")] = "node-0",
    name: NameOption = "default",
    state_dir: StateDirOption = None,
) -> None:
    """Let a real node offer COUNT nvidia.com/gpu.shared without a GPU, until Ctrl-C. For tests."""
    with _report_errors(), SharedGpuPlugin(_open_cluster(name, state_dir).files, count, node=node) as offered:
        typer.echo(f"{node} offers {count} {SHARED_GPU}; press Ctrl-C to withdraw them", err=True)
        with suppress(KeyboardInterrupt):
            offered.wait_until_ended()


def _wait_for_interrupt(cluster: LocalCluster, progress: Callable[[str], None]) -> None:
    progress("press Ctrl-C to end the cluster")
    try:
        cluster.wait_until_ended()
    except KeyboardInterrupt:
        progress("interrupted")
    _stop_cluster(cluster, progress)


def _stop_cluster(cluster: LocalCluster, progress: Callable[[str], None]) -> None:
    if not cluster.files.path.exists():
        progress(f"there is no cluster in {cluster.files.path}")
        return
    remains = cluster.tear_down(progress)
    if remains:
        raise LocalClusterError(f"the cluster is down, but this is left on the machine: {remains}")
    progress("down; no process, mount, link or cgroup is left")


def _find_home() -> Path:
    return Path(os.environ.get("TIDEGATE_HOME", "~/.cache/tidegate")).expanduser()


def _open_cluster(name: str, state_dir: Path | None) -> LocalCluster:
    return LocalCluster(state_dir if state_dir is not None else _find_home() / "clusters" / _check_name(name))


def _check_name(name: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise typer.BadParameter(f"{name!r} is not a name of 1 to 30 lower-case letters, digits and dashes")
    return name


def _make_progress() -> Callable[[str], None]:
    start = time.monotonic()

    def print_progress(message: str) -> None:
        typer.echo(f"[{time.monotonic() - start:6.1f} s] {message}", err=True)

    return print_progress


@contextmanager
def _report_errors() -> Generator[None]:
    """Print our own errors and exit with 1; any other exception is a bug and keeps its traceback."""
    try:
        yield
    except LocalClusterError as error:
        typer.echo(f"tidegate local: {error}", err=True)
        raise typer.Exit(1) from error


def _format_status(document: Mapping[str, object]) -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {inner}: {'-' if shown is None else shown}" for inner, shown in value.items())
        elif value != "":
            yield f"{key}: {'-' if value is None else value}"
