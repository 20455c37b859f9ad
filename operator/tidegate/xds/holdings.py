"""What one proxy has of every type of resource, held against what a snapshot would have it have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl
from tidegate.xds.subscription import WHOLE, Subscription

ORDER: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.SECRET, TypeUrl.LISTENER, TypeUrl.SCOPE)
"""In which the types are sent."""

BACKENDS: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT)
ROUTING: Final = (TypeUrl.LISTENER, TypeUrl.SCOPE)

# What every proxy asks for of its own accord; the rest once it has something that needs it.
_FIRST: Final = (TypeUrl.CLUSTER, TypeUrl.LISTENER)

# Whoever asks for every cluster (listener) is to have the endpoints (routes) of every one.
_FOLLOWS: Final = {TypeUrl.ENDPOINT: TypeUrl.CLUSTER, TypeUrl.SCOPE: TypeUrl.LISTENER}


@dataclass(slots=True)
class Holdings:
    """The subscriptions of one stream, by type, and what follows from all of them together."""

    subscriptions: dict[TypeUrl, Subscription] = field(default_factory=dict[TypeUrl, Subscription])

    def get(self, type_url: TypeUrl) -> Subscription | None:
        """The subscription to a type; None when the proxy has never asked for it."""
        return self.subscriptions.get(type_url)

    @property
    def error(self) -> str | None:
        """Why the proxy refused what it refused, in its words; None when there is nothing that it refuses."""
        errors = (subscription.error for subscription in self.subscriptions.values())
        return next((error for error in errors if error is not None), None)

    @property
    def refuses(self) -> bool:
        """Whether the proxy refuses some resource by itself."""
        return any(subscription.suspects.condemned for subscription in self.subscriptions.values())

    def missing_backends(self) -> Mapping[str, str]:
        """The clusters that the proxy does not have because it refused them, or their endpoints, with its words."""
        backends = (self.subscriptions.get(type_url) for type_url in BACKENDS)
        return {name: words for one in backends if one is not None for name, words in one.missing().items()}

    def unsent_clusters(self, goal: Snapshot) -> frozenset[str]:
        """The clusters of the goal that the proxy is to have and was never sent."""
        clusters = self.subscriptions.get(TypeUrl.CLUSTER)
        if clusters is None:
            return frozenset()
        return frozenset(one.name for one in self.due(TypeUrl.CLUSTER, goal) if one.name not in clusters.sent)

    def given_up(self, type_url: TypeUrl, goal: Snapshot) -> Mapping[str, str]:
        """What of the goal the proxy refused by itself, with its words."""
        subscription = self.subscriptions.get(type_url)
        return {} if subscription is None else subscription.suspects.given_up(goal.resources[type_url])

    def due(self, type_url: TypeUrl, goal: Snapshot) -> Iterator[Resource]:
        """The resources of the goal that the proxy is to have in the end, and of which it is not known that it has them."""
        deciding = self.subscriptions.get(_FOLLOWS.get(type_url, type_url))
        own = self.subscriptions.get(type_url)
        everything = deciding is not None and deciding.names is None
        if own is None and not everything:
            return
        resources = goal.resources[type_url]
        for name in resources if own is None else own.candidates(resources):
            resource = resources.get(name)
            if resource is not None and (everything or (own is not None and own.wants(name))):
                yield resource

    def differing(self, type_url: TypeUrl, goal: Snapshot) -> frozenset[str] | None:
        """The names under which the proxy runs something else than the goal; None while it owes an answer or has not asked."""
        own, resources = self.subscriptions.get(type_url), goal.resources[type_url]
        if own is None:
            never = frozenset(resource.name for resource in self.due(type_url, goal))
            return None if type_url in _FIRST else never
        if own.is_complete(resources):
            return frozenset()
        if own.in_flight is not None or (type_url in WHOLE and not own.answered):
            return None
        names = {resource.name for resource in self.due(type_url, goal) if not own.has(resource)}
        if type_url in WHOLE:
            names.update(
                name for name in own.candidates(resources) if name not in resources and not own.lacks(name)
            )
        if not names:
            own.completed(resources)
        return frozenset(names)

    def has_all(self, type_url: TypeUrl, goal: Snapshot) -> bool:
        """Whether the proxy runs the goal's resources of this type and nothing else."""
        names = self.differing(type_url, goal)
        return names is not None and not names

    def backends_complete(self, goal: Snapshot) -> bool:
        """Whether it is known already that the proxy runs the goal's clusters and endpoints: then a change is of routes alone."""
        return all(
            (subscription := self.subscriptions.get(type_url)) is not None
            and subscription.is_complete(goal.resources[type_url])
            for type_url in BACKENDS
        )
