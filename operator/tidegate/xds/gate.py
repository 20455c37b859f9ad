"""Make before break: when a proxy may be told of routes, and what may be taken away behind them.

Listeners and routes go out once the proxy has accepted the clusters that they lead to and the endpoints of those.
What nothing in the goal needs any more goes once the proxy has accepted the listeners and routes, and nothing that it runs leads there.
What the proxy refused holds up neither: routes that lead to it stay as they are (xds.standstill), and keep what they lead to.
A proxy that says nothing holds up the first step for `timeout_s` at most; the second waits for as long as it takes, since breaking needs the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl
from tidegate.xds.holdings import ROUTING, Holdings
from tidegate.xds.standstill import Standstill
from tidegate.xds.subscription import Subscription

GATE_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Gate:
    """The gate of one stream. Times are seconds of any steady clock.

    `warm`: the proxy came with resources that an earlier stream gave it.
    """

    holdings: Holdings
    timeout_s: float = GATE_TIMEOUT_S
    warm: bool = False
    _closed_since: float | None = None
    _misses: int = 0

    @property
    def opens_at(self) -> float | None:
        """When it opens although the proxy has said nothing; None while it is open."""
        return None if self._closed_since is None else self._closed_since + self.timeout_s

    def lets_routes_out(self, goal: Snapshot, now: float, *, pending: bool) -> bool:
        """Whether listeners and routes may go out: the proxy has what they lead to, or has been silent for too long.

        `pending`: there are some to go out.
        """
        if not pending or self.backends_ready(goal):
            self._closed_since = None
            return True
        if self._closed_since is None:
            self._closed_since = now
        if now - self._closed_since < self.timeout_s:
            return False
        self._closed_since = None
        self._misses += 1
        return True

    def take_misses(self) -> int:
        """How often it opened for silence since the last time."""
        misses, self._misses = self._misses, 0
        return misses

    def backends_ready(self, goal: Snapshot) -> bool:
        """Whether the proxy accepted every cluster of the goal that it is to have and the endpoints of each, but for what it refused."""
        if self.holdings.backends_complete(goal):
            return True
        clusters = self.holdings.get(TypeUrl.CLUSTER)
        if clusters is not None and not clusters.answered:
            return False
        refused = self.holdings.given_up(TypeUrl.CLUSTER, goal)
        if not all(
            cluster.name in refused or (clusters is not None and clusters.has(cluster))
            for cluster in self.holdings.due(TypeUrl.CLUSTER, goal)
        ):
            return False
        endpoints = self.holdings.get(TypeUrl.ENDPOINT)
        without = {*refused, *self.holdings.given_up(TypeUrl.ENDPOINT, goal)}
        # The routes must not wait for endpoints that wait for the routes.
        return all(
            due.name in without
            or (endpoints is not None and (endpoints.has(due) or self.holds_back(endpoints, due)))
            for due in self.holdings.due(TypeUrl.ENDPOINT, goal)
        )

    def holds_back(self, endpoints: Subscription, resource: Resource) -> bool:
        """Whether these are no endpoints where the proxy has some, or may have some from an earlier stream."""
        return resource.vacant and endpoints.may_have_endpoints(resource.name)

    def routes_settled(self, goal: Snapshot, still: Standstill) -> bool:
        """Whether the proxy runs the goal's listeners and routes but for those that stand still, so that nothing else leads to what is not in the goal."""
        if not any(type_url in self.holdings.subscriptions for type_url in ROUTING):
            # Who has never asked for routes has none; who comes with resources will ask in a moment.
            return not self.warm
        return all(self.settled(type_url, goal, still) for type_url in ROUTING)

    def settled(self, type_url: TypeUrl, goal: Snapshot, still: Standstill) -> bool:
        """Whether the proxy runs the goal's resources of this type, but for what it refused and what has to stay for that."""
        names = self.holdings.differing(type_url, goal)
        return names is not None and all(still.excuses(type_url, name, goal) for name in names)
