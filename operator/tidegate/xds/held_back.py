"""What is held back because a proxy rejected something: the rejected resource and the routes that lead to it; nothing else waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidegate.routing.envoy import routes
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds.resources import NO_RESOURCES, Snapshot, TypeUrl, XdsResource
from tidegate.xds.state import BACKENDS, StreamState


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What of one goal a proxy does not get; mappings are from names to the proxy's reasons.

    `rejected`: what the proxy rejected by itself, by type.
    `scopes`: the scopes that stay as the proxy has them: it rejected them, or they lead to a cluster that it cannot use.
    `in_use`: the clusters that these scopes lead to, as the proxy runs them; None if that is not known.
    """

    rejected: Mapping[TypeUrl, Mapping[str, str]] = field(default_factory=dict[TypeUrl, Mapping[str, str]])
    scopes: Mapping[str, str] = field(default_factory=dict[str, str])
    in_use: frozenset[str] | None = frozenset()

    def is_exempt(self, type_url: TypeUrl, name: str, goal: Snapshot) -> bool:
        """Return whether the proxy counts as up to date although it does not run the goal's resource under `name`, or its deletion."""
        if type_url is TypeUrl.SCOPE:
            return name in self.scopes
        if name in self.rejected.get(type_url, ()):
            return True
        if type_url not in BACKENDS:
            return False
        if type_url is TypeUrl.ENDPOINT and name in self.rejected.get(TypeUrl.CLUSTER, ()):
            return True
        resource = goal.resources[type_url].get(name)
        return (resource is None or resource.vacant) and self.keeps_cluster(name)

    def keeps_cluster(self, cluster: str) -> bool:
        """Return whether scopes that are held back may lead to `cluster`, so that it and its endpoints stay too."""
        return self.in_use is None or cluster in self.in_use

    def blocks_scope(self, scope: str) -> bool:
        """Return whether a scope leads to a cluster that the proxy cannot use. A rejected scope is not blocked: it waits in the bisector."""
        return scope in self.scopes and scope not in self.rejected[TypeUrl.SCOPE]


NOTHING_HELD_BACK = HeldBack()


def find_held_back(state: StreamState, goal: Snapshot) -> HeldBack:
    """Return what of `goal` waits for the next snapshot."""
    if not state.has_rejected_resources:
        return NOTHING_HELD_BACK
    rejected = {type_url: state.rejected_resources(type_url, goal) for type_url in TypeUrl}
    scopes = dict(rejected[TypeUrl.SCOPE])
    subscription = state.get(TypeUrl.SCOPE)
    if subscription is None:
        return HeldBack(rejected, scopes)
    missing = state.missing_clusters()
    for scope in state.expected_resources(TypeUrl.SCOPE, goal) if missing else ():
        if not subscription.runs_resource(scope) and (reason := _reason_to_wait(scope, missing)) is not None:
            scopes.setdefault(scope.name, reason)
    if not subscription.unseen.keys().isdisjoint(scopes):
        return HeldBack(rejected, scopes, in_use=None)
    running = (subscription.get(name) for name in scopes)
    in_use = (scope.references for scope in running if scope is not None)
    return HeldBack(rejected, scopes, frozenset[str]().union(*in_use))


def _reason_to_wait(scope: XdsResource, missing: Mapping[str, str]) -> str | None:
    """Return the reason of the first missing cluster that a scope leads to; None if none is missing."""
    return next((reason for cluster, reason in missing.items() if cluster in scope.references), None)


def rejected_hosts(state: StreamState, goal: Snapshot, held_back: HeldBack) -> Mapping[HostKey, str]:
    """Return the objects of which the proxy does not run what the goal has, with the proxy's reasons."""
    if not held_back.rejected:
        return {}
    return {
        host: reason
        for name, reason in _rejected_scopes(state, goal, held_back)
        for host in _hosts_of_scope(name)
    }


def _rejected_scopes(state: StreamState, goal: Snapshot, held_back: HeldBack) -> Iterator[tuple[str, str]]:
    scopes = goal.resources[TypeUrl.SCOPE]
    listeners = state.get(TypeUrl.LISTENER)
    for name, reason in held_back.rejected[TypeUrl.LISTENER].items():
        if listeners is not None and listeners.get(name) is None:
            yield from ((scope, reason) for scope in scopes)
    for type_url in BACKENDS:
        for cluster, reason in held_back.rejected[type_url].items():
            yield from ((scope, reason) for scope in scopes.names_referencing(cluster))
    yield from held_back.scopes.items()
    hosts, subscription = scopes.get(routes.HOSTS_SCOPE), state.get(TypeUrl.SCOPE)
    if routes.HOSTS_SCOPE in held_back.scopes and hosts is not None and subscription is not None:
        running = subscription.get(routes.HOSTS_SCOPE)
        names = hosts.aliases.differing_names(NO_RESOURCES if running is None else running.aliases)
        yield from ((name, held_back.scopes[routes.HOSTS_SCOPE]) for name in names)


def _hosts_of_scope(scope: str) -> Iterator[HostKey]:
    """Yield the object of a scope; a pipeline's belongs to its ModelAccess too."""
    if scope == routes.HOSTS_SCOPE:
        return
    key = HostKey.parse(scope)
    yield key
    if key.kind is HostKind.PIPELINE:
        yield HostKey(HostKind.ACCESS, key.object)
