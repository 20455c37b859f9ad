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
from tidegate.cli.connection import connected
from tidegate.cli.naming import ALIASES, asked
from tidegate.cli.options import Format, Where
from tidegate.cli.watching import Changes, Chosen, watched
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.operations.listing import Lister
from tidegate.reports.listing import (
    ChangeReport,
    ChangeType,
    ListReport,
    Sort,
    Widths,
    cells,
    head,
    listed,
)
from tidegate.reports.report import named
from tidegate.reports.rows import ROWS, AnyRow, row_of

_REDRAW_S: Final = 5.0
"""The interval of redraws without a change, because ages grow."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of one `tidegate get`."""

    kind: str
    name: str | None = None
    selector: str = ""
    sort: Sort = Sort.NAME


async def read_list(wanted: Wanted, where: Where) -> ListReport:
    """Return the objects as they are now. Raises TidegateError or ValueError with the way out."""
    async with connected(where) as (client, default_namespace):
        chosen = _chosen(wanted, where, default_namespace)
        reader = Lister(client, (chosen.namespace,))
        model, _ = ROWS[chosen.kind.kind]
        resources = await reader.read(chosen.kind, model, selector=chosen.selector, fields=chosen.fields)
        reader.check()
        if wanted.name is not None and not resources and not reader.skipped:
            location = f" in namespace {chosen.namespace}" if chosen.namespace else ""
            message = f"there is no {chosen.kind} {asked(wanted.name).name}{location}: tidegate get {wanted.kind} -A shows all"
            raise PermanentError(message)
        return ListReport(
            kind=chosen.kind.kind,
            namespace=chosen.namespace or None,
            at=datetime.now(UTC),
            items=listed(map(row_of, resources), wanted.sort),
            skipped=tuple(reader.skipped),
        )


async def follow(wanted: Wanted, where: Where, output: Format) -> None:
    """Print the objects and each change until interrupted. Raises TidegateError or ValueError."""
    async with connected(where) as (client, default_namespace):
        chosen = _chosen(wanted, where, default_namespace)
        if output in {Format.TEXT, Format.WIDE} and sys.stdout.isatty():
            await _draw(client, chosen, wanted.sort, wide=output is Format.WIDE)
        else:
            await _write(client, chosen, wanted.sort, output)


def _chosen(wanted: Wanted, where: Where, usual: str) -> Chosen:
    kind = ALIASES.get(wanted.kind.lower())
    if kind is None:
        message = f"'{wanted.kind}' is no kind of ours: inferences, modelaccesses, featurecomputes, computepools, overrides or decisions"
        raise ValueError(message)
    object_name = asked(wanted.name) if wanted.name is not None else None
    namespace = ""
    if kind.namespaced and not where.everywhere:
        namespace = (object_name.namespace if object_name is not None else None) or where.namespace or usual
    fields = f"metadata.name={object_name.name}" if object_name is not None else ""
    return Chosen(kind, namespace, wanted.selector, fields)


async def _write(client: KubeClient, chosen: Chosen, sort: Sort, output: Format) -> None:
    """Print a line, or a document, for each change."""
    rows = dict[ObjectKey, AnyRow]()
    lines = _Lines(chosen, wide=output is Format.WIDE)
    async with watched(client, chosen) as changes:
        while True:
            reports = list(_taken(await changes.next(), rows, chosen.kind.kind, sort))
            if output in {Format.TEXT, Format.WIDE}:
                lines.write(reports)
            for change in reports if output is Format.NAME else ():
                typer.echo(named(chosen.kind.kind, change.object.name))
            for change in reports if output in {Format.JSON, Format.YAML} else ():
                _document(change.model_dump(mode="json", by_alias=True), output)


def _document(change: Mapping[str, Any], output: Format) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(change))
        return
    import yaml

    typer.echo(yaml.safe_dump(change, sort_keys=False, explicit_start=True), nl=False)


class _Lines:
    """A printer of changes as lines of one table with one head."""

    def __init__(self, chosen: Chosen, *, wide: bool) -> None:
        self._wide, self._namespaced = wide, not chosen.namespace
        self._widths = Widths()
        self._head = [head(chosen.kind.kind, wide=wide, namespaced=self._namespaced)]

    def write(self, changes: Sequence[ChangeReport]) -> None:
        """Print the changes, and the head before the first of them."""
        now = datetime.now(UTC)
        rows = [cells(change.object, now, wide=self._wide, namespaced=self._namespaced) for change in changes]
        if rows:
            table, self._head = [*self._head, *rows], []
            suffixes = ["   (deleted)" if change.type is ChangeType.DELETED else "" for change in changes]
            self._widths.fit(table)
            for row, suffix in zip(table, ["", *suffixes][-len(table) :], strict=True):
                typer.echo(f"{self._widths.line(row)}{suffix}")


async def _draw(client: KubeClient, chosen: Chosen, sort: Sort, *, wide: bool) -> None:
    """Draw a table and keep it up to date in place."""
    # Only a terminal needs rich.
    from rich.live import Live
    from rich.table import Table

    rows = dict[ObjectKey, AnyRow]()
    kind, namespaced = chosen.kind.kind, not chosen.namespace

    def build_table() -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for title in head(kind, wide=wide, namespaced=namespaced):
            grid.add_column(title, no_wrap=True)
        for row in listed(rows.values(), sort):
            grid.add_row(*cells(row, datetime.now(UTC), wide=wide, namespaced=namespaced))
        return grid

    async with watched(client, chosen) as changes:
        with Live(build_table(), auto_refresh=False) as live:
            while True:
                await _learn(changes, rows, kind, sort)
                live.update(build_table(), refresh=True)


async def _learn(changes: Changes, known: dict[ObjectKey, AnyRow], kind: str, sort: Sort) -> None:
    for _ in _taken(await changes.next(within_s=_REDRAW_S), known, kind, sort):
        pass


def _taken(
    changed: Mapping[ObjectKey, Manifest | None], known: dict[ObjectKey, AnyRow], kind: str, sort: Sort
) -> Iterator[ChangeReport]:
    """Update `known` with the changed objects and yield the changes that a row shows.

    Several changes come in the order of `sort`. An object whose row stays the same is no change.
    """
    changes: list[tuple[ChangeType, AnyRow]] = []
    for key, body in changed.items():
        previous = known.get(key)
        if body is None:
            if previous is not None:
                del known[key]
                changes.append((ChangeType.DELETED, previous))
            continue
        try:
            row = row_of(ROWS[kind][0].parse(body))
        except PermanentError as error:
            typer.echo(f"tidegate: left out: {kind} {key} cannot be read by this version: {error}", err=True)
            continue
        if row != previous:
            known[key] = row
            changes.append((ChangeType.ADDED if previous is None else ChangeType.MODIFIED, row))
    order = {id(row): position for position, row in enumerate(listed((row for _, row in changes), sort))}
    for type_, row in sorted(changes, key=lambda change: order[id(change[1])]):
        yield ChangeReport(type=type_, object=row)
