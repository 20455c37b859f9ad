"""What pages and API are made of: caches, who may see them, and what is shown of them."""

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

_PLANS: Final = 64


@dataclass(frozen=True, slots=True)
class Installation:
    """Which installation of Tidegate the dashboard belongs to."""

    release: str
    namespace: str
    controllers: str = ""
    """host:port of the controllers' probe port, where they are no pods; empty: the leader's pod is asked."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom a Prometheus stands behind; None where there is none."""

    traffic: Source | None = None
    """Says what the gateways see."""
    ranges: RangeQuery | None = None
    """Answers the queries of charts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One of each, for the whole process."""

    fleet: Fleet
    listings: Mapping[str, Listing]
    """By the plural of the kind."""
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
    """Answers to what-ifs, by pool and question, for those who have the right to ask."""
    solving: asyncio.Semaphore
    """One what-if at a time is solved."""


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
    """All of them over one fleet, which is of all namespaces or of some."""
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
        Remembered(_PLANS, monotonic),
        asyncio.Semaphore(1),
    )
