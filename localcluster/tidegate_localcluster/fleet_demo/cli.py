"""`make demo-fleet` and `make demo-fleet-down`: bring the fleet up, say where to look, and take it away again."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import Cluster, ClusterOptions, Supplies
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.simulation import WHAT_IT_IS
from tidegate_localcluster.fleet_demo.site import entrance
from tidegate_localcluster.fleet_demo.workload import GPUS_PER_NODE, SLICES_PER_GPU
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.state import Fleet, Plan
from tidegate_localcluster.supplies import find_supplies

NAME: Final = "fleet"
_DEFAULT: Final = Fleet()

app = typer.Typer(
    no_args_is_help=True,
    help="A fleet that nobody has to own: real controllers and a real API server, simulated GPU nodes, "
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
        bool, typer.Option("--fresh", help="Fill the pool anew, and not from what an earlier run kept.")
    ] = False,
) -> None:
    """Bring the fleet up, and leave it running. Where it runs already, say where it is."""
    fleet = Fleet(nodes=nodes, inferences=inferences, speed=speed, seed=seed, fresh=fresh)
    with _messages():
        cluster, progress = _cluster(state_dir), _progress()
        began, ran = time.monotonic(), cluster.supervisor() is not None
        try:
            _bring_up(cluster, fleet, progress)
        except KeyboardInterrupt:
            if not ran:
                progress("interrupted; taking it away")
                _take_away(cluster, progress)
            raise typer.Exit(130) from None
        _farewell(cluster, time.monotonic() - began)


@app.command()
def down(state_dir: StatePath = None) -> None:
    """End what `up` started, and remove its folder."""
    with _messages():
        cluster, progress = _cluster(state_dir), _progress()
        if not cluster.files.path.exists():
            progress(f"there is no fleet in {cluster.files.path}")
            return
        if Plan.read(cluster.files.plan) is not None:
            _fleet_of(cluster)
            cluster.end_fleet()
        _take_away(cluster, progress)


def _take_away(cluster: Cluster, progress: Progress) -> None:
    remains = cluster.down(progress)
    if remains:
        raise LocalClusterError(f"the fleet is down, but something is left: {remains}")
    cluster.remove()
    progress(f"down; no process is left, and {cluster.files.path} is gone")


def _bring_up(cluster: Cluster, fleet: Fleet, progress: Progress) -> None:
    options = ClusterOptions(name=cluster.files.path.name, control_plane_only=True, fleet=fleet)
    supplies = Supplies({})
    if cluster.supervisor() is None:
        slices = fleet.nodes * GPUS_PER_NODE * SLICES_PER_GPU
        progress(
            f"{fleet.inferences:,} Inferences on {slices:,} slices of {fleet.nodes:,} simulated GPU nodes; "
            "API server, scheduler, controllers and allocator are real, pods and requests are not"
        )
        supplies = replace(find_supplies(default_home(), options, None, progress), home=default_home())
    cluster.up(options, supplies, progress)


def _farewell(cluster: Cluster, seconds: float) -> None:
    """Where to look, and what to type."""
    plan, status = cluster.plan(), cluster.status()
    fleet = _fleet_of(cluster)
    usual = cluster.files.path == _cluster(None).files.path
    option = "" if usual else f" --state-dir {cluster.files.path}"
    kubectl = plan.binaries["kubectl"]
    asked = objects.models_of(plan)[0]
    address = f"127.0.0.1:{plan.probes['controllers']}"
    lines = (
        "",
        f"Up after {seconds:.0f} s, and it keeps running. A day takes {_day_text(fleet.speed)}.",
        "",
        f"  dashboard   {entrance(cluster.files) or status['dashboard']}",
        f"  Prometheus  {status['prometheus']}",
        f"              {WHAT_IT_IS}",
        f"  kubeconfig  {cluster.files.kubeconfig}",
        f"  logs        {cluster.files.logs}",
        "",
        "Next:",
        f"  export KUBECONFIG={cluster.files.kubeconfig} PATH=$PATH:{kubectl.parent}:$PWD/.venv/bin",
        f"  kubectl get inferences -n {objects.NAMESPACE}",
        f"  tidegate plan {objects.POOL} --address {address} --factor 1.5",
        f"  tidegate override {objects.NAMESPACE}/{asked.name} --floor {asked.most} --for 10m --reason 'a sale begins'",
        f"  tidegate history {objects.POOL}",
        "",
        f"End it: {'make demo-fleet-down' if usual else f'python -m tidegate_localcluster.fleet_demo down{option}'}",
    )
    for line in lines:
        typer.echo(line)


def _day_text(speed: float) -> str:
    return f"{24 * 60 / speed:.1f} minutes" if speed > 0 else "for ever: it stands still"


def _fleet_of(cluster: Cluster) -> Fleet:
    fleet = cluster.plan().fleet
    if fleet is None:
        raise LocalClusterError(
            f"what is in {cluster.files.path} is a local cluster and no fleet: name another --state-dir"
        )
    return fleet


def _cluster(state_dir: Path | None) -> Cluster:
    return Cluster(state_dir if state_dir is not None else default_home() / "clusters" / NAME)


def _progress() -> Progress:
    start = time.monotonic()

    def say(message: str) -> None:
        typer.echo(f"[{time.monotonic() - start:5.1f} s] {message}")

    return say


@contextmanager
def _messages() -> Generator[None]:
    """Our own errors end the program with their message; anything else is a fault of ours and keeps its trace."""
    try:
        yield
    except LocalClusterError as error:
        typer.echo(f"tidegate demo-fleet: {error}", err=True)
        raise typer.Exit(1) from error
