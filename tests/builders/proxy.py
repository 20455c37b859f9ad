"""A proxy that does with discovery responses what Envoy does, one at a time, and remembers what it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.planner import HostState
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, content_hash, version_of
from tidegate.xds.delta import DeltaStream
from tidegate.xds.delta_messages import DeltaRequest
from tidegate.xds.messages import DiscoveryRequest, DiscoveryResponse
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.stream import AdsStream

CLUSTER, ENDPOINT, LISTENER, SCOPE = TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER, TypeUrl.SCOPE
GATEWAY = "gateway"

# What two snapshots have alike is one object, as it is where a builder makes them.
_SHARED: dict[tuple[TypeUrl, str], Mapping[str, Resource]] = {}
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
        name: Resource(name, f"c{version}", f"{name} c{version}".encode())
        for name, version in clusters.items()
    }
    endpoint_set: dict[str, Resource] = {}
    for name, version in clusters.items():
        count = (endpoints or {}).get(name, 1)
        endpoint_set[name] = Resource(name, f"c{version}-e{count}", b"", vacant=count == 0)
    scopes = {CTR: _scope(CTR, routes_to)}
    for name, leads_to in (others or {}).items():
        scopes[str(host(name))] = _scope(str(host(name)), leads_to)
    resources = {
        CLUSTER: cluster_set,
        ENDPOINT: endpoint_set,
        LISTENER: {GATEWAY: Resource(GATEWAY, "l1", b"")},
        SCOPE: scopes,
        TypeUrl.SECRET: {},
    }
    versions = {type_url: version_of(of_type) for type_url, of_type in resources.items()}
    shared = {
        type_url: _SHARED.setdefault((type_url, versions[type_url]), of_type)
        for type_url, of_type in resources.items()
    }
    return Snapshot(
        revision=content_hash(versions.values()),
        resources=shared,
        versions=versions,
        hosts={
            key: HostState("uid", generation, answers=True) for key in (CTR_HOST, *map(host, others or {}))
        },
    )


def _scope(name: str, leads_to: Iterable[str]) -> Resource:
    clusters = frozenset(leads_to)
    body = ",".join((name, *sorted(clusters))).encode()
    return Resource(name, content_hash([body]), body, references=clusters)


@dataclass
class Proxy:
    """Envoy, as far as discovery goes, in the dialect 'state of the world'.

    `clusters` and `endpoints` are what serves; a new or changed cluster is in `warming` until its endpoints come after it.
    `scopes` is what its workers route by, `noted` what it has taken note of, and `to_workers` what of a response they are to be told.
    `outbox` holds requests that have not reached the server, `inbox` responses that have not reached the proxy.
    """

    stream: DiscoveryStream[Any]
    node: str = "gateway-1"
    clusters: dict[str, str] = field(default_factory=dict)
    warming: dict[str, str] = field(default_factory=dict)
    endpoints: dict[str, Resource] = field(default_factory=dict)
    scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    noted: dict[str, str] = field(default_factory=dict)
    to_workers: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    refuses: set[TypeUrl] = field(default_factory=set)
    refuses_names: set[str] = field(default_factory=set)
    refuses_versions: set[str] = field(default_factory=set)
    inbox: deque[DiscoveryResponse] = field(default_factory=deque)
    outbox: deque[Any] = field(default_factory=deque)
    received: list[DiscoveryResponse] = field(default_factory=list)
    names: dict[TypeUrl, frozenset[str]] = field(default_factory=dict)
    nonces: dict[TypeUrl, str] = field(default_factory=dict)
    versions: dict[TypeUrl, str] = field(default_factory=dict)
    now: float = 0.0

    @staticmethod
    def a_stream(snapshot: Snapshot | None, **options: Any) -> DiscoveryStream[Any]:
        """The server's side of a stream in this proxy's dialect."""
        return AdsStream(snapshot, **options)

    def connect(self, stream: DiscoveryStream[Any] | None = None) -> None:
        """Opens the stream, or a new one: then everything that it was subscribed to is asked for again."""
        if stream is not None:
            self.stream = stream
        self.inbox.clear()
        self.outbox.clear()
        self.nonces.clear()
        for type_url in (CLUSTER, ENDPOINT, LISTENER, SCOPE):
            if type_url in self.names or type_url in {CLUSTER, LISTENER}:
                self._subscribe(type_url)

    def _subscribe(self, type_url: TypeUrl) -> None:
        """The first request of a type on a stream."""
        self._ask(type_url)

    def server_takes(self) -> None:
        """The oldest request arrives at the server."""
        self.inbox.extend(self.stream.on_request(self.outbox.popleft(), self.now))

    def set(self, snapshot: Snapshot) -> None:
        """The server learns of a newer snapshot."""
        self.inbox.extend(self.stream.on_snapshot(snapshot, self.now))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.inbox.extend(self.stream.on_time(self.now))

    def proxy_takes(self) -> DiscoveryResponse:
        """The oldest response arrives at the proxy, which applies or refuses it, and answers."""
        response = self.inbox.popleft()
        self.received.append(response)
        type_url = TypeUrl(response.type_url)
        self.nonces[type_url] = response.nonce
        if type_url is SCOPE and not self._take_note(response):
            self._ask(type_url, error="no, thank you")
            return response
        if any(self.is_bad(type_url, one) for one in response.resources) or type_url in self.refuses:
            self._ask(type_url, error="no, thank you")
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
        self._ask(type_url)
        self._apply(type_url, response)
        return response

    def is_bad(self, type_url: TypeUrl, resource: Resource) -> bool:
        """Whether it refuses this."""
        return (
            type_url in self.refuses
            or resource.name in self.refuses_names
            or resource.version in self.refuses_versions
        )

    def _remember(self, type_url: TypeUrl, response: DiscoveryResponse) -> None:
        self.versions[type_url] = response.version

    def settle(self) -> list[DiscoveryResponse]:
        """Everything on the way arrives, until nothing is; what the proxy received."""
        before = len(self.received)
        while self.inbox or self.outbox:
            while self.outbox:
                self.server_takes()
            if self.inbox:
                self.proxy_takes()
        return self.received[before:]

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
        for name in self._gone_scopes(response):
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

    def _gone_scopes(self, response: DiscoveryResponse) -> set[str]:
        return self.noted.keys() - {scope.name for scope in response.resources}

    def _apply_scopes(self) -> None:
        for name, leads_to in self.to_workers.items():
            if leads_to is None:
                self.scopes.pop(name, None)
            else:
                self.scopes[name] = leads_to
        self.to_workers.clear()

    def _clusters_of(self, response: DiscoveryResponse) -> dict[str, str]:
        """Every cluster that there is to be after `response`, and its version."""
        return {resource.name: resource.version for resource in response.resources}

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
            self._want(ENDPOINT, names)

    def _want(self, type_url: TypeUrl, names: frozenset[str]) -> None:
        """Other names than before, told to the server."""
        self.names[type_url] = names
        self._ask(type_url)

    def _ask(self, type_url: TypeUrl, error: str | None = None) -> None:
        """As Envoy does: a request that still waits to be sent is brought up to date instead of sent twice."""
        request = DiscoveryRequest(
            type_url=type_url,
            names=self.names.get(type_url, frozenset()),
            version=self.versions.get(type_url, ""),
            nonce=self.nonces.get(type_url, ""),
            error=error,
            node=self.node,
        )
        for index, waiting in enumerate(self.outbox):
            if waiting.type_url == type_url:
                self.outbox[index] = request
                return
        self.outbox.append(request)


def names_in(body: bytes) -> tuple[str, ...]:
    """Return the clusters that a scope of `a_snapshot` leads to, as a proxy reads them."""
    return tuple(body.decode().split(",")[1:])


@dataclass
class DeltaProxy(Proxy):
    """Envoy in the dialect 'delta'. `known` are the versions that it tells the next server."""

    known: dict[TypeUrl, dict[str, str]] = field(default_factory=dict)
    opened: set[TypeUrl] = field(default_factory=set)

    @staticmethod
    def a_stream(snapshot: Snapshot | None, **options: Any) -> DiscoveryStream[Any]:
        """The server's side of a stream in this proxy's dialect."""
        return DeltaStream(snapshot, **{key: options[key] for key in options if key != "placeholder"})

    def connect(self, stream: DiscoveryStream[Any] | None = None) -> None:
        """Opens the stream, or a new one, and says what it has."""
        self.opened.clear()
        super().connect(stream)

    def _subscribe(self, type_url: TypeUrl) -> None:
        self.opened.add(type_url)
        names = self.names.get(type_url, frozenset())
        versions = dict(self.known.get(type_url, {}))
        self.outbox.append(DeltaRequest(type_url, subscribe=names, versions=versions, node=self.node))

    def _remember(self, type_url: TypeUrl, response: DiscoveryResponse) -> None:
        known = self.known.setdefault(type_url, {})
        known.update({resource.name: resource.version for resource in response.resources})
        for name in response.removed:
            known.pop(name, None)

    def _clusters_of(self, response: DiscoveryResponse) -> dict[str, str]:
        changed = {resource.name: resource.version for resource in response.resources}
        clusters = {**self.clusters, **self.warming, **changed}
        return {name: version for name, version in clusters.items() if name not in response.removed}

    def _gone_scopes(self, response: DiscoveryResponse) -> set[str]:
        return self.noted.keys() & set(response.removed)

    def _want(self, type_url: TypeUrl, names: frozenset[str]) -> None:
        before = self.names.get(type_url, frozenset())
        self.names[type_url] = names
        for name in before - names:
            self.known.get(type_url, {}).pop(name, None)
        if type_url not in self.opened:
            self._subscribe(type_url)
            return
        for index, waiting in enumerate(self.outbox):
            if waiting.type_url == type_url:
                # What was given up and is wanted again must be sent again.
                self.outbox[index] = replace(
                    waiting,
                    subscribe=(waiting.subscribe | (names - before)) & names,
                    unsubscribe=(waiting.unsubscribe | (before - names)) - names,
                )
                return
        self.outbox.append(DeltaRequest(type_url, names - before, before - names))

    def _ask(self, type_url: TypeUrl, error: str | None = None) -> None:
        """The answer to the newest response; every one is answered."""
        self.outbox.append(DeltaRequest(type_url, nonce=self.nonces.get(type_url, ""), error=error))
