"""A gRPC client without a gateway that does with discovery responses what a gRPC library does, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from builders.proxy import CLUSTER, ENDPOINT, LISTENER, DiscoveryClient, names_in
from tidegate.xds.messages import DiscoveryResponse, SotwRequest
from tidegate.xds.protocols import SotwStream
from tidegate.xds.resources import NO_RESOURCES, Snapshot, TypeUrl, XdsResource, content_hash

CTR = "ctr.ads.tidegate"


def cluster(name: str) -> str:
    """The cluster of an Inference in the namespace ads."""
    return f"inference/ads/{name}/grpc"


def a_client_snapshot(
    clusters: Mapping[str, int], *, routes_to: Iterable[str] | None = (), empty: Iterable[str] = ()
) -> Snapshot:
    """Clusters of Inferences by name and version, those of `empty` without endpoints; `routes_to` is where CTR leads, None: there is none."""
    resources: dict[TypeUrl, dict[str, XdsResource]] = {type_url: {} for type_url in TypeUrl}
    for name, version in clusters.items():
        key, vacant = cluster(name), name in empty
        resources[CLUSTER][key] = XdsResource(key, f"c{version}", b"")
        resources[ENDPOINT][key] = XdsResource(key, f"e{version}{'-' if vacant else '+'}", b"", vacant=vacant)
    if routes_to is not None:
        body = ",".join((CTR, *sorted(map(cluster, routes_to)))).encode()
        resources[LISTENER][CTR] = XdsResource(CTR, content_hash([body]), body)
    sets = {type_url: NO_RESOURCES.with_changes(of_type) for type_url, of_type in resources.items()}
    return Snapshot.from_sets(sets, {})


@dataclass
class GrpcClient(DiscoveryClient[SotwRequest]):
    """A client with one channel, to CTR.

    It asks for everything by name: the listener, then the clusters of its routes, then their endpoints.
    It takes the resources of a response one by one, and answers with all names that it wants by then.
    Of clusters and listeners it drops those that it has and that a response leaves out; those go to `deleted` until they are back.
    """

    wanted: dict[TypeUrl, frozenset[str]] = field(default_factory=dict)
    resources: dict[TypeUrl, dict[str, XdsResource]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    refuses_names: set[str] = field(default_factory=set)
    nonces: dict[TypeUrl, str] = field(default_factory=dict)
    versions: dict[TypeUrl, str] = field(default_factory=dict)

    def connect(self, stream: SotwStream | None = None) -> None:
        """Open the stream, or a new one, and ask again for everything."""
        self.stream = stream or self.stream
        self.inbox.clear()
        self.outbox.clear()
        self.nonces.clear()
        self.wanted.setdefault(LISTENER, frozenset({CTR}))
        for type_url in (CLUSTER, ENDPOINT, LISTENER):
            if self.wanted.get(type_url):
                self._ask(type_url)

    def client_takes(self) -> DiscoveryResponse:
        response = self.inbox.popleft()
        self.received.append(response)
        type_url = TypeUrl(response.type_url)
        self.nonces[type_url], self.versions[type_url] = response.nonce, response.version
        has = self.resources.setdefault(type_url, {})
        sent = {resource.name: resource for resource in response.resources}
        if type_url is not ENDPOINT:
            for name in has.keys() - sent.keys():
                del has[name]
                self.deleted.add(name)
        for name in sent.keys() & self.wanted[type_url] - self.refuses_names:
            has[name] = sent[name]
            self.deleted.discard(name)
        refused = sorted(sent.keys() & self.refuses_names)
        self._ask(type_url, error=", ".join(f"{name}: no" for name in refused) or None)
        if type_url is LISTENER:
            self._want(CLUSTER, frozenset(self.routes_to))
        if type_url is CLUSTER:
            self._want(ENDPOINT, frozenset(has))
        return response

    @property
    def routes_to(self) -> tuple[str, ...]:
        """Clusters that the routes of CTR lead to."""
        listener = self.resources.get(LISTENER, {}).get(CTR)
        return () if listener is None else names_in(listener.body)

    def broken_routes(self) -> list[str]:
        """Clusters that the routes lead to and that were deleted or have no endpoints; calls wait for those that never came."""
        endpoints = self.resources.get(ENDPOINT, {})
        return [
            name
            for name in self.routes_to
            if name in self.deleted or (name in endpoints and endpoints[name].vacant)
        ]

    def _want(self, type_url: TypeUrl, names: frozenset[str]) -> None:
        """Ask for other names; what is no longer wanted is forgotten."""
        if names == self.wanted.get(type_url, frozenset()):
            return
        self.wanted[type_url] = names
        has = self.resources.setdefault(type_url, {})
        for name in has.keys() - names:
            del has[name]
        if type_url is CLUSTER:
            self.deleted &= names | {CTR}
            self._want(ENDPOINT, frozenset(has))
        self._ask(type_url)

    def _ask(self, type_url: TypeUrl, error: str | None = None) -> None:
        names, nonce = self.wanted[type_url], self.nonces.get(type_url, "")
        version = self.versions.get(type_url, "")
        request = SotwRequest(type_url, names, version, nonce, error, node="web-1", user_agent="gRPC C-core")
        self.outbox.append(request)
