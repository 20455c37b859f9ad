"""A proxy that does with discovery responses what Envoy does, one at a time, and remembers what it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.api.meta import ObjectKey
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.planner import HostState
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, content_hash, version_of
from tidegate.xds.messages import DiscoveryRequest, DiscoveryResponse
from tidegate.xds.stream import AdsStream

CLUSTER, ENDPOINT, LISTENER, ROUTE = TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER, TypeUrl.ROUTE
GATEWAY = "gateway"

# What two snapshots have alike is one object, as it is where a builder makes them.
_SHARED: dict[tuple[TypeUrl, str], Mapping[str, Resource]] = {}
CTR_HOST = HostKey(HostKind.ACCESS, ObjectKey("ads", "ctr"))


def a_snapshot(
    clusters: Mapping[str, int],
    *,
    routes_to: Iterable[str] = (),
    endpoints: Mapping[str, int] | None = None,
    generation: int = 1,
) -> Snapshot:
    """Clusters by name and version; `endpoints` overrides the version of some, 0 for none at all."""
    cluster_set = {
        name: Resource(name, f"c{version}", f"{name} c{version}".encode())
        for name, version in clusters.items()
    }
    endpoint_set: dict[str, Resource] = {}
    for name, version in clusters.items():
        count = (endpoints or {}).get(name, 1)
        endpoint_set[name] = Resource(name, f"c{version}-e{count}", b"", vacant=count == 0)
    body = ",".join(sorted(routes_to)).encode()
    resources = {
        CLUSTER: cluster_set,
        ENDPOINT: endpoint_set,
        LISTENER: {GATEWAY: Resource(GATEWAY, "l1", b"")},
        ROUTE: {GATEWAY: Resource(GATEWAY, content_hash([body]), body)},
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
        hosts={CTR_HOST: HostState("uid", generation, answers=True)},
    )


@dataclass
class Proxy:
    """Envoy, as far as discovery goes.

    `clusters` and `endpoints` are what serves; a new or changed cluster is in `warming` until its endpoints come after it.
    `outbox` holds requests that have not reached the server, `inbox` responses that have not reached the proxy.
    """

    stream: AdsStream
    node: str = "gateway-1"
    clusters: dict[str, str] = field(default_factory=dict)
    warming: dict[str, str] = field(default_factory=dict)
    endpoints: dict[str, Resource] = field(default_factory=dict)
    routes_to: tuple[str, ...] | None = None
    refuses: set[TypeUrl] = field(default_factory=set)
    inbox: deque[DiscoveryResponse] = field(default_factory=deque)
    outbox: deque[DiscoveryRequest] = field(default_factory=deque)
    received: list[DiscoveryResponse] = field(default_factory=list)
    names: dict[TypeUrl, frozenset[str]] = field(default_factory=dict)
    nonces: dict[TypeUrl, str] = field(default_factory=dict)
    versions: dict[TypeUrl, str] = field(default_factory=dict)
    now: float = 0.0

    def connect(self, stream: AdsStream | None = None) -> None:
        """Opens the stream, or a new one: then everything that it was subscribed to is asked for again."""
        if stream is not None:
            self.stream = stream
        self.inbox.clear()
        self.outbox.clear()
        self.nonces.clear()
        for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE):
            if type_url in self.names or type_url in {CLUSTER, LISTENER}:
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
        if type_url in self.refuses:
            self._ask(type_url, error="no, thank you")
            return response
        self.versions[type_url] = response.version
        self._ask(type_url)
        self._apply(type_url, response)
        return response

    def settle(self) -> list[DiscoveryResponse]:
        """Everything on the way arrives, until nothing is; what the proxy received."""
        before = len(self.received)
        while self.inbox or self.outbox:
            while self.outbox:
                self.server_takes()
            if self.inbox:
                self.proxy_takes()
        return self.received[before:]

    def broken_routes(self) -> list[str]:
        """Clusters that the routes lead to and that cannot answer now."""
        return [
            name
            for name in self.routes_to or ()
            if name not in self.clusters or name not in self.endpoints or self.endpoints[name].vacant
        ]

    def _apply(self, type_url: TypeUrl, response: DiscoveryResponse) -> None:
        if type_url is CLUSTER:
            self._apply_clusters(response)
        elif type_url is ENDPOINT:
            for resource in response.resources:
                if resource.name in self.names.get(ENDPOINT, frozenset()):
                    self.endpoints[resource.name] = resource
                    if resource.name in self.warming:
                        self.clusters[resource.name] = self.warming.pop(resource.name)
        elif type_url is LISTENER:
            if ROUTE not in self.names:
                self.names[ROUTE] = frozenset({GATEWAY})
                self._ask(ROUTE)
        else:
            body = response.resources[0].body.decode()
            self.routes_to = tuple(body.split(",")) if body else ()

    def _apply_clusters(self, response: DiscoveryResponse) -> None:
        wanted = {resource.name: resource.version for resource in response.resources}
        for name in [name for name in self.clusters if name not in wanted]:
            del self.clusters[name]
            self.endpoints.pop(name, None)
        for name in [name for name in self.warming if name not in wanted]:
            del self.warming[name]
        for name, version in wanted.items():
            if self.clusters.get(name) == version:
                self.warming.pop(name, None)
            elif self.warming.get(name) != version:
                self.warming[name] = version
        names = frozenset(wanted)
        if names != self.names.get(ENDPOINT, frozenset()):
            self.names[ENDPOINT] = names
            self._ask(ENDPOINT)

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
