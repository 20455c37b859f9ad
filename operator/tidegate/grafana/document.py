"""Render dashboards as the JSON that Grafana imports, with panel ids that stay the same while the layout does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidegate.grafana.panels import Dashboard, DashboardVariable, Panel, PanelKind, PanelQuery, PanelRow

TAG: Final = "tidegate"
_COLUMNS: Final = 24
_HEIGHTS: Final = {PanelKind.FIGURE: 4, PanelKind.LINES: 8, PanelKind.TABLE: 8, PanelKind.HEATMAP: 8}
_FORMATS: Final = {PanelKind.TABLE: "table", PanelKind.HEATMAP: "heatmap"}
_QUERY_RESULT: Final = 3
"""Grafana's number of this kind of variable query."""
_SCHEMA: Final = 39
"""The schema of Grafana 11; later versions migrate it when they load a dashboard."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GOOD, _BAD = "green", "red"


def render_dashboard(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": _SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_render_datasource(), *map(_render_variable, dashboard.variables)]},
        "links": [
            {
                "title": "Tidegate",
                "type": "dashboards",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": []},
        "panels": list(_render_rows(dashboard.rows)),
    }


def _render_datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _render_variable(variable: DashboardVariable) -> dict[str, Any]:
    query = f"query_result({variable.query})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"qryType": _QUERY_RESULT, "query": query, "refId": variable.name},
        "regex": f'/{variable.name}="([^"]+)"/',
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _render_rows(rows: Sequence[PanelRow]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        position = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": position,
            "panels": [],
        }
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            height = _HEIGHTS[panel.kind]
            yield {
                "id": number,
                **_render_panel(panel),
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
            }
            x, tallest = x + panel.width, max(tallest, height)
        y += tallest


def _render_panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [_render_target(index, query, panel.kind) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": []},
        "options": _panel_options(panel),
        **({"transformations": _READINESS} if panel.kind is PanelKind.TABLE else {}),
    }


_READINESS: Final = [
    {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {"Value": "ready"}}}
]
"""All tables list objects, with 1 for those that are Ready."""


def _render_target(index: int, query: PanelQuery, kind: PanelKind) -> dict[str, Any]:
    instant = kind in (PanelKind.TABLE, PanelKind.FIGURE)
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": _FORMATS.get(kind, "time_series"),
    }


def _field_defaults(panel: Panel) -> dict[str, Any]:
    bounds = {} if panel.maximum is None else {"min": 0, "max": panel.maximum}
    return {
        "unit": panel.unit.value,
        **bounds,
        "thresholds": {"mode": "absolute", "steps": _threshold_steps(panel)},
        **({"custom": _line_style(panel)} if panel.kind is PanelKind.LINES else {}),
    }


def _line_style(panel: Panel) -> dict[str, Any]:
    """Return the style of lines; a line has gaps where no sample was scraped."""
    if not panel.stacked:
        return {"fillOpacity": 5, "spanNulls": False}
    return {"fillOpacity": 20, "spanNulls": False, "stacking": {"mode": "normal"}}


def _threshold_steps(panel: Panel) -> list[dict[str, Any]]:
    if panel.warn_from is not None:
        return [{"color": _GOOD, "value": None}, {"color": _BAD, "value": panel.warn_from}]
    if panel.warn_below is not None:
        return [{"color": _BAD, "value": None}, {"color": _GOOD, "value": panel.warn_below}]
    return [{"color": _GOOD, "value": None}]


def _panel_options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case PanelKind.FIGURE:
            return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
        case PanelKind.LINES:
            return {
                "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case PanelKind.HEATMAP:
            return {"calculate": False, "yAxis": {"unit": panel.unit.value}, "color": {"scheme": "Blues"}}
        case PanelKind.TABLE:
            return {"showHeader": True}
