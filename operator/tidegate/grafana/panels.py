"""Define the parts of a dashboard as values: queries, panels, rows and variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class PanelUnit(StrEnum):
    """Unit of a panel, by Grafana's name."""

    NUMBER = "short"
    SECONDS = "s"
    MILLISECONDS = "ms"
    SHARE = "percentunit"
    PER_SECOND = "cps"
    REQUESTS_PER_SECOND = "reqps"
    ROWS_PER_SECOND = "rowsps"
    BYTES = "bytes"


class PanelKind(StrEnum):
    """Form of a panel, by Grafana's name."""

    LINES = "timeseries"
    FIGURE = "stat"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One PromQL query, which may use the dashboard's variables; `legend` is Grafana's template of a series' name."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph, figure or table; its description explains how to read it."""

    title: str
    description: str
    queries: tuple[PanelQuery, ...]
    unit: PanelUnit = PanelUnit.NUMBER
    kind: PanelKind = PanelKind.LINES
    stacked: bool = False
    warn_from: float | None = None
    """The panel is red from this value up."""
    warn_below: float | None = None
    """The panel is red below this value."""
    maximum: float | None = None
    width: int = 8
    """Of 24 columns."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class DashboardVariable:
    """A selection of the user: the values of the label `name` in the result of `query`."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; links and bookmarks contain its uid, which therefore never changes."""

    uid: str
    title: str
    description: str
    variables: tuple[DashboardVariable, ...]
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> Sequence[Panel]:
        """Return the panels of all rows, from the top."""
        return tuple(panel for row in self.rows for panel in row.panels)


FIGURE_WIDTH: Final = 4


def stat_panel(
    title: str,
    description: str,
    expression: str,
    unit: PanelUnit = PanelUnit.NUMBER,
    *,
    warn_from: float | None = None,
    warn_below: float | None = None,
) -> Panel:
    """Return a panel with one number, for the top of a dashboard."""
    return Panel(
        title=title,
        description=description,
        queries=(PanelQuery(expression),),
        unit=unit,
        kind=PanelKind.FIGURE,
        warn_from=warn_from,
        warn_below=warn_below,
        width=FIGURE_WIDTH,
    )
