"""Read the objects that `tidegate get` lists, once or continuously, and print them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import typer

from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions, OutputFormat
from tidegate.cli.run.object_names import ALIASES, parse_object_name
from tidegate.cli.run.object_watch import ChangeFeed, WatchSelector, watch_objects
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.reports.get_rows import ROWS, AnyRow, build_row
from tidegate.reports.listing import (
    ChangeReport,
    ChangeType,
    ColumnWidths,
    ListOrder,
    ListReport,
    column_titles,
    row_cells,
    sort_rows,
)
from tidegate.reports.report import format_name
from tidegate.services.listing import KindLister

_REDRAW_S: Final = 5.0
"""The interval of redraws without a change, because ages grow."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The arguments of one `tidegate get`."""

    kind: str
    name: str | None = None
    selector: str = ""
    sort: ListOrder = ListOrder.NAME


async def read_list(query: ListQuery, options: KubeOptions) -> ListReport:
    """Return the objects as they are now. Raises TidegateError or ValueError with the way out."""
    async with open_client(options) as (client, default_namespace):
        chosen = _select_objects(query, options, default_namespace)
        reader = KindLister(client, (chosen.namespace,))
        model, _ = ROWS[chosen.kind.kind]
        resources = await reader.list_parsed(
            chosen.kind, model, selector=chosen.selector, fields=chosen.fields
        )
        reader.check_readable()
        if query.name is not None and not resources and not reader.skipped:
            location = f' in namespace "{chosen.namespace}"' if chosen.namespace else ""
            message = f'{chosen.kind} "{parse_object_name(query.name).name}" not found{location}; list them with "tidegate get {query.kind} -A"'
            raise PermanentError(message)
        return ListReport(
            kind=chosen.kind.kind,
            namespace=chosen.namespace or None,
            at=datetime.now(UTC),
            items=sort_rows(map(build_row, resources), query.sort),
            skipped=tuple(reader.skipped),
        )


async def follow_changes(query: ListQuery, options: KubeOptions, output: OutputFormat) -> None:
    """Print the objects and each change until interrupted. Raises TidegateError or ValueError."""
    async with open_client(options) as (client, default_namespace):
        chosen = _select_objects(query, options, default_namespace)
        if output in {OutputFormat.TEXT, OutputFormat.WIDE} and sys.stdout.isatty():
            await _draw_table(client, chosen, query.sort, wide=output is OutputFormat.WIDE)
        else:
            await _print_changes(client, chosen, query.sort, output)


def _select_objects(query: ListQuery, options: KubeOptions, default_namespace: str) -> WatchSelector:
    kind = ALIASES.get(query.kind.lower())
    if kind is None:
        message = f"'{query.kind}' is no kind of ours: inferences, modelaccesses, featurecomputes, computepools, overrides or decisions"
        raise ValueError(message)
    object_name = parse_object_name(query.name) if query.name is not None else None
    namespace = ""
    if kind.namespaced and not options.everywhere:
        namespace = (
            (object_name.namespace if object_name is not None else None)
            or options.namespace
            or default_namespace
        )
    fields = f"metadata.name={object_name.name}" if object_name is not None else ""
    return WatchSelector(kind, namespace, query.selector, fields)


async def _print_changes(
    client: KubeClient, selector: WatchSelector, sort: ListOrder, output: OutputFormat
) -> None:
    """Print a line, or a document, for each change."""
    rows = dict[ObjectKey, AnyRow]()
    lines = _ChangePrinter(selector, wide=output is OutputFormat.WIDE)
    async with watch_objects(client, selector) as changes:
        while True:
            reports = list(_update_rows(await changes.next_changes(), rows, selector.kind.kind, sort))
            if output in {OutputFormat.TEXT, OutputFormat.WIDE}:
                lines.print_changes(reports)
            for change in reports if output is OutputFormat.NAME else ():
                typer.echo(format_name(selector.kind.kind, change.object.name))
            for change in reports if output in {OutputFormat.JSON, OutputFormat.YAML} else ():
                _print_document(change.model_dump(mode="json", by_alias=True), output)


def _print_document(change: Mapping[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(change))
        return
    import yaml

    typer.echo(yaml.safe_dump(change, sort_keys=False, explicit_start=True), nl=False)


class _ChangePrinter:
    """A printer of changes as lines of one table with one head."""

    def __init__(self, selector: WatchSelector, *, wide: bool) -> None:
        self._wide, self._namespaced = wide, not selector.namespace
        self._widths = ColumnWidths()
        self._head = [column_titles(selector.kind.kind, wide=wide, namespaced=self._namespaced)]

    def print_changes(self, changes: Sequence[ChangeReport]) -> None:
        """Print the changes, and the head before the first of them."""
        now = datetime.now(UTC)
        rows = [
            row_cells(change.object, now, wide=self._wide, namespaced=self._namespaced) for change in changes
        ]
        if rows:
            table, self._head = [*self._head, *rows], []
            suffixes = ["   (deleted)" if change.type is ChangeType.DELETED else "" for change in changes]
            self._widths.fit_rows(table)
            for row, suffix in zip(table, ["", *suffixes][-len(table) :], strict=True):
                typer.echo(f"{self._widths.format_line(row)}{suffix}")


async def _draw_table(client: KubeClient, selector: WatchSelector, sort: ListOrder, *, wide: bool) -> None:
    """Draw a table and keep it up to date in place."""
    # Only a terminal needs rich.
    from rich.live import Live
    from rich.table import Table

    rows = dict[ObjectKey, AnyRow]()
    kind, namespaced = selector.kind.kind, not selector.namespace

    def build_table() -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for title in column_titles(kind, wide=wide, namespaced=namespaced):
            grid.add_column(title, no_wrap=True)
        for row in sort_rows(rows.values(), sort):
            grid.add_row(*row_cells(row, datetime.now(UTC), wide=wide, namespaced=namespaced))
        return grid

    async with watch_objects(client, selector) as changes:
        with Live(build_table(), auto_refresh=False) as live:
            while True:
                await _record_changes(changes, rows, kind, sort)
                live.update(build_table(), refresh=True)


async def _record_changes(
    changes: ChangeFeed, rows: dict[ObjectKey, AnyRow], kind: str, sort: ListOrder
) -> None:
    for _ in _update_rows(await changes.next_changes(within_s=_REDRAW_S), rows, kind, sort):
        pass


def _update_rows(
    changed: Mapping[ObjectKey, Manifest | None], rows: dict[ObjectKey, AnyRow], kind: str, sort: ListOrder
) -> Iterator[ChangeReport]:
    """Update `rows` with the changed objects and yield the changes that a row shows.

    Several changes come in the order of `sort`. An object whose row stays the same is no change.
    """
    changes: list[tuple[ChangeType, AnyRow]] = []
    for key, body in changed.items():
        previous = rows.get(key)
        if body is None:
            if previous is not None:
                del rows[key]
                changes.append((ChangeType.DELETED, previous))
            continue
        try:
            row = build_row(ROWS[kind][0].parse(body))
        except PermanentError as error:
            typer.echo(f"tidegate: left out: {kind} {key} cannot be read by this version: {error}", err=True)
            continue
        if row != previous:
            rows[key] = row
            changes.append((ChangeType.ADDED if previous is None else ChangeType.MODIFIED, row))
    order = {id(row): position for position, row in enumerate(sort_rows((row for _, row in changes), sort))}
    for type_, row in sorted(changes, key=lambda change: order[id(change[1])]):
        yield ChangeReport(type=type_, object=row)
