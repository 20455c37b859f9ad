"""List all dashboards, and render them for the chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.grafana.allocation import ALLOCATION
from tidegate.grafana.breakdown import BREAKDOWN
from tidegate.grafana.control_plane import CONTROL_PLANE
from tidegate.grafana.document import render_dashboard
from tidegate.grafana.fleet import FLEET
from tidegate.grafana.pool import POOL_AND_MPS
from tidegate.grafana.release import RELEASE
from tidegate.grafana.work import WORK

DASHBOARDS: Final = (FLEET, BREAKDOWN, POOL_AND_MPS, ALLOCATION, RELEASE, CONTROL_PLANE, WORK)


def render_dashboards() -> Mapping[str, dict[str, Any]]:
    """Return the dashboards as Grafana imports them, by uid."""
    return {dashboard.uid: render_dashboard(dashboard) for dashboard in DASHBOARDS}
