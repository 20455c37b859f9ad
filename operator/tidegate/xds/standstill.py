"""What stays as it is because a proxy refused what was to come: that itself, and what leads to it; nothing else waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidegate.routing.envoy import routes
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, referencing
from tidegate.xds.holdings import BACKENDS, Holdings


@dataclass(frozen=True, slots=True)
class Standstill:
    """Of one goal; every mapping is of names to the proxy's words.

    `refused`: what the proxy refused by itself, by type. `scopes`: the routes that stay as they are, since they are refused or lead to a backend that is not there.
    `running`: those as the proxy runs them; where an empty one is, nobody knows where it leads.
    """

    refused: Mapping[TypeUrl, Mapping[str, str]] = field(default_factory=dict[TypeUrl, Mapping[str, str]])
    scopes: Mapping[str, str] = field(default_factory=dict[str, str])
    running: tuple[Resource, ...] = ()

    def excuses(self, type_url: TypeUrl, name: str, goal: Snapshot) -> bool:
        """Whether the proxy need not run the goal's resource under `name` (or its deletion), as far as can be known now."""
        if type_url is TypeUrl.SCOPE:
            return name in self.scopes
        if name in self.refused.get(type_url, ()):
            return True
        if type_url is TypeUrl.ENDPOINT and name in self.refused.get(TypeUrl.CLUSTER, ()):
            return True
        return self._could_go(type_url, name, goal) and self.keeps(name)

    def _could_go(self, type_url: TypeUrl, name: str, goal: Snapshot) -> bool:
        resource = goal.resources[type_url].get(name)
        return type_url in BACKENDS and (resource is None or resource.vacant)

    def keeps(self, cluster: str) -> bool:
        """Whether routes that stay as they are may lead to `cluster`, so that it and its endpoints stay too."""
        return any(not scope.body or cluster in scope.references for scope in self.running)


NOTHING = Standstill()


def standstill(holdings: Holdings, goal: Snapshot) -> Standstill:
    """What of `goal` waits for the next snapshot."""
    if not holdings.refuses:
        return NOTHING
    refused = {type_url: holdings.given_up(type_url, goal) for type_url in TypeUrl}
    scopes = dict(refused[TypeUrl.SCOPE])
    routing = holdings.get(TypeUrl.SCOPE)
    if routing is None:
        return Standstill(refused, scopes)
    missing = holdings.missing_backends()
    for scope in holdings.due(TypeUrl.SCOPE, goal) if missing else ():
        if not routing.has(scope) and (words := _words_on_missing(scope, missing)) is not None:
            scopes.setdefault(scope.name, words)
    held = (routing.held(name) for name in scopes)
    return Standstill(refused, scopes, tuple(scope for scope in held if scope is not None))


def _words_on_missing(scope: Resource, missing: Mapping[str, str]) -> str | None:
    """Return the proxy's words about the first missing cluster that a scope leads to; None where none is missing."""
    return next((words for cluster, words in missing.items() if cluster in scope.references), None)


def refused_hosts(holdings: Holdings, goal: Snapshot, still: Standstill) -> Mapping[HostKey, str]:
    """The objects of which the proxy does not run what the goal has, and the words in which it refused that."""
    if not still.refused:
        return {}
    return {host: words for name, words in _refused_names(holdings, goal, still) for host in _hosts_of(name)}


def _refused_names(holdings: Holdings, goal: Snapshot, still: Standstill) -> Iterator[tuple[str, str]]:
    scopes = goal.resources[TypeUrl.SCOPE]
    listeners = holdings.get(TypeUrl.LISTENER)
    for name, words in still.refused[TypeUrl.LISTENER].items():
        if listeners is not None and listeners.held(name) is None:
            yield from ((scope, words) for scope in scopes)
    for type_url in BACKENDS:
        for cluster, words in still.refused[type_url].items():
            yield from ((scope, words) for scope in referencing(scopes, cluster))
    yield from still.scopes.items()
    hosts, routing = scopes.get(routes.HOSTS), holdings.get(TypeUrl.SCOPE)
    if routes.HOSTS in still.scopes and hosts is not None and routing is not None:
        held = routing.held(routes.HOSTS)
        names = routes.differing_aliases(b"" if held is None else held.body, hosts.body)
        yield from ((name, still.scopes[routes.HOSTS]) for name in names)


def _hosts_of(scope: str) -> Iterator[HostKey]:
    """Whose scope it is; what only a ModelAccess's pipelines call is the access's too."""
    if scope == routes.HOSTS:
        return
    key = HostKey.parse(scope)
    yield key
    if key.kind is HostKind.PIPELINE:
        yield HostKey(HostKind.ACCESS, key.object)
