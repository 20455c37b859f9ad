"""Print the demo's steps, their progress and their durations."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

INDENT: Final = "      "


class StepPrinter:
    """Numbered steps: a title, lines of progress with the seconds since the step began, and its duration."""

    def __init__(self, console: Console) -> None:
        """Print to `console`; the first step has the number 1."""
        self._console = console
        self._number = 0
        self._began = self._step_began = time.monotonic()
        self.title = ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def print_step(self, title: str) -> Generator[None]:
        """Print one step; if it fails, `title` keeps its title for the message."""
        self._number += 1
        self.title = title
        self._step_began = time.monotonic()
        self._console.print(f"[bold cyan]{self._number:>3}[/]  [bold]{escape(title)}[/]")
        yield
        self.seconds[title] = time.monotonic() - self._step_began
        self._console.print(f"{INDENT[:-2]}[green]✓[/] [dim]{self.seconds[title]:.1f} s[/]")

    def print_progress(self, message: str) -> None:
        """Print one line of progress within the step."""
        elapsed = time.monotonic() - self._step_began
        self._console.print(f"{INDENT}[dim]{elapsed:6.1f} s  {escape(message)}[/]", highlight=False)

    def print_text(self, text: str) -> None:
        """Print text of several lines unchanged, such as a table of kubectl or a command."""
        for line in text.rstrip().splitlines():
            self._console.print(f"{INDENT}{escape(line)}", highlight=False, soft_wrap=True)

    def print_table(self, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """Print a table of results."""
        self._console.print(f"{INDENT}[bold]{escape(title)}[/]")
        table = Table()
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, len(INDENT)), expand=False))

    @property
    def total_s(self) -> float:
        """Return the seconds since the demo began."""
        return time.monotonic() - self._began
