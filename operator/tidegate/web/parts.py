"""The state that all requests to the web application share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.reports.plan import PlanReport
from tidegate.web.access.door import Door
from tidegate.web.access.remembered import Remembered
from tidegate.web.access.rights import Rights
from tidegate.web.access.sessions import Seal
from tidegate.web.charts import ChartReader, RangeQuery
from tidegate.web.fleet import Fleet
from tidegate.web.listing import Listing
from tidegate.web.live import Changes
from tidegate.web.nodes import Nodes
from tidegate.web.rows import ROWS
from tidegate.web.traffic import Source, TrafficBoard

_MAX_PLANS: Final = 64


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation of Tidegate that the dashboard belongs to."""

    release: str
    namespace: str
    controllers: str = ""
    """host:port of the controllers' probe port, if they do not run as pods; empty: the leader's pod is used."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources that need a Prometheus; None without one."""

    traffic: Source | None = None
    """Reads the traffic at the gateways."""
    ranges: RangeQuery | None = None
    """Runs the queries of charts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The shared objects of the process."""

    fleet: Fleet
    listings: Mapping[str, Listing]
    """Listings by the plural of the kind."""
    charts: ChartReader
    nodes: Nodes
    changes: Changes
    traffic: TrafficBoard
    door: Door
    rights: Rights
    seal: Seal
    installation: Installation
    now: Callable[[], datetime]
    plans: Remembered[tuple[str, str], PlanReport]
    """Recent answers to what-ifs by pool and question, for users with the right to ask."""
    solving: asyncio.Semaphore
    """Allows one what-if at a time."""


def make_parts(
    fleet: Fleet,
    sources: Sources,
    door: Door,
    seal: Seal,
    installation: Installation,
    *,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    all_namespaces: bool = True,
) -> Parts:
    """Return the shared state over one fleet, which contains all namespaces or some."""
    changes = Changes()
    for store in fleet.stores():
        changes.follow(store)
    listings = {
        plural: Listing(catalogue, ROWS[catalogue.kind]) for plural, catalogue in fleet.catalogues().items()
    }
    return Parts(
        fleet,
        listings,
        ChartReader(sources.ranges, now, monotonic),
        Nodes(fleet, changes, watched=all_namespaces),
        changes,
        TrafficBoard(sources.traffic),
        door,
        Rights(door.client_of, monotonic),
        seal,
        installation,
        now,
        Remembered(_MAX_PLANS, monotonic),
        asyncio.Semaphore(1),
    )
