"""Render charts as a part of a page, or why there are none: the rest of the page never waits for Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from fastapi.responses import HTMLResponse

from tidegate.errors import PermanentError
from tidegate.telemetry.prometheus_api import PrometheusError
from tidegate.web.app_state import AppState
from tidegate.web.charts import NOT_CONFIGURED, WINDOWS, Window
from tidegate.web.links import PageLink
from tidegate.web.rendering import render_page
from tidegate.web.request_context import RequestContext
from tidegate.web.traffic_charts import NOTHING_RECORDED, DrawnCharts


async def render_charts(
    context: RequestContext,
    page: str,
    title: str,
    charts: Awaitable[DrawnCharts],
    window: Window,
) -> HTMLResponse:
    """Return the part with the charts of the page at that path."""
    drawn, message = None, ""
    try:
        drawn = await charts
        message = "" if drawn.charts else NOTHING_RECORDED
    except (PermanentError, PrometheusError) as error:
        message = str(error)
    return render_page(
        context,
        "charts.html",
        page=page,
        heading=title,
        drawn=drawn,
        message=message,
        window=window,
        topics=[],
    )


def chart_variables(app: AppState, window: Window, links: Sequence[PageLink]) -> dict[str, Any]:
    """Return the template variables of a page with such a part."""
    no_charts = "" if app.charts.is_configured else NOT_CONFIGURED
    return {"window": window, "windows": WINDOWS, "links": links, "no_charts": no_charts}
