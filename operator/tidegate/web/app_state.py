"""The state that all requests to the web application share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.reports.plan import PlanReport
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.web.access.authenticators import Authenticator
from tidegate.web.access.expiring_cache import ExpiringCache
from tidegate.web.access.rights import AccessReviews
from tidegate.web.access.sessions import SessionSeal
from tidegate.web.caches import FleetCaches
from tidegate.web.charts import ChartReader, RangeQuery
from tidegate.web.links import ToolLinks
from tidegate.web.listing import Listing
from tidegate.web.nodes import PoolNodes
from tidegate.web.simulations import SimulationRunner
from tidegate.web.topic_feed import TopicFeed
from tidegate.web.traffic import TrafficBoard, TrafficSource

_MAX_PLANS: Final = 64
NO_LINKS: Final = ToolLinks()


@dataclass(frozen=True, slots=True)
class InstallationRef:
    """The installation of Tidegate that the dashboard belongs to."""

    release: str
    namespace: str
    controllers_address: str = ""
    """host:port of the controllers' probe port, if they do not run as pods; empty: the leader's pod is used."""


@dataclass(frozen=True, slots=True)
class PrometheusSources:
    """The sources that need a Prometheus; None without one."""

    traffic: TrafficSource | None = None
    """Reads the traffic at the gateways."""
    query_range: RangeQuery | None = None
    """Runs the queries of charts."""
    recording: PrometheusRecording | None = None
    """Reads the demand of a past time."""


@dataclass(frozen=True, slots=True)
class AppState:
    """The shared objects of the process."""

    fleet: FleetCaches
    listings: Mapping[str, Listing]
    """Listings by the plural of the kind."""
    charts: ChartReader
    nodes: PoolNodes
    changes: TopicFeed
    traffic: TrafficBoard
    authenticator: Authenticator
    rights: AccessReviews
    seal: SessionSeal
    installation: InstallationRef
    now: Callable[[], datetime]
    plans: ExpiringCache[tuple[str, str], PlanReport]
    """Recent answers to what-ifs by pool and question, for users with the right to ask."""
    plan_limit: asyncio.Semaphore
    """Allows one what-if at a time."""
    simulations: SimulationRunner
    links: ToolLinks


def make_app_state(
    fleet: FleetCaches,
    sources: PrometheusSources,
    authenticator: Authenticator,
    seal: SessionSeal,
    installation: InstallationRef,
    *,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    all_namespaces: bool = True,
    links: ToolLinks = NO_LINKS,
) -> AppState:
    """Return the shared state over one fleet, which contains all namespaces or some."""
    changes = TopicFeed()
    for store in fleet.list_stores():
        changes.follow_store(store)
    listings = {plural: Listing(catalogue) for plural, catalogue in fleet.caches_by_plural().items()}
    return AppState(
        fleet,
        listings,
        ChartReader(sources.query_range, now, monotonic),
        PoolNodes(fleet, changes, watched=all_namespaces),
        changes,
        TrafficBoard(sources.traffic),
        authenticator,
        AccessReviews(authenticator.make_client, monotonic),
        seal,
        installation,
        now,
        ExpiringCache(_MAX_PLANS, monotonic),
        asyncio.Semaphore(1),
        SimulationRunner(sources.recording, fleet, now, monotonic=monotonic),
        links,
    )
