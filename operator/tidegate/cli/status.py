"""`tidegate status`: the state of the fleet or of one object, for people and for pipelines that wait for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.duration_option import parse_duration_option
from tidegate.cli.following import Watch, follow_or_exit
from tidegate.cli.options import (
    ExitStatus,
    KubeOptions,
    NameAfterKind,
    Output,
    OutputFormat,
    Selector,
    print_report,
    run_or_exit,
)
from tidegate.errors import RetryableError

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.reports.fleet import FleetReport
    from tidegate.reports.status import StatusReport

POLL_INTERVAL_S: Final = 1.0
STALLED_TIMEOUT_S: Final = 10.0
"""How long an object may be stalled before waiting ends: a missing object may be applied just after it."""

OptionalObject = Annotated[
    str | None,
    typer.Argument(
        metavar="INFERENCE|MODELACCESS|FEATURECOMPUTE|POOL",
        help="Name; namespace/name; or with its kind: modelaccess/name, computepool/name. Default the fleet.",
        autocompletion=complete_names(*CompletedKind),
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("status")(status)


@with_cluster_options
def status(
    target: OptionalObject = None,
    name: NameAfterKind = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is ready; progress goes to stderr.")
    ] = False,
    watch: Watch = False,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest wait, like 90s or 5m.")] = "5m",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of the object, default that of the context; of the fleet, default all.",
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Look for the object in all namespaces.")
    ] = False,
    selector: Selector = "",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show the state of the fleet, or of one object with its pods, routes and events; exit status 1 if it is not healthy."""
    from tidegate.cli.object_names import join_kind

    options = KubeOptions(namespace, everywhere, cluster)
    if wait and watch:
        message = "--wait ends when the object is ready, and --watch does not end: leave one of them out"
        raise typer.BadParameter(message)
    if selector and target is not None:
        message = f"--selector chooses the objects of the fleet, and {target} is one: leave one of them out"
        raise typer.BadParameter(message)
    max_wait = parse_duration_option(f"--timeout {timeout}", timeout) if wait else None
    text = None if target is None else join_kind(target, name)
    if watch:
        follow_or_exit(
            options,
            lambda client, namespace: _find_reader(client, text, selector, options, namespace),
            output,
        )
    report = run_or_exit(_read_status(text, selector, options, max_wait))
    print_report(report, output)
    if wait and not report.settled:
        problem = "it is stalled" if report.stalled else f"it was not ready within {timeout}"
        typer.echo(f"tidegate: {problem}: {report.headline()}", err=True)
    if not (report.settled if wait else report.healthy):
        sys.exit(ExitStatus.FINDING)


async def _read_status(
    text: str | None, labels: str, options: KubeOptions, max_wait: timedelta | None
) -> FleetReport | StatusReport:
    """Return the status of an object, or of the fleet; with `max_wait`, wait until it settles.

    Raises TidegateError or ValueError.
    """
    async with open_client(options) as (client, namespace):
        read = await _find_reader(client, text, labels, options, namespace)
        return await (read() if max_wait is None else wait_until_settled(read, max_wait, _print_progress))


async def _find_reader(
    client: KubeClient, text: str | None, labels: str, options: KubeOptions, namespace: str
) -> Callable[[], Awaitable[FleetReport | StatusReport]]:
    """Return what reads the status of the object that `text` means, or of the fleet's objects with these labels."""
    from tidegate.cli.object_names import find_object
    from tidegate.services.fleet import read_fleet
    from tidegate.services.status import read_object_status

    if text is None:
        return lambda: read_fleet(client, options.namespace, namespace, labels)
    match = await find_object(client, text, options, namespace)
    if match.alternatives:
        _print_progress(
            f"{match.kind} {match.key} is shown; say {' or '.join(match.alternatives)} for the other"
        )
    return lambda: read_object_status(client, match.kind, match.key)


def _print_progress(line: str) -> None:
    typer.echo(f"tidegate: {line}", err=True)


class Waitable(Protocol):
    """A status to wait for."""

    @property
    def settled(self) -> bool:
        """Return whether there is nothing left to wait for."""
        ...

    @property
    def stalled(self) -> bool:
        """Return whether waiting alone changes nothing."""
        ...

    def headline(self) -> str:
        """Summarise the state in one line."""
        ...


WaitableT = TypeVar("WaitableT", bound=Waitable)


async def wait_until_settled(
    read: Callable[[], Awaitable[WaitableT]],
    max_wait: timedelta,
    write_line: Callable[[str], None],
    *,
    interval_s: float = POLL_INTERVAL_S,
    stalled_for_s: float = STALLED_TIMEOUT_S,
) -> WaitableT:
    """Read until the status settles, is stalled for `stalled_for_s`, or `max_wait` ends; return the last one.

    `write_line` gets a line whenever the headline changes. Retryable errors of the API server only delay the next read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait.total_seconds()
    last: WaitableT | None = None
    last_line, stalled_since = "", float("inf")
    while True:
        now = loop.time()
        try:
            last = await read()
        except RetryableError as error:
            if now >= deadline:
                raise
            line = str(error)
        else:
            line = last.headline()
            stalled_since = min(stalled_since, now) if last.stalled else float("inf")
            if last.settled or now >= deadline or now - stalled_since >= stalled_for_s:
                return last
        if line != last_line:
            last_line = line
            write_line(line)
        await asyncio.sleep(min(interval_s, max(deadline - loop.time(), 0.0)))
