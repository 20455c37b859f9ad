"""What a dashboard is made of: queries, panels, variables; values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Unit(StrEnum):
    """Grafana's names of units."""

    NUMBER = "short"
    SECONDS = "s"
    MILLISECONDS = "ms"
    SHARE = "percentunit"
    PER_SECOND = "cps"
    REQUESTS_PER_SECOND = "reqps"
    ROWS_PER_SECOND = "rowsps"
    BYTES = "bytes"


class Kind(StrEnum):
    """How a panel shows its series."""

    LINES = "timeseries"
    FIGURE = "stat"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query; `legend` is Grafana's template of a series' name. It may use the dashboard's variables."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph, figure or table. Its description says what to make of it."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: Unit = Unit.NUMBER
    kind: Kind = Kind.LINES
    stacked: bool = False
    warn_above: float | None = None
    """Turns red from here on."""
    warn_below: float | None = None
    """Turns red below it."""
    maximum: float | None = None
    width: int = 8
    """Of 24 columns."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beneath a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """What a visitor chooses: the values of `label` in the answer of `query`."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page. Its uid is what links and bookmarks know it by, and never changes."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Sequence[Panel]:
        """All of them, from the top."""
        return tuple(panel for row in self.rows for panel in row.panels)


FIGURE_WIDTH: Final = 4


def figure(
    title: str,
    description: str,
    expression: str,
    unit: Unit = Unit.NUMBER,
    *,
    warn_above: float | None = None,
    warn_below: float | None = None,
) -> Panel:
    """One number, for the top of a page."""
    return Panel(
        title=title,
        description=description,
        queries=(Query(expression),),
        unit=unit,
        kind=Kind.FIGURE,
        warn_above=warn_above,
        warn_below=warn_below,
        width=FIGURE_WIDTH,
    )
