"""All dashboards, and the files that the chart has of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidegate.grafana.allocation import ALLOCATION
from tidegate.grafana.breakdown import BREAKDOWN
from tidegate.grafana.control_plane import CONTROL_PLANE
from tidegate.grafana.document import document
from tidegate.grafana.fleet import FLEET
from tidegate.grafana.pool import POOL_AND_MPS
from tidegate.grafana.release import RELEASE
from tidegate.grafana.work import WORK

DASHBOARDS: Final = (FLEET, BREAKDOWN, POOL_AND_MPS, ALLOCATION, RELEASE, CONTROL_PLANE, WORK)


def files() -> Mapping[str, str]:
    """File name to JSON of each, byte-equal for equal dashboards."""
    return {
        f"{each.uid}.json": json.dumps(document(each), indent=1, ensure_ascii=False) + "\n"
        for each in DASHBOARDS
    }
