"""Print the demo's steps, their progress and their durations, and keep the durations for the next run."""

import json
import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tidegate_localcluster.progress import Progress

INDENT: Final = "      "
_DURATIONS: Final = "demo-durations.json"


def read_durations(home: Path) -> Mapping[str, float]:
    """Return the seconds of each step of the last complete run, in their order; empty if there was none.

    A value that is no duration is left out.
    """
    try:
        document: Any = json.loads((home / _DURATIONS).read_text())
        durations = {str(title): float(seconds) for title, seconds in document.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        # What a run that was killed left behind is no reason to fail.
        return {}
    return {title: seconds for title, seconds in durations.items() if 0 <= seconds < math.inf}


def write_durations(home: Path, seconds: Mapping[str, float], progress: Progress) -> None:
    """Keep the seconds of each step of a complete run in the cache folder, or report that it cannot be written."""
    path = home / _DURATIONS
    try:
        home.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(seconds), indent=1) + "\n")
    except OSError as error:
        progress(f"{path} cannot be written, so that the next run has no estimate: {error}")


class StepPrinter:
    """Numbered steps: a title, lines of progress with the seconds since the step began, and its duration."""

    def __init__(self, console: Console, last_run: Mapping[str, float] | None = None) -> None:
        """Print to `console`; the first step has the number 1.

        `last_run` has the seconds of each step of the last run, from which the remaining time is estimated.
        """
        self._console = console
        self._last_run = last_run or {}
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
        estimate = self._estimate_left(title)
        self._console.print(
            f"[bold cyan]{self._number:>3}[/]  [bold]{escape(title)}[/]{estimate}", highlight=False
        )
        yield
        self.seconds[title] = time.monotonic() - self._step_began
        self._console.print(f"{INDENT[:-2]}[green]✓[/] [dim]{self.seconds[title]:.1f} s[/]")

    def _estimate_left(self, title: str) -> str:
        """Return what this step and all later ones took in the last run; empty if that run had no such step."""
        titles = list(self._last_run)
        if title not in titles:
            return ""
        seconds = sum(self._last_run[later] for later in titles[titles.index(title) :])
        amount = f"about {round(seconds / 60)} min" if seconds >= 60 else "less than a minute"
        return f"  [dim]{amount} left, if it takes as long as the last run[/]"

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
