"""What a proxy should have of one type now: for each name the goal's resource, the last accepted one, or none.

Rejected resources are held back, and so are the routes that lead to them; nothing else waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from tidegate.routing.envoy import routes
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds.resources import NO_RESOURCES, ResourceSet, Snapshot, TypeUrl, XdsResource
from tidegate.xds.state import BACKENDS, StreamState
from tidegate.xds.subscription import Desired, Subscription


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The resources of one goal that a proxy does not get; mappings are from names to the proxy's reasons.

    `rejected`: the resources that the proxy rejected alone in a response, by type.
    `scopes`: the scopes that stay as the proxy has them: it rejected them, or they lead to a cluster that it cannot use.
    `in_use`: the clusters that these scopes lead to as the proxy runs them; None if unknown.
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
    """Return the resources of `goal` that wait for the next snapshot."""
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
    """Return the objects whose version in the goal the proxy rejected, with the proxy's reasons."""
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


class DesiredAction(Enum):
    """What to do with one name."""

    SEND = auto()
    """The proxy should have the goal's resource. `NackBisector` does not send a rejected resource again."""
    KEEP = auto()
    """The proxy should keep the resource that it accepted last."""
    DROP = auto()
    """The proxy should have no resource; endpoints and secrets are never deleted."""


class InGoal(Enum):
    """Whether the goal has a resource under one name."""

    YES = auto()
    EMPTIED = auto()
    """The goal has no endpoints for a cluster, and the proxy has some."""
    NO = auto()


@dataclass(frozen=True, slots=True)
class DesiredRule:
    """One row of the table; None stands for both.

    `referenced`: the proxy may have a route that leads to this cluster.
    `blocked`: this scope leads to a cluster that the proxy cannot use.
    """

    type_url: TypeUrl
    in_goal: InGoal
    referenced: bool | None
    blocked: bool | None
    action: DesiredAction


TABLE: Final = (
    # type, in the goal, referenced, blocked, action
    DesiredRule(TypeUrl.CLUSTER, InGoal.YES, None, None, DesiredAction.SEND),
    DesiredRule(TypeUrl.CLUSTER, InGoal.NO, True, None, DesiredAction.KEEP),
    DesiredRule(TypeUrl.CLUSTER, InGoal.NO, False, None, DesiredAction.DROP),
    DesiredRule(TypeUrl.ENDPOINT, InGoal.YES, None, None, DesiredAction.SEND),
    DesiredRule(TypeUrl.ENDPOINT, InGoal.EMPTIED, True, None, DesiredAction.KEEP),
    DesiredRule(TypeUrl.ENDPOINT, InGoal.EMPTIED, False, None, DesiredAction.SEND),
    DesiredRule(TypeUrl.ENDPOINT, InGoal.NO, None, None, DesiredAction.KEEP),
    DesiredRule(TypeUrl.SCOPE, InGoal.YES, None, False, DesiredAction.SEND),
    DesiredRule(TypeUrl.SCOPE, InGoal.YES, None, True, DesiredAction.KEEP),
    DesiredRule(TypeUrl.SCOPE, InGoal.NO, None, None, DesiredAction.DROP),
    DesiredRule(TypeUrl.LISTENER, InGoal.YES, None, None, DesiredAction.SEND),
    DesiredRule(TypeUrl.LISTENER, InGoal.NO, None, None, DesiredAction.DROP),
    DesiredRule(TypeUrl.SECRET, InGoal.YES, None, None, DesiredAction.SEND),
    DesiredRule(TypeUrl.SECRET, InGoal.NO, None, None, DesiredAction.DROP),
)

_BOTH: Final = (False, True)
# The table by type and columns, for speed: the first update of a proxy looks up every resource.
_ACTIONS: Final[Mapping[TypeUrl, Mapping[tuple[bool, bool, bool, bool], DesiredAction]]] = {
    type_url: {
        (row.in_goal is not InGoal.NO, row.in_goal is InGoal.EMPTIED, referenced, blocked): row.action
        for row in TABLE
        if row.type_url is type_url
        for referenced in (_BOTH if row.referenced is None else (row.referenced,))
        for blocked in (_BOTH if row.blocked is None else (row.blocked,))
    }
    for type_url in TypeUrl
}


@dataclass(frozen=True, slots=True)
class ProxyUpdate:
    """The state of a proxy's update to `goal`.

    `breaking`: it runs the goal's routes, so only routes that are held back lead to clusters that the goal does not have.
    `unsent`: clusters of the goal that were never sent to it: it would reject a route to one of them.
    """

    goal: Snapshot
    held_back: HeldBack
    breaking: bool = False
    unsent: frozenset[str] = frozenset()

    def may_reference(self, cluster: str) -> bool:
        """Return whether the proxy may have a route that leads to `cluster`."""
        return not self.breaking or self.held_back.keeps_cluster(cluster)

    def blocks_scope(self, scope: XdsResource) -> bool:
        """Return whether `scope` leads to a cluster that the proxy cannot use."""
        if scope.name in self.held_back.scopes:
            return self.held_back.blocks_scope(scope.name)
        return not self.unsent.isdisjoint(scope.references)


@dataclass(slots=True)
class DesiredResources:
    """The resources that the proxy of one stream should have.

    `_overtaken`: the endpoints of clusters whose last sent version is no longer in the goal.
    """

    state: StreamState
    _overtaken: dict[str, XdsResource] = field(default_factory=dict[str, XdsResource])

    def note_overtaken(self, before: Snapshot | None, newer: Snapshot) -> None:
        """Remember the endpoints of clusters that were sent in a version that `newer` does not have."""
        clusters = self.state.get(TypeUrl.CLUSTER)
        if before is None or clusters is None:
            return
        was, now = before.resources[TypeUrl.CLUSTER], newer.resources[TypeUrl.CLUSTER]
        endpoints = before.resources[TypeUrl.ENDPOINT]
        overtaken = {
            name: (endpoints if _was_sent(clusters, was.get(name)) else self._overtaken).get(name)
            for name in {*self._overtaken, *clusters.names_to_check(now)}
            if name in clusters.sent and not _was_sent(clusters, now.get(name))
        }
        self._overtaken = {name: resource for name, resource in overtaken.items() if resource is not None}

    def find_desired(self, subscription: Subscription, update: ProxyUpdate) -> Desired:
        """Return the desired resource of this type for every name under which the proxy may have another one."""
        resources = update.goal.resources[subscription.type_url]
        return {
            name: self._choose_resource(subscription, update, name) if subscription.wants_name(name) else None
            for name in self._names_to_check(subscription, resources)
        }

    def _names_to_check(self, subscription: Subscription, resources: ResourceSet) -> Iterator[str]:
        names = subscription.names_to_check(resources)
        yield from names
        if subscription.type_url is TypeUrl.ENDPOINT:
            yield from (name for name in self._overtaken if name not in names)

    def _choose_resource(
        self, subscription: Subscription, update: ProxyUpdate, name: str
    ) -> XdsResource | None:
        type_url = subscription.type_url
        if type_url is TypeUrl.ENDPOINT:
            resource = self._endpoints_to_send(update.goal, name)
        else:
            resource = update.goal.resources[type_url].get(name)
        referenced = type_url in BACKENDS and (
            update.may_reference(name)
            # A gRPC client accepts routes before it uses them, and names a cluster for as long as it needs it.
            or (type_url is TypeUrl.CLUSTER and subscription.names is not None)
        )
        blocked = type_url is TypeUrl.SCOPE and resource is not None and update.blocks_scope(resource)
        emptied = resource is not None and subscription.is_emptied_by(resource)
        match _ACTIONS[type_url][resource is not None, emptied, referenced, blocked]:
            case DesiredAction.SEND:
                return resource
            case DesiredAction.KEEP:
                return subscription.kept_resource(name)
            case DesiredAction.DROP:
                return None

    def _endpoints_to_send(self, goal: Snapshot, name: str) -> XdsResource | None:
        """Return the endpoints of the cluster in the version that was sent last; None without any.

        Envoy waits up to 15 s for endpoints after a change of their cluster, and acknowledges no clusters meanwhile.
        So endpoints are sent after their cluster, never before, also for a cluster that a newer snapshot has replaced.
        """
        clusters = self.state.get(TypeUrl.CLUSTER)
        endpoints = goal.resources[TypeUrl.ENDPOINT].get(name)
        overtaken = self._overtaken.get(name) if clusters is not None and name in clusters.sent else None
        if endpoints is None:
            return overtaken
        cluster = goal.resources[TypeUrl.CLUSTER].get(name)
        if clusters is None or cluster is None or clusters.was_sent(cluster):
            return endpoints
        if overtaken is None and name in clusters.bisector.suspects:
            # Envoy may use this cluster from a rejected response, and wait for these endpoints.
            return endpoints
        return overtaken


def _was_sent(clusters: Subscription, cluster: XdsResource | None) -> bool:
    return cluster is not None and clusters.was_sent(cluster)
