"""Commands `tidegate demo up` and `tidegate demo down`."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.demo.kind import KindPlatform
from tidegate_localcluster.demo.platforms import DemoPlatform, LocalPlatform, OwnCluster, OwnClusterSettings
from tidegate_localcluster.demo.recipe import TrainingRecipe
from tidegate_localcluster.demo.scenario import ANSWERS_PER_VERSION, Demo, DemoSettings
from tidegate_localcluster.demo.steps import StepPrinter, read_durations, write_durations
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_parts import read_project_version
from tidegate_localcluster.supplies import find_source_root

app = typer.Typer(
    no_args_is_help=True,
    help="A real model on a real cluster: trained, served, scored, and swapped under load. "
    "On a local cluster, on one of kind, or on the one that KUBECONFIG names.",
)

LINE_WIDTH: Final = 160
StatePath = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", help="Folder of the local cluster [default: $TIDEGATE_HOME/clusters/default]."
    ),
]
OnKind = Annotated[
    bool, typer.Option("--on-kind", help="Use a kind cluster that the demo creates; needs Docker and kind.")
]


@app.command()
def up(
    state_dir: StatePath = None,
    on_kind: OnKind = False,
    answers: Annotated[
        int, typer.Option(min=1, max=20_000, help="Answers to wait for, of each version, under load.")
    ] = ANSWERS_PER_VERSION,
) -> None:
    """Run the whole demo. The cluster stays; running it again starts over at version 1."""
    steps = StepPrinter(_make_console(), read_durations(default_home()))
    with _report_errors(steps):
        settings = DemoSettings(source_root=find_source_root(), answers_per_version=answers)
        recipe = TrainingRecipe(settings.source_root, default_home())
        Demo(_select_platform(state_dir, on_kind=on_kind), recipe, settings, steps).run()
    write_durations(default_home(), steps.seconds, steps.print_progress)


@app.command()
def down(state_dir: StatePath = None, on_kind: OnKind = False) -> None:
    """Stop the local cluster, delete that of kind, or uninstall the release from a cluster of your own."""
    steps = StepPrinter(_make_console())
    with _report_errors(steps), steps.print_step("Remove the demo"):
        steps.print_progress(_select_platform(state_dir, on_kind=on_kind).remove_demo(steps.print_progress))


def _make_console() -> Console:
    """Return the terminal, or a console with wide lines if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=LINE_WIDTH)


def _select_platform(state_dir: Path | None, *, on_kind: bool) -> DemoPlatform:
    if on_kind:
        root = find_source_root()
        return KindPlatform(default_home(), root, read_project_version(root))
    if os.environ.get("KUBECONFIG"):
        version = read_project_version(find_source_root())
        return OwnCluster(default_home(), OwnClusterSettings.from_environment(os.environ, version))
    return LocalPlatform(default_home(), state_dir or default_home() / "clusters" / "default")


@contextmanager
def _report_errors(steps: StepPrinter) -> Generator[None]:
    """Exit with the message and the step's name on our own errors; let others keep their traceback."""
    try:
        yield
    except LocalClusterError as error:
        typer.echo(f"\ntidegate demo failed at '{steps.title}':\n{error}", err=True)
        raise typer.Exit(1) from error
