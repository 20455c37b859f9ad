"""Show a report again and again, for options `-w`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from tidegate.cli.colours import colour_states, uses_colours
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions, OutputFormat, print_report, run_or_exit
from tidegate.errors import RetryableError

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.reports.report import Report

INTERRUPTED: Final = 130
_INTERVAL_S: Final = 2.0
_TIME_FIELD: Final = "at"

ReportT = TypeVar("ReportT", bound="Report")

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")
]


FindReader = Callable[["KubeClient", str], Awaitable[Callable[[], Awaitable["Report"]]]]


def show_or_follow(
    options: KubeOptions, find_reader: FindReader, output: OutputFormat, *, watch: bool
) -> None:
    """Show a report once, or with `watch` as `follow_or_exit` does."""
    if watch:
        follow_or_exit(options, find_reader, output)

    async def read_once() -> Report:
        async with open_client(options) as (client, namespace):
            return await (await find_reader(client, namespace))()

    print_report(run_or_exit(read_once()), output)


def follow_or_exit(
    options: KubeOptions,
    find_reader: FindReader,
    output: OutputFormat,
) -> NoReturn:
    """Read and show a report every two seconds until Ctrl-C.

    `find_reader` gets the client and the namespace for names that give none, and returns what reads the report.

    A terminal shows it in place. Elsewhere it is printed when it has changed, JSON as a line and YAML as a document.
    """

    async def follow_report() -> None:
        async with open_client(options) as (client, namespace):
            await _show_reports(await find_reader(client, namespace), output)

    with suppress(KeyboardInterrupt):
        run_or_exit(follow_report())
    sys.exit(INTERRUPTED)


async def _show_reports(read: Callable[[], Awaitable[Report]], output: OutputFormat) -> None:
    if output not in {OutputFormat.TEXT, OutputFormat.WIDE} or not sys.stdout.isatty():
        await repeat_reports(read, lambda report: _print_changed(report, output))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:

        def draw_report(report: Report) -> None:
            lines = [*report.render_lines(wide=output is OutputFormat.WIDE), report.empty_message()]
            if uses_colours(os.environ, terminal=True):
                lines = list(map(colour_states, lines))
            live.update(Text.from_ansi("\n".join(lines).rstrip("\n")), refresh=True)

        await repeat_reports(read, draw_report, unchanged=True)


def _print_problem(problem: str) -> None:
    typer.echo(f"tidegate: {problem}", err=True)


async def repeat_reports(
    read: Callable[[], Awaitable[ReportT]],
    show: Callable[[ReportT], None],
    *,
    unchanged: bool = False,
    interval_s: float = _INTERVAL_S,
    complain: Callable[[str], None] = _print_problem,
) -> None:
    """Call `show` with each report that differs from the one before, not counting its time; with `unchanged`, with each.

    After the first report, a retryable error goes to `complain` and only delays the next one. Raises other errors of `read`.
    """
    previous: Mapping[str, Any] | None = None
    complaint = ""
    while True:
        try:
            report = await read()
        except RetryableError as error:
            if previous is None:
                raise
            if str(error) != complaint:
                complaint = str(error)
                complain(complaint)
        else:
            complaint = ""
            content = {field: value for field, value in report.to_json().items() if field != _TIME_FIELD}
            if unchanged or content != previous:
                show(report)
            previous = content
        await asyncio.sleep(interval_s)


def _print_changed(report: Report, output: OutputFormat) -> None:
    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        print_document(report.to_json(), output)
        return
    print_report(report, output)
    if output is not OutputFormat.NAME:
        typer.echo()


def print_document(content: Mapping[str, Any], output: OutputFormat) -> None:
    """Print a document of a stream: JSON on one line, or YAML after a separator."""
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(content))
        return
    import yaml

    typer.echo(yaml.safe_dump(content, sort_keys=False, explicit_start=True), nl=False)
