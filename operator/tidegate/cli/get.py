"""`tidegate get`: objects of one kind as a table, once or live."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.connection import open_client
from tidegate.cli.following import INTERRUPTED, print_document
from tidegate.cli.options import (
    AllNamespaces,
    KubeOptions,
    ObjectsNamespace,
    Output,
    OutputFormat,
    Selector,
    print_report,
    run_or_exit,
)
from tidegate.reports.orders import ListOrder

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.reports.listing import FollowedRows, ListReport
    from tidegate.services.listing import ObjectSelector

_REDRAW_S: Final = 5.0
"""The interval of redraws without a change, because ages grow."""


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("get")(get)


@with_cluster_options
def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="inferences, modelaccesses, featurecomputes, computepools, overrides or decisions, or a short name.",
        ),
    ] = "inferences",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of one object.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow changes.")] = False,
    selector: Selector = "",
    sort: Annotated[
        ListOrder, typer.Option("--sort", help="name, state (the worst first) or age.")
    ] = ListOrder.NAME,
    namespace: ObjectsNamespace = None,
    everywhere: AllNamespaces = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """List objects of Tidegate's kinds with their states; -w follows changes: a live table on a terminal, otherwise a line each."""
    from tidegate.cli.object_names import ALIASES

    if kind.lower() not in ALIASES:
        message = (
            f'unknown kind "{kind}"; expected one of: inferences, modelaccesses, featurecomputes, '
            "computepools, overrides, decisions"
        )
        raise typer.BadParameter(message)
    options = KubeOptions(namespace, everywhere, cluster)
    if not watch:
        print_report(run_or_exit(_read_list(kind, name, selector, sort, options)), output)
        return
    try:
        run_or_exit(_follow_changes(kind, name, selector, sort, options, output))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


async def _read_list(
    kind: str, name: str | None, labels: str, order: ListOrder, options: KubeOptions
) -> ListReport:
    from tidegate.services.listing import read_list

    async with open_client(options) as (client, namespace):
        return await read_list(client, _select_objects(kind, name, labels, options, namespace), order)


async def _follow_changes(
    kind: str,
    name: str | None,
    labels: str,
    order: ListOrder,
    options: KubeOptions,
    output: OutputFormat,
) -> None:
    """Print the objects and each change until interrupted. Raises TidegateError or ValueError."""
    from tidegate.reports.listing import FollowedRows

    async with open_client(options) as (client, namespace):
        chosen = _select_objects(kind, name, labels, options, namespace)
        followed = FollowedRows(chosen.kind.kind, order)
        if output in {OutputFormat.TEXT, OutputFormat.WIDE} and sys.stdout.isatty():
            await _draw_table(client, chosen, followed, wide=output is OutputFormat.WIDE)
        else:
            await _print_changes(client, chosen, followed, output)


def _select_objects(
    kind_name: str, name: str | None, labels: str, options: KubeOptions, namespace: str
) -> ObjectSelector:
    from tidegate.cli.object_names import ALIASES, parse_object_name
    from tidegate.services.listing import ObjectSelector

    kind = ALIASES[kind_name.lower()]
    object_name = parse_object_name(name) if name is not None else None
    within = ""
    if kind.namespaced and not options.everywhere:
        within = (object_name.namespace if object_name is not None else None) or namespace
    return ObjectSelector(kind, within, labels, object_name.name if object_name is not None else None)


async def _print_changes(
    client: KubeClient, chosen: ObjectSelector, followed: FollowedRows, output: OutputFormat
) -> None:
    """Print a line, or a document, for each change."""
    from tidegate.reports.listing import ChangeLines
    from tidegate.reports.report import format_name
    from tidegate.services.object_watch import watch_objects

    kind = chosen.kind.kind
    table = ChangeLines(kind, wide=output is OutputFormat.WIDE, namespaced=not chosen.namespace)
    async with watch_objects(client, chosen) as changes:
        while True:
            reports, skipped = followed.apply_changes(await changes.next_changes())
            _print_skipped(skipped)
            if output in {OutputFormat.TEXT, OutputFormat.WIDE}:
                for line in table.render_lines(reports, datetime.now(UTC)):
                    typer.echo(line)
                continue
            for change in reports:
                if output is OutputFormat.NAME:
                    typer.echo(format_name(kind, change.object.name))
                else:
                    print_document(change.model_dump(mode="json", by_alias=True), output)


def _print_skipped(skipped: Sequence[str]) -> None:
    for reason in skipped:
        typer.echo(f"tidegate: left out: {reason}", err=True)


async def _draw_table(
    client: KubeClient, chosen: ObjectSelector, followed: FollowedRows, *, wide: bool
) -> None:
    """Draw a table and keep it up to date in place."""
    from rich.live import Live
    from rich.table import Table

    from tidegate.reports.listing import column_titles, row_cells
    from tidegate.services.object_watch import watch_objects

    kind, namespaced = chosen.kind.kind, not chosen.namespace

    def build_table() -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for title in column_titles(kind, wide=wide, namespaced=namespaced):
            grid.add_column(title, no_wrap=True)
        for row in followed.sorted_rows:
            grid.add_row(*row_cells(row, datetime.now(UTC), wide=wide, namespaced=namespaced))
        return grid

    async with watch_objects(client, chosen) as changes:
        with Live(build_table(), auto_refresh=False) as live:
            while True:
                _, skipped = followed.apply_changes(await changes.next_changes(within_s=_REDRAW_S))
                _print_skipped(skipped)
                live.update(build_table(), refresh=True)
