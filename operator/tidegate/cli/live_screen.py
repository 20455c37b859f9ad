"""Show a table on the whole terminal, keep it up to date, and let single keys sort, filter and scroll it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

from tidegate.cli.colours import colour_states, uses_colours
from tidegate.cli.connection import open_client
from tidegate.cli.following import INTERRUPTED, repeat_reports, show_or_follow
from tidegate.cli.options import KubeOptions, OutputFormat, run_or_exit
from tidegate.reports.orders import TopOrder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tidegate.kube.client import KubeClient
    from tidegate.reports.top import TopReport

FindTopReader = Callable[["KubeClient", str], Awaitable[Callable[[], Awaitable["TopReport"]]]]
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
"""One key, as a terminal sends it: a control sequence or a character."""
_STEPS: Final = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1}
_PAGES: Final = {"\x1b[5~": -1, "\x1b[6~": 1, " ": 1}
_ORDERS: Final = {
    "r": TopOrder.REQUESTS,
    "v": TopOrder.VALUE,
    "s": TopOrder.SLICES,
    "l": TopOrder.LATENCY,
    "n": TopOrder.NAME,
}
_ESCAPE: Final = "\x1b"
_ERASE: Final = frozenset({"\x7f", "\b"})
_FRAME_LINES: Final = 3
"""The title, the head of the table and the keys."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """What the keys have chosen.

    `has_orders`: whether the rows can be sorted. `is_typing`: whether keys go into the filter. `first_row`: the first row
    that is shown, from 0.
    """

    title: str
    order: TopOrder = TopOrder.REQUESTS
    has_orders: bool = True
    wide: bool = False
    filter_text: str = ""
    is_typing: bool = False
    is_paused: bool = False
    first_row: int = 0

    def press_key(self, key: str, row_count: int, page_rows: int) -> LiveView:
        """Return the view after a key, where `page_rows` of `row_count` rows fit on the screen."""
        if self.is_typing:
            return self._type_key(key)
        if key in _STEPS or key in _PAGES:
            move = _STEPS[key] if key in _STEPS else _PAGES[key] * page_rows
            last = max(row_count - page_rows, 0)
            return replace(self, first_row=min(max(self.first_row + move, 0), last))
        if key in _ORDERS and self.has_orders:
            return replace(self, order=_ORDERS[key], first_row=0)
        match key:
            case "w":
                return replace(self, wide=not self.wide)
            case "p":
                return replace(self, is_paused=not self.is_paused)
            case "/":
                return replace(self, is_typing=True, first_row=0)
            case "\x1b":
                return replace(self, filter_text="", first_row=0)
            case _:
                return self

    def _type_key(self, key: str) -> LiveView:
        if key in {"\r", "\n"}:
            return replace(self, is_typing=False)
        if key == _ESCAPE:
            return replace(self, is_typing=False, filter_text="")
        if key in _ERASE:
            return replace(self, filter_text=self.filter_text[:-1])
        return replace(self, filter_text=self.filter_text + key) if key.isprintable() else self

    def render_table(self, report: TopReport) -> list[str]:
        """Return the head, a line for each row that passes the filter, and notes."""
        arranged = report.arrange_rows(self.order, self.filter_text)
        empty = arranged.empty_message()
        if empty and self.filter_text:
            empty = f"nothing contains {self.filter_text!r}: Esc shows all"
        return [line for line in (*arranged.render_lines(wide=self.wide), empty) if line]

    def render_screen(
        self, table: Sequence[str], height: int, read_at: datetime | None = None, problem: str = ""
    ) -> list[str]:
        """Return the title, the head of the table, as many rows as fit into `height` lines, and the keys."""
        first = 1 + self.first_row
        shown = [*table[:1], *table[first : first + count_page_rows(height)]]
        return [self._render_title(read_at, problem), *shown, self._render_keys()]

    def _render_title(self, read_at: datetime | None, problem: str) -> str:
        parts = [self.title]
        parts.append("reading the gateways" if read_at is None else f"{read_at:%H:%M:%S}")
        if self.has_orders:
            parts.append(f"by {self.order.value}")
        if self.is_paused:
            parts.append("paused")
        if self.filter_text or self.is_typing:
            parts.append(f"filter: {self.filter_text}{'_' if self.is_typing else ''}")
        if problem:
            parts.append(f"not up to date: {problem}")
        return "   ".join(parts)

    def _render_keys(self) -> str:
        orders = "sort: r requests, v value, s slices, l latency, n name   " if self.has_orders else ""
        return f"{orders}w wide   / filter   p pause   arrows scroll   q quit"


def count_page_rows(height: int) -> int:
    """Return how many rows fit on a screen."""
    return max(height - _FRAME_LINES, 1)


def split_keys(text: str) -> Sequence[str]:
    """Return the keys that a terminal sent."""
    return _KEY.findall(text)


def show_or_follow_on_screen(
    options: KubeOptions, find_reader: FindTopReader, output: OutputFormat, view: LiveView, *, watch: bool
) -> None:
    """Show a report once, or with `watch` as `follow_or_exit` does; on a terminal, with keys."""
    has_keys = sys.stdin.isatty() and sys.stdout.isatty() and sys.platform != "win32"
    if not watch or not has_keys or output not in {OutputFormat.TEXT, OutputFormat.WIDE}:
        show_or_follow(options, find_reader, output, watch=watch)
        return
    _follow_or_exit(options, find_reader, replace(view, wide=output is OutputFormat.WIDE))


def _follow_or_exit(options: KubeOptions, find_reader: FindTopReader, view: LiveView) -> NoReturn:
    async def follow_reports() -> None:
        from rich.console import Console

        async with open_client(options) as (client, namespace):
            screen = TableScreen(view, Console(), sys.stdin.fileno())
            await screen.show_reports(await find_reader(client, namespace))

    with suppress(KeyboardInterrupt):
        run_or_exit(follow_reports())
        sys.exit(0)
    sys.exit(INTERRUPTED)


@dataclass(slots=True)
class TableScreen:
    """A terminal that shows a view of the last report; `keys_fd` is where its keys come from."""

    view: LiveView
    console: Console
    keys_fd: int
    _report: TopReport | None = None
    _read_at: datetime | None = None
    _problem: str = ""
    _is_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def show_reports(
        self, read: Callable[[], Awaitable[TopReport]], *, interval_s: float = 2.0
    ) -> None:
        """Read and show reports until the key q. Raises what `read` raises, except retryable errors after the first report."""
        from rich.live import Live

        def take_report(report: TopReport) -> None:
            self._problem = ""
            if not self.view.is_paused:
                self._report, self._read_at = report, datetime.now(UTC)
            draw_screen()

        def take_problem(problem: str) -> None:
            self._problem = problem
            draw_screen()

        def take_keys() -> None:
            for key in split_keys(os.read(self.keys_fd, 1024).decode(errors="ignore")):
                self._press_key(key)
            draw_screen()

        with (
            Live(console=self.console, screen=True, auto_refresh=False) as live,
            _read_single_keys(self.keys_fd, take_keys),
        ):

            def draw_screen() -> None:
                live.update(self._render(), refresh=True)

            draw_screen()
            repeating = asyncio.create_task(
                repeat_reports(
                    read, take_report, unchanged=True, interval_s=interval_s, complain=take_problem
                )
            )
            leaving = asyncio.create_task(self._is_left.wait())
            try:
                await asyncio.wait({repeating, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                repeating.cancel()
                with suppress(asyncio.CancelledError):
                    await repeating

    def _press_key(self, key: str) -> None:
        if key == "q" and not self.view.is_typing:
            self._is_left.set()
            return
        rows = 0 if self._report is None else len(self.view.render_table(self._report)) - 1
        self.view = self.view.press_key(key, rows, count_page_rows(self.console.height))

    def _render(self) -> Text:
        from rich.text import Text

        table = [] if self._report is None else self.view.render_table(self._report)
        lines = self.view.render_screen(table, self.console.height, self._read_at, self._problem)
        if uses_colours(os.environ, terminal=True):
            lines = list(map(colour_states, lines))
        return Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")


@contextmanager
def _read_single_keys(keys_fd: int, take_keys: Callable[[], None]) -> Generator[None]:
    """Call `take_keys` whenever a key is pressed, without waiting for the end of a line; Ctrl-C still interrupts."""
    import termios
    import tty

    loop, before = asyncio.get_running_loop(), termios.tcgetattr(keys_fd)
    tty.setcbreak(keys_fd)
    loop.add_reader(keys_fd, take_keys)
    try:
        yield
    finally:
        loop.remove_reader(keys_fd)
        termios.tcsetattr(keys_fd, termios.TCSADRAIN, before)
