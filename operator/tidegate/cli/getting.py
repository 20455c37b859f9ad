"""Reads what `tidegate get` lists, once or as it changes, and writes it."""

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
"""Ages grow without a change."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    kind: str
    name: str | None = None
    selector: str = ""
    sort: Sort = Sort.NAME


async def read_list(wanted: Wanted, where: Where) -> ListReport:
    """The objects as they are. Raises TidegateError or ValueError with the way out."""
    async with connected(where) as (client, usual):
        chosen = _chosen(wanted, where, usual)
        reader = Lister(client, (chosen.namespace,))
        model, _ = ROWS[chosen.kind.kind]
        found = await reader.read(chosen.kind, model, selector=chosen.selector, fields=chosen.fields)
        reader.check()
        if wanted.name is not None and not found and not reader.skipped:
            place = f" in namespace {chosen.namespace}" if chosen.namespace else ""
            message = f"there is no {chosen.kind} {asked(wanted.name).name}{place}: tidegate get {wanted.kind} -A shows all"
            raise PermanentError(message)
        return ListReport(
            kind=chosen.kind.kind,
            namespace=chosen.namespace or None,
            at=datetime.now(UTC),
            items=listed(map(row_of, found), wanted.sort),
            skipped=tuple(reader.skipped),
        )


async def follow(wanted: Wanted, where: Where, output: Format) -> None:
    """Writes the objects and each change until it is interrupted. Raises TidegateError or ValueError."""
    async with connected(where) as (client, usual):
        chosen = _chosen(wanted, where, usual)
        if output in {Format.TEXT, Format.WIDE} and sys.stdout.isatty():
            await _draw(client, chosen, wanted.sort, wide=output is Format.WIDE)
        else:
            await _write(client, chosen, wanted.sort, output)


def _chosen(wanted: Wanted, where: Where, usual: str) -> Chosen:
    kind = ALIASES.get(wanted.kind.lower())
    if kind is None:
        message = f"'{wanted.kind}' is no kind of ours: inferences, modelaccesses, featurecomputes, computepools, overrides or decisions"
        raise ValueError(message)
    named_ = asked(wanted.name) if wanted.name is not None else None
    namespace = ""
    if kind.namespaced and not where.everywhere:
        namespace = (named_.namespace if named_ is not None else None) or where.namespace or usual
    fields = f"metadata.name={named_.name}" if named_ is not None else ""
    return Chosen(kind, namespace, wanted.selector, fields)


async def _write(client: KubeClient, chosen: Chosen, sort: Sort, output: Format) -> None:
    """A line, or a document, for each change."""
    known = dict[ObjectKey, AnyRow]()
    lines = _Lines(chosen, wide=output is Format.WIDE)
    async with watched(client, chosen) as changes:
        while True:
            taken = list(_taken(await changes.next(), known, chosen.kind.kind, sort))
            if output in {Format.TEXT, Format.WIDE}:
                lines.write(taken)
            for change in taken if output is Format.NAME else ():
                typer.echo(named(chosen.kind.kind, change.object.name))
            for change in taken if output in {Format.JSON, Format.YAML} else ():
                _document(change.model_dump(mode="json", by_alias=True), output)


def _document(change: Mapping[str, Any], output: Format) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(change))
        return
    import yaml

    typer.echo(yaml.safe_dump(change, sort_keys=False, explicit_start=True), nl=False)


class _Lines:
    """Changes as lines below each other, under one head."""

    def __init__(self, chosen: Chosen, *, wide: bool) -> None:
        self._wide, self._namespaced = wide, not chosen.namespace
        self._widths = Widths()
        self._head = [head(chosen.kind.kind, wide=wide, namespaced=self._namespaced)]

    def write(self, changes: Sequence[ChangeReport]) -> None:
        """The head first, once there is something to be below it."""
        now = datetime.now(UTC)
        rows = [cells(each.object, now, wide=self._wide, namespaced=self._namespaced) for each in changes]
        if rows:
            table, self._head = [*self._head, *rows], []
            ends = ["   (deleted)" if each.type is ChangeType.DELETED else "" for each in changes]
            self._widths.fit(table)
            for row, end in zip(table, ["", *ends][-len(table) :], strict=True):
                typer.echo(f"{self._widths.line(row)}{end}")


async def _draw(client: KubeClient, chosen: Chosen, sort: Sort, *, wide: bool) -> None:
    """A table that stays where it is."""
    # Only a terminal needs it.
    from rich.live import Live
    from rich.table import Table

    known = dict[ObjectKey, AnyRow]()
    kind, namespaced = chosen.kind.kind, not chosen.namespace

    def table() -> Table:
        drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for title in head(kind, wide=wide, namespaced=namespaced):
            drawn.add_column(title, no_wrap=True)
        for row in listed(known.values(), sort):
            drawn.add_row(*cells(row, datetime.now(UTC), wide=wide, namespaced=namespaced))
        return drawn

    async with watched(client, chosen) as changes:
        with Live(table(), auto_refresh=False) as live:
            while True:
                await _learn(changes, known, kind, sort)
                live.update(table(), refresh=True)


async def _learn(changes: Changes, known: dict[ObjectKey, AnyRow], kind: str, sort: Sort) -> None:
    for _ in _taken(await changes.next(within_s=_REDRAW_S), known, kind, sort):
        pass


def _taken(
    changed: Mapping[ObjectKey, Manifest | None], known: dict[ObjectKey, AnyRow], kind: str, sort: Sort
) -> Iterator[ChangeReport]:
    """The changes as rows, noted in `known`; what looks as before is none. Of several, in the order asked for."""
    told: list[tuple[ChangeType, AnyRow]] = []
    for key, body in changed.items():
        before = known.get(key)
        if body is None:
            if before is not None:
                del known[key]
                told.append((ChangeType.DELETED, before))
            continue
        try:
            row = row_of(ROWS[kind][0].parse(body))
        except PermanentError as error:
            typer.echo(f"tidegate: left out: {kind} {key}, which this version cannot read: {error}", err=True)
            continue
        if row != before:
            known[key] = row
            told.append((ChangeType.ADDED if before is None else ChangeType.MODIFIED, row))
    order = {id(row): place for place, row in enumerate(listed((row for _, row in told), sort))}
    for type_, row in sorted(told, key=lambda each: order[id(each[1])]):
        yield ChangeReport(type=type_, object=row)
