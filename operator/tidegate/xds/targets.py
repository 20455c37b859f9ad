"""What a proxy should have of one type at the present step: the goal, but for what is held back or kept until the routes have moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidegate.routing.snapshot import Resource, Resources, Snapshot, TypeUrl
from tidegate.xds.gate import Gate
from tidegate.xds.holdings import Holdings
from tidegate.xds.standstill import Standstill
from tidegate.xds.subscription import Subscription

Target = Mapping[str, Resource | None]
"""Resources by name, None for one that is not to be there: every name under which the proxy may have something else."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where the proxy is on its way: `breaking` once its routes have moved, but for those of `still`.

    `unsent` are clusters of the goal that the proxy cannot have: a route that leads there would be refused.
    """

    goal: Snapshot
    still: Standstill
    breaking: bool
    unsent: frozenset[str] = frozenset()

    def breaks(self, cluster: str) -> bool:
        """Whether nothing leads to a cluster any more that the goal does not lead to."""
        return self.breaking and not self.still.keeps(cluster)


@dataclass(slots=True)
class Targets:
    """The targets of one stream.

    `_left` are the endpoints of clusters that the proxy was sent and that the goal no longer has, or has otherwise.
    """

    holdings: Holdings
    gate: Gate
    _left: dict[str, Resource] = field(default_factory=dict[str, Resource])

    def remember(self, before: Snapshot | None, newer: Snapshot) -> None:
        """Keeps the endpoints of clusters that the proxy was sent and that `newer` no longer has as they were."""
        clusters = self.holdings.get(TypeUrl.CLUSTER)
        if before is None or clusters is None:
            return
        was, wanted = before.resources[TypeUrl.CLUSTER], newer.resources[TypeUrl.CLUSTER]
        overtaken = [
            name
            for name in {*self._left, *clusters.candidates(wanted)}
            if name in clusters.sent and not _was_sent(clusters, wanted.get(name))
        ]
        endpoints = before.resources[TypeUrl.ENDPOINT]
        known = {
            name: (endpoints if _was_sent(clusters, was.get(name)) else self._left).get(name)
            for name in overtaken
        }
        self._left = {name: one for name, one in known.items() if one is not None}

    def of(self, subscription: Subscription, step: Step) -> Target:
        """What the proxy should have of this type now."""
        return {
            name: self._wanted(subscription, step, name) if subscription.wants(name) else None
            for name in self._candidates(subscription, step.goal.resources[subscription.type_url])
        }

    def _candidates(self, subscription: Subscription, resources: Resources) -> Iterator[str]:
        """The names under which the proxy may have something else than it should."""
        seen = subscription.candidates(resources)
        yield from seen
        if subscription.type_url is TypeUrl.ENDPOINT:
            yield from (name for name in self._left if name not in seen)

    def _wanted(self, subscription: Subscription, step: Step, name: str) -> Resource | None:
        if subscription.type_url is TypeUrl.ENDPOINT:
            return self._wanted_endpoints(subscription, step, name)
        resource = step.goal.resources[subscription.type_url].get(name)
        if subscription.type_url is TypeUrl.SCOPE and name in step.still.scopes:
            # Refused anyway, or it would lead to what is not there.
            return resource if name in step.still.refused[TypeUrl.SCOPE] else subscription.held(name)
        if (
            subscription.type_url is TypeUrl.SCOPE
            and resource is not None
            and not step.unsent.isdisjoint(resource.references)
        ):
            return subscription.held(name)
        named = subscription.names is not None
        if resource is None and subscription.type_url is TypeUrl.CLUSTER and (named or not step.breaks(name)):
            # A route of the proxy's may still lead there. Who asks by name (a gRPC client) accepts routes before it
            # uses them, and says itself when it is done with a cluster.
            return subscription.kept(name)
        return resource

    def _wanted_endpoints(self, subscription: Subscription, step: Step, name: str) -> Resource | None:
        clusters = self.holdings.get(TypeUrl.CLUSTER)
        resource = step.goal.resources[TypeUrl.ENDPOINT].get(name)
        # A cluster that was overtaken before its endpoints went out gets them all the same: Envoy acknowledges no
        # clusters while one of them waits for its endpoints, and would wait 15 s for these.
        left = self._left.get(name) if clusters is not None and name in clusters.sent else None
        if resource is None:
            return left
        cluster = step.goal.resources[TypeUrl.CLUSTER].get(name)
        if clusters is not None and cluster is not None and not clusters.was_sent(cluster):
            # The endpoints of a changed cluster go after it, never before: it would wait for them in vain.
            # One that was refused may wait already as it was before, and for these.
            refused = name in clusters.suspects.refused
            resource = left if left is not None or not refused else resource
        if resource is None or (not step.breaks(name) and self.gate.holds_back(subscription, resource)):
            return subscription.held(name)
        return resource


def _was_sent(clusters: Subscription, cluster: Resource | None) -> bool:
    return cluster is not None and clusters.was_sent(cluster)
