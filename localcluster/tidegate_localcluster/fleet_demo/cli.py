"""Commands of `make demo-fleet` and `make demo-fleet-down`."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import ClusterOptions, LocalCluster, Supplies
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.simulation import DISCLAIMER
from tidegate_localcluster.fleet_demo.site import read_dashboard_address
from tidegate_localcluster.fleet_demo.workload import GPUS_PER_NODE, SLICES_PER_GPU
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.state import ClusterPlan, FleetSettings
from tidegate_localcluster.supplies import find_supplies

NAME: Final = "fleet"
_DEFAULT: Final = FleetSettings()

app = typer.Typer(
    no_args_is_help=True,
    help="A simulated fleet: real controllers and a real API server, simulated GPU nodes, "
    "a day's load on fast forward. No root.",
)

StatePath = Annotated[
    Path | None,
    typer.Option("--state-dir", help=f"Folder of the fleet [default: $TIDEGATE_HOME/clusters/{NAME}]."),
]


@app.command()
def up(
    state_dir: StatePath = None,
    nodes: Annotated[int, typer.Option(min=1, max=5000, help="Simulated GPU nodes.")] = _DEFAULT.nodes,
    inferences: Annotated[int, typer.Option(min=3, max=10_000, help="Inferences.")] = _DEFAULT.inferences,
    speed: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Times as fast as the clock; 0: the day stands still.")
    ] = _DEFAULT.speed,
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another fleet.")] = _DEFAULT.seed,
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Fill the pool from scratch instead of restoring an earlier run.")
    ] = False,
) -> None:
    """Start the fleet and leave it running. If it runs already, print its addresses."""
    fleet = FleetSettings(nodes=nodes, inferences=inferences, speed=speed, seed=seed, fresh=fresh)
    with _report_errors():
        cluster, progress = _open_cluster(state_dir), _make_progress()
        started_at, was_running = time.monotonic(), cluster.find_supervisor() is not None
        try:
            _start_fleet(cluster, fleet, progress)
        except KeyboardInterrupt:
            if not was_running:
                progress("interrupted; removing the fleet")
                _remove_fleet(cluster, progress)
            raise typer.Exit(130) from None
        _print_next_steps(cluster, time.monotonic() - started_at)


@app.command()
def down(state_dir: StatePath = None) -> None:
    """Stop the fleet and remove its folder."""
    with _report_errors():
        cluster, progress = _open_cluster(state_dir), _make_progress()
        if not cluster.files.path.exists():
            progress(f"there is no fleet in {cluster.files.path}")
            return
        if ClusterPlan.read(cluster.files.plan) is not None:
            _fleet_of(cluster)
            cluster.kill_fleet()
        _remove_fleet(cluster, progress)


def _remove_fleet(cluster: LocalCluster, progress: Progress) -> None:
    leftovers = cluster.tear_down(progress)
    if leftovers:
        raise LocalClusterError(f"the fleet is down, but something is left: {leftovers}")
    cluster.remove_files()
    progress(f"down; no process is left, and {cluster.files.path} is gone")


def _start_fleet(cluster: LocalCluster, fleet: FleetSettings, progress: Progress) -> None:
    options = ClusterOptions(name=cluster.files.path.name, control_plane_only=True, fleet=fleet)
    supplies = Supplies({})
    if cluster.find_supervisor() is None:
        slices = fleet.nodes * GPUS_PER_NODE * SLICES_PER_GPU
        progress(
            f"{fleet.inferences:,} Inferences on {slices:,} slices of {fleet.nodes:,} simulated GPU nodes; "
            "API server, scheduler, controllers and allocator are real, pods and requests are not"
        )
        supplies = replace(find_supplies(default_home(), options, None, progress), home=default_home())
    cluster.bring_up(options, supplies, progress)


def _print_next_steps(cluster: LocalCluster, seconds: float) -> None:
    """Print the addresses of the fleet and the next commands to try."""
    plan, status = cluster.read_plan(), cluster.read_status()
    fleet = _fleet_of(cluster)
    is_default = cluster.files.path == _open_cluster(None).files.path
    option = "" if is_default else f" --state-dir {cluster.files.path}"
    kubectl = plan.binaries["kubectl"]
    model = objects.list_models(plan)[0]
    address = f"127.0.0.1:{plan.probes['controllers']}"
    lines = (
        "",
        f"Up after {seconds:.0f} s, and it keeps running. A day takes {_format_day_length(fleet.speed)}.",
        "",
        f"  dashboard   {read_dashboard_address(cluster.files) or status['dashboard']}",
        f"  Prometheus  {status['prometheus']}",
        f"              {DISCLAIMER}",
        f"  kubeconfig  {cluster.files.kubeconfig}",
        f"  logs        {cluster.files.logs}",
        "",
        "Next:",
        f"  export KUBECONFIG={cluster.files.kubeconfig} PATH=$PATH:{kubectl.parent}:$PWD/.venv/bin",
        f"  kubectl get inferences -n {objects.NAMESPACE}",
        f"  tidegate plan {objects.POOL} --address {address} --factor 1.5",
        f"  tidegate override {objects.NAMESPACE}/{model.name} --floor {model.max_replicas} --for 10m --reason 'a sale begins'",
        f"  tidegate history {objects.POOL}",
        "",
        f"End it: {'make demo-fleet-down' if is_default else f'python -m tidegate_localcluster.fleet_demo down{option}'}",
    )
    for line in lines:
        typer.echo(line)


def _format_day_length(speed: float) -> str:
    return f"{24 * 60 / speed:.1f} minutes" if speed > 0 else "for ever: it stands still"


def _fleet_of(cluster: LocalCluster) -> FleetSettings:
    fleet = cluster.read_plan().fleet
    if fleet is None:
        raise LocalClusterError(
            f"what is in {cluster.files.path} is a local cluster and no fleet: name another --state-dir"
        )
    return fleet


def _open_cluster(state_dir: Path | None) -> LocalCluster:
    return LocalCluster(state_dir if state_dir is not None else default_home() / "clusters" / NAME)


def _make_progress() -> Progress:
    start = time.monotonic()

    def say(message: str) -> None:
        typer.echo(f"[{time.monotonic() - start:5.1f} s] {message}")

    return say


@contextmanager
def _report_errors() -> Generator[None]:
    """Exit with the message of our own errors; let others keep their traceback."""
    try:
        yield
    except LocalClusterError as error:
        typer.echo(f"tidegate demo-fleet: {error}", err=True)
        raise typer.Exit(1) from error
