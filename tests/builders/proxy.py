"""A gateway that does with discovery responses what Envoy does, one at a time, and remembers what it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import HostState
from tidegate.xds.messages import DeltaRequest, DiscoveryResponse
from tidegate.xds.protocols import DeltaStream
from tidegate.xds.resources import NO_RESOURCES, ResourceSet, Snapshot, TypeUrl, XdsResource, content_hash
from tidegate.xds.stream import DiscoveryRequest, DiscoveryStream

CLUSTER, ENDPOINT, LISTENER, SCOPE = TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER, TypeUrl.SCOPE
GATEWAY = "gateway"

RequestT = TypeVar("RequestT", bound=DiscoveryRequest)

# What two snapshots have alike is one object, as it is where a builder makes them.
_SHARED: dict[tuple[TypeUrl, str], ResourceSet] = {}
CTR_HOST = HostKey(HostKind.ACCESS, ObjectKey("ads", "ctr"))
CTR = str(CTR_HOST)


def host(name: str) -> HostKey:
    """The virtual host of another access in the same namespace."""
    return HostKey(HostKind.ACCESS, ObjectKey("ads", name))


def a_snapshot(
    clusters: Mapping[str, int],
    *,
    routes_to: Iterable[str] = (),
    endpoints: Mapping[str, int] | None = None,
    generation: int = 1,
    others: Mapping[str, Iterable[str]] | None = None,
) -> Snapshot:
    """Clusters by name and version; `endpoints` overrides the version of some, 0 for none at all.

    `routes_to` is where the access ads/ctr leads, `others` where others do; all are of the same generation.
    """
    cluster_set = {
        name: XdsResource(name, f"c{version}", f"{name} c{version}".encode())
        for name, version in clusters.items()
    }
    endpoint_set: dict[str, XdsResource] = {}
    for name, version in clusters.items():
        count = (endpoints or {}).get(name, 1)
        endpoint_set[name] = XdsResource(name, f"c{version}-e{count}", b"", vacant=count == 0)
    scopes = {CTR: _scope(CTR, routes_to)}
    for name, leads_to in (others or {}).items():
        scopes[str(host(name))] = _scope(str(host(name)), leads_to)
    resources = {
        CLUSTER: cluster_set,
        ENDPOINT: endpoint_set,
        LISTENER: {GATEWAY: XdsResource(GATEWAY, "l1", b"")},
        SCOPE: scopes,
        TypeUrl.SECRET: {},
    }
    sets = {type_url: NO_RESOURCES.with_changes(of_type) for type_url, of_type in resources.items()}
    shared = {
        type_url: _SHARED.setdefault((type_url, of_type.version), of_type)
        for type_url, of_type in sets.items()
    }
    return Snapshot.from_sets(
        shared,
        {key: HostState("uid", generation, answers=True) for key in (CTR_HOST, *map(host, others or {}))},
    )


def _scope(name: str, leads_to: Iterable[str]) -> XdsResource:
    clusters = frozenset(leads_to)
    body = ",".join((name, *sorted(clusters))).encode()
    return XdsResource(name, content_hash([body]), body, references=clusters)


@dataclass
class DiscoveryClient(ABC, Generic[RequestT]):
    """A client of a stream, and what is on its way between the two.

    `outbox` holds requests that have not reached the server, `inbox` responses that have not reached the client.
    """

    stream: DiscoveryStream[RequestT]
    inbox: deque[DiscoveryResponse] = field(default_factory=deque, kw_only=True)
    outbox: deque[RequestT] = field(default_factory=deque, kw_only=True)
    received: list[DiscoveryResponse] = field(default_factory=list, kw_only=True)
    now: float = field(default=0.0, kw_only=True)

    def server_takes(self) -> None:
        """Let the oldest request arrive at the server."""
        self.inbox.extend(self.stream.on_request(self.outbox.popleft(), self.now))

    @abstractmethod
    def client_takes(self) -> DiscoveryResponse:
        """Let the oldest response arrive at the client, which applies or rejects it, and answers."""

    def set(self, snapshot: Snapshot) -> None:
        """Give the server a newer snapshot."""
        self.inbox.extend(self.stream.on_snapshot(snapshot, self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.inbox.extend(self.stream.on_timer(self.now))

    def settle(self) -> list[DiscoveryResponse]:
        """Let everything on the way arrive, until nothing is; return what the client received."""
        before = len(self.received)
        while self.inbox or self.outbox:
            while self.outbox:
                self.server_takes()
            if self.inbox:
                self.client_takes()
        return self.received[before:]


@dataclass
class Proxy(DiscoveryClient[DeltaRequest]):
    """Envoy, as far as discovery goes.

    `clusters` and `endpoints` are what serves; a new or changed cluster is in `warming` until its endpoints come after it.
    `scopes` is what its workers route by, `noted` what it has taken note of, and `to_workers` what of a response they are to be told.
    `known` are the versions that it tells the next server, and `opened` the types that it has asked this one for.
    """

    node: str = "gateway-1"
    clusters: dict[str, str] = field(default_factory=dict)
    warming: dict[str, str] = field(default_factory=dict)
    endpoints: dict[str, XdsResource] = field(default_factory=dict)
    scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    noted: dict[str, str] = field(default_factory=dict)
    to_workers: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    refuses: set[TypeUrl] = field(default_factory=set)
    refuses_names: set[str] = field(default_factory=set)
    refuses_versions: set[str] = field(default_factory=set)
    names: dict[TypeUrl, frozenset[str]] = field(default_factory=dict)
    known: dict[TypeUrl, dict[str, str]] = field(default_factory=dict)
    opened: set[TypeUrl] = field(default_factory=set)

    def connect(self, stream: DeltaStream | None = None) -> None:
        """Opens the stream, or a new one: asks again for everything that it was subscribed to, and says what it has."""
        if stream is not None:
            self.stream = stream
        self.inbox.clear()
        self.outbox.clear()
        self.opened.clear()
        for type_url in (CLUSTER, ENDPOINT, LISTENER, SCOPE):
            if type_url in self.names or type_url in {CLUSTER, LISTENER}:
                self._subscribe(type_url)

    def _subscribe(self, type_url: TypeUrl) -> None:
        """The first request of a type on a stream."""
        self.opened.add(type_url)
        names = self.names.get(type_url, frozenset())
        versions = dict(self.known.get(type_url, {}))
        self.outbox.append(DeltaRequest(type_url, subscribe=names, versions=versions, node=self.node))

    def client_takes(self) -> DiscoveryResponse:
        """The oldest response arrives at the proxy, which applies or refuses it, and answers."""
        response = self.inbox.popleft()
        self.received.append(response)
        type_url = TypeUrl(response.type_url)
        if type_url is SCOPE and not self._take_note(response):
            self._answer(response, error="no, thank you")
            return response
        if any(self.is_bad(type_url, one) for one in response.resources) or type_url in self.refuses:
            self._answer(response, error="no, thank you")
            if type_url is CLUSTER and type_url not in self.refuses:
                # Refused as a whole, and yet: each of the good ones is taken.
                good = tuple(one for one in response.resources if not self.is_bad(type_url, one))
                bad = {one.name for one in response.resources} - {one.name for one in good}
                self._apply_clusters(
                    {
                        **{name: self.clusters[name] for name in bad if name in self.clusters},
                        **self._clusters_of(replace(response, resources=good)),
                    }
                )
            return response
        self._remember(type_url, response)
        self._answer(response)
        self._apply(type_url, response)
        return response

    def is_bad(self, type_url: TypeUrl, resource: XdsResource) -> bool:
        """Whether it refuses this."""
        return (
            type_url in self.refuses
            or resource.name in self.refuses_names
            or resource.version in self.refuses_versions
        )

    def _remember(self, type_url: TypeUrl, response: DiscoveryResponse) -> None:
        known = self.known.setdefault(type_url, {})
        known.update({resource.name: resource.version for resource in response.resources})
        for name in response.removed:
            known.pop(name, None)

    @property
    def routes_to(self) -> tuple[str, ...]:
        """Clusters that any of the routes lead to."""
        return tuple(sorted({name for leads_to in self.scopes.values() for name in leads_to}))

    def broken_routes(self) -> list[str]:
        """Clusters that the routes lead to and that cannot answer now."""
        return [
            name
            for name in self.routes_to
            if name not in self.clusters or name not in self.endpoints or self.endpoints[name].vacant
        ]

    def _apply(self, type_url: TypeUrl, response: DiscoveryResponse) -> None:
        if type_url is CLUSTER:
            self._apply_clusters(self._clusters_of(response))
        elif type_url is ENDPOINT:
            for resource in response.resources:
                if resource.name in self.names.get(ENDPOINT, frozenset()):
                    self.endpoints[resource.name] = resource
                    if resource.name in self.warming:
                        self.clusters[resource.name] = self.warming.pop(resource.name)
        elif type_url is LISTENER:
            if SCOPE not in self.names:
                self.names[SCOPE] = frozenset()
                self._subscribe(SCOPE)
        else:
            self._apply_scopes()

    def _take_note(self, response: DiscoveryResponse) -> bool:
        """Takes note of each scope, in order, until it refuses one; what it has noted already is nothing new when it comes again."""
        for name in self.noted.keys() & set(response.removed):
            self.noted.pop(name, None)
            self.to_workers[name] = None
        for scope in response.resources:
            if self.noted.get(scope.name) == scope.version:
                continue
            if self.is_bad(SCOPE, scope):
                self.to_workers.clear()
                return False
            self.noted[scope.name] = scope.version
            self.to_workers[scope.name] = names_in(scope.body)
        return True

    def _apply_scopes(self) -> None:
        for name, leads_to in self.to_workers.items():
            if leads_to is None:
                self.scopes.pop(name, None)
            else:
                self.scopes[name] = leads_to
        self.to_workers.clear()

    def _clusters_of(self, response: DiscoveryResponse) -> dict[str, str]:
        """Every cluster that there is to be after `response`, and its version."""
        changed = {resource.name: resource.version for resource in response.resources}
        clusters = {**self.clusters, **self.warming, **changed}
        return {name: version for name, version in clusters.items() if name not in response.removed}

    def _apply_clusters(self, wanted: Mapping[str, str]) -> None:
        for name in [name for name in self.clusters if name not in wanted]:
            del self.clusters[name]
            self.endpoints.pop(name, None)
        for name in [name for name in self.warming if name not in wanted]:
            del self.warming[name]
        for name, version in wanted.items():
            # What waits is compared first: back to what serves is one more that waits.
            if self.warming.get(name, self.clusters.get(name)) != version:
                self.warming[name] = version
        names = frozenset(wanted)
        if names != self.names.get(ENDPOINT, frozenset()):
            self._want_endpoints(names)

    def _want_endpoints(self, names: frozenset[str]) -> None:
        """Other endpoints than before, told to the server in the request that still waits to be sent, if there is one."""
        before = self.names.get(ENDPOINT, frozenset())
        self.names[ENDPOINT] = names
        for name in before - names:
            self.known.get(ENDPOINT, {}).pop(name, None)
        if ENDPOINT not in self.opened:
            self._subscribe(ENDPOINT)
            return
        for index, waiting in enumerate(self.outbox):
            if waiting.type_url == ENDPOINT:
                # What was given up and is wanted again must be sent again.
                self.outbox[index] = replace(
                    waiting,
                    subscribe=(waiting.subscribe | (names - before)) & names,
                    unsubscribe=(waiting.unsubscribe | (before - names)) - names,
                )
                return
        self.outbox.append(DeltaRequest(ENDPOINT, names - before, before - names))

    def _answer(self, response: DiscoveryResponse, error: str | None = None) -> None:
        """Every response is answered."""
        self.outbox.append(DeltaRequest(response.type_url, nonce=response.nonce, error=error))


def names_in(body: bytes) -> tuple[str, ...]:
    """Return the clusters that a scope of `a_snapshot` leads to, as a proxy reads them."""
    return tuple(body.decode().split(",")[1:])
