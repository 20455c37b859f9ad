"""The resources of every type that one proxy has, compared with a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.xds.resources import Snapshot, TypeUrl, XdsResource
from tidegate.xds.subscription import DELETED_TYPES, Subscription

ORDER: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.SECRET, TypeUrl.LISTENER, TypeUrl.SCOPE)
"""The order in which the types are sent."""

BACKENDS: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT)
ROUTES: Final = (TypeUrl.LISTENER, TypeUrl.SCOPE)

# A proxy subscribes to these types at once, and to the others when a resource refers to them.
_FIRST: Final = (TypeUrl.CLUSTER, TypeUrl.LISTENER)

# A proxy that subscribes to all clusters (listeners) needs the endpoints (scopes) of all of them.
_FOLLOWS: Final = {TypeUrl.ENDPOINT: TypeUrl.CLUSTER, TypeUrl.SCOPE: TypeUrl.LISTENER}


@dataclass(slots=True)
class StreamState:
    """The subscriptions of one stream, by type, and questions about all of them together.

    `resumed`: the proxy came with resources from an earlier stream.
    """

    subscriptions: dict[TypeUrl, Subscription] = field(default_factory=dict[TypeUrl, Subscription])
    resumed: bool = False

    def get(self, type_url: TypeUrl) -> Subscription | None:
        """Return the subscription to a type; None if the proxy has not subscribed to it."""
        return self.subscriptions.get(type_url)

    @property
    def error(self) -> str | None:
        """Return the proxy's reason for a NACK; None if it rejects no resource."""
        errors = (subscription.error for subscription in self.subscriptions.values())
        return next((error for error in errors if error is not None), None)

    @property
    def has_rejected_resources(self) -> bool:
        """Return whether a resource was rejected alone in a response."""
        return any(subscription.bisector.rejected for subscription in self.subscriptions.values())

    def rejected_resources(self, type_url: TypeUrl, goal: Snapshot) -> Mapping[str, str]:
        """Return, by name, the reasons for the goal's resources that the proxy rejected."""
        subscription = self.get(type_url)
        return {} if subscription is None else subscription.bisector.rejected_in(goal.resources[type_url])

    def missing_clusters(self) -> Mapping[str, str]:
        """Return, with its reasons, the clusters that the proxy cannot use: it rejected them or their endpoints, and has no earlier version."""
        return {
            name: reason
            for type_url in BACKENDS
            if (subscription := self.get(type_url)) is not None
            for name, reason in subscription.bisector.rejected.items()
            if subscription.get(name) is None
        }

    def unsent_clusters(self, goal: Snapshot) -> frozenset[str]:
        """Return the clusters of the goal that the proxy subscribes to and that were never sent to it."""
        clusters = self.get(TypeUrl.CLUSTER)
        if clusters is None:
            return frozenset()
        return frozenset(
            cluster.name
            for cluster in self.expected_resources(TypeUrl.CLUSTER, goal)
            if cluster.name not in clusters.sent
        )

    def expected_resources(self, type_url: TypeUrl, goal: Snapshot) -> Iterator[XdsResource]:
        """Yield the resources of the goal that the proxy needs and does not certainly run."""
        own, deciding = self.get(type_url), self.get(_FOLLOWS.get(type_url, type_url))
        everything = deciding is not None and deciding.names is None
        if own is None and not everything:
            return
        resources = goal.resources[type_url]
        for name in resources if own is None else own.names_to_check(resources):
            resource = resources.get(name)
            if resource is not None and (everything or (own is not None and own.wants_name(name))):
                yield resource

    def differing_names(self, type_url: TypeUrl, goal: Snapshot) -> frozenset[str] | None:
        """Return the names under which the proxy does not run the goal's resource; None before it has answered or subscribed."""
        own, resources = self.get(type_url), goal.resources[type_url]
        if own is None:
            never = frozenset(resource.name for resource in self.expected_resources(type_url, goal))
            return None if type_url in _FIRST else never
        if own.is_complete(resources):
            return frozenset()
        if own.in_flight is not None or (type_url in DELETED_TYPES and not own.has_answered):
            return None
        names = {
            resource.name
            for resource in self.expected_resources(type_url, goal)
            if not own.runs_resource(resource)
        }
        if type_url in DELETED_TYPES:
            names.update(
                name
                for name in own.names_to_check(resources)
                if name not in resources and not own.lacks_name(name)
            )
        if not names:
            own.mark_complete(resources)
        return frozenset(names)

    def runs_all(self, type_url: TypeUrl, goal: Snapshot) -> bool:
        """Return whether the proxy runs the goal's resources of this type and nothing else."""
        names = self.differing_names(type_url, goal)
        return names is not None and not names

    def has_backends(self, goal: Snapshot) -> bool:
        """Return whether the proxy accepted every cluster of the goal and the endpoints of each, except those that it rejected."""
        clusters, endpoints = self.get(TypeUrl.CLUSTER), self.get(TypeUrl.ENDPOINT)
        if clusters is not None and not clusters.has_answered:
            return False
        rejected = self.rejected_resources(TypeUrl.CLUSTER, goal)
        if not all(
            cluster.name in rejected or (clusters is not None and clusters.runs_resource(cluster))
            for cluster in self.expected_resources(TypeUrl.CLUSTER, goal)
        ):
            return False
        exempt = {*rejected, *self.rejected_resources(TypeUrl.ENDPOINT, goal)}
        # Routes do not wait for endpoints that become empty: these are held back until the routes have moved.
        return all(
            expected.name in exempt
            or (
                endpoints is not None
                and (endpoints.runs_resource(expected) or endpoints.is_emptied_by(expected))
            )
            for expected in self.expected_resources(TypeUrl.ENDPOINT, goal)
        )
