"""Measure what clients send on each route, every second, from the statistics pages of the gateways."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from tidegate.routing.envoy_names import (
    NO_POD_DETAILS,
    OVERLOAD_DETAILS,
    REJECTIONS_PATTERN,
    ROUTES_PATTERN,
    parse_rejections_counter,
    parse_route_counter,
)
from tidegate.telemetry.gateways import EnvoyStatistics, ScrapeTarget, read_pages

_QUERY: Final = rf"{REJECTIONS_PATTERN}|{ROUTES_PATTERN}"
_UNANSWERED: Final = frozenset({OVERLOAD_DETAILS, NO_POD_DETAILS})
"""The reasons of rejections that are demand; the second is also that of what a priced route does not admit."""
_WINDOW_S: Final = 3.0
"""Rates are taken over this long: the counts of one second depend too much on chance."""
_FORGET_AFTER_S: Final = 10.0
"""The last rates of a gateway that does not answer count for this long."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, sock_connect=1, sock_read=2)
"""Of one gateway: while it is waited for, the shares of all others are not renewed, and expire (xds.shares.SHARES_TTL_S)."""
_AT_ONCE: Final = 16
"""Gateways that are read at a time: the pages are small, and several that do not answer must not take that long together either."""


@dataclass(frozen=True, slots=True)
class RoutePage:
    """The requests of each route that models have answered, or were to answer, at one gateway until `at_s` of our own clock."""

    at_s: float
    counts: Mapping[str, int]


def parse_route_page(statistics: EnvoyStatistics) -> RoutePage:
    """Return the counts of one gateway, by route (`access/<namespace>/<name>/<route>`).

    Of requests without a model's answer, those count that admission control rejected, that had no pod, or that were worth too
    little. Callers that may not send any do not: their requests are no demand. What a model rejects it has answered.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    for name, value in statistics.server_values.items():
        if (answers := parse_route_counter(name)) is not None:
            route, counter = answers
            counts[route] += value if counter == "completed" else 0
        elif (rejections := parse_rejections_counter(name)) is not None:
            route, reason, _ = rejections
            counts[route.rpartition("/")[0]] += value if reason in _UNANSWERED else 0
    return RoutePage(statistics.at_s, counts)


class RouteRates:
    """The pages of the last seconds by gateway, and the rates between them."""

    def __init__(self) -> None:
        self._pages: dict[str, deque[RoutePage]] = {}

    async def read_gateways(self, gateways: Sequence[ScrapeTarget]) -> Mapping[str, float] | None:
        """Read all gateways; return requests per second by route, summed, or None without two pages of any gateway."""
        pages = await read_pages(gateways, _QUERY, parse_route_page, time.monotonic, _TIMEOUT, _AT_ONCE)
        return self.add_pages(pages, time.monotonic())

    def add_pages(self, pages: Mapping[str, RoutePage | None], now_s: float) -> Mapping[str, float] | None:
        """Add the newest page of each gateway, None for one that is silent, and return the rates."""
        for gateway, page in pages.items():
            if page is not None:
                earlier = self._pages.setdefault(gateway, deque())
                if earlier and page.at_s - earlier[-1].at_s > _FORGET_AFTER_S:
                    earlier.clear()
                earlier.append(page)
                while len(earlier) > 2 and page.at_s - earlier[1].at_s >= _WINDOW_S:
                    earlier.popleft()
        self._pages = {
            gateway: earlier
            for gateway, earlier in self._pages.items()
            if now_s - earlier[-1].at_s <= _FORGET_AFTER_S
        }
        rates: defaultdict[str, float] = defaultdict(float)
        comparable = [earlier for earlier in self._pages.values() if len(earlier) > 1]
        for earlier in comparable:
            base, newest = earlier[0], earlier[-1]
            for route, count in newest.counts.items():
                counted = base.counts.get(route, 0)
                # A lower count is that of a gateway that has restarted.
                if count >= counted:
                    rates[route] += (count - counted) / (newest.at_s - base.at_s)
        return rates if comparable else None
