"""The resources that a proxy runs, as values: equal bytes in every replica of the xDS server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from weakref import ReferenceType, ref

from tidegate.routing import protos
from tidegate.routing.envoy import clusters, endpoints, listener, routes, tls
from tidegate.routing.hosts import HostKey
from tidegate.routing.ir import HostState
from tidegate.routing.refusals import RoutingRefusal
from tidegate.xds.persistent_map import PersistentMap

_VERSION_LENGTH: Final = 16
# Gateways that reconnect name versions that an older server has made, so this never changes.
_PLACEHOLDER: Final = "stand-in-"


class TypeUrl(StrEnum):
    """The types of resources that are served."""

    CLUSTER = protos.TYPE_URL_PREFIX + clusters.TYPE
    ENDPOINT = protos.TYPE_URL_PREFIX + endpoints.TYPE
    LISTENER = protos.TYPE_URL_PREFIX + listener.TYPE
    SCOPE = protos.TYPE_URL_PREFIX + routes.TYPE
    SECRET = protos.TYPE_URL_PREFIX + tls.TYPE


@dataclass(frozen=True, slots=True)
class XdsResource:
    """One resource, serialised once for all proxies.

    `body` is a serialised google.protobuf.Any; `version` is a hash of the content.
    `vacant` marks an empty set of endpoints: it must not arrive while a route still leads there.
    `references` are the names of the clusters that a scope leads to; empty for the other types.
    `aliases` are the virtual hosts in the scope of all hosts, by name; empty for everything else.
    `ttl_s`: the gateway drops the resource this long after it was sent, unless it is sent again; None: never.
    """

    name: str
    version: str
    body: bytes = field(repr=False)
    vacant: bool = False
    references: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    aliases: ResourceSet = field(default_factory=lambda: NO_RESOURCES, compare=False, repr=False)
    ttl_s: float | None = None

    @property
    def is_placeholder(self) -> bool:
        """Return whether it is only for a proxy that has nothing under this name.

        Anything else that a proxy has under the name is better.
        The version has a mark for this, since of the resources of a reconnecting proxy only the version is known.
        """
        return self.version.startswith(_PLACEHOLDER)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent set of all resources.

    `revision` is a hash of the content: equal in every replica and after every restart.
    `hosts` has the objects that it was made from.
    """

    revision: str
    resources: Mapping[TypeUrl, ResourceSet]
    hosts: Mapping[HostKey, HostState]
    refusals: tuple[RoutingRefusal, ...] = ()

    @classmethod
    def from_sets(
        cls,
        resources: Mapping[TypeUrl, ResourceSet],
        hosts: Mapping[HostKey, HostState],
        refusals: tuple[RoutingRefusal, ...] = (),
    ) -> Snapshot:
        """Return the snapshot of `resources`, which have every type."""
        revision = content_hash(resources[type_url].version for type_url in TypeUrl)
        return cls(revision, MappingProxyType(resources), hosts, refusals)


def content_hash(parts: Iterable[str | bytes]) -> str:
    """Hash `parts` in their order; 64 bits are enough against accidental collisions."""
    chunks: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        chunks += (len(data).to_bytes(8, "big"), data)
    return hashlib.sha256(b"".join(chunks)).hexdigest()[:_VERSION_LENGTH]


def body_hash(body: bytes, *texts: str) -> str:
    """Hash a body and further texts, as `content_hash` does."""
    content = len(body).to_bytes(8, "big") + body
    for text in texts:
        data = text.encode()
        content += len(data).to_bytes(8, "big") + data
    return hashlib.sha256(content).hexdigest()[:_VERSION_LENGTH]


def build_resource(
    name: str,
    body: bytes,
    *,
    placeholder: bool = False,
    vacant: bool = False,
    references: frozenset[str] = frozenset(),
) -> XdsResource:
    """Return the resource with a serialised Any as its body; the version is a hash of that."""
    version = f"{_PLACEHOLDER if placeholder else ''}{body_hash(body)}"
    return XdsResource(name, version, body, vacant, references)


def _hash_versions(resources: Mapping[str, XdsResource]) -> str:
    """Hash the names and versions of resources."""
    return content_hash(part for name in sorted(resources) for part in (name, resources[name].version))


_EMPTY: Final = _hash_versions({})


class ResourceSet(Mapping[str, XdsResource]):
    """All resources of one type; a change copies little of it, and its version depends only on the content."""

    __slots__ = ("__weakref__", "_compared", "_digests", "_referencing", "_resources", "version")

    def __init__(self) -> None:
        self._set_resources(PersistentMap(), [_EMPTY] * len(PersistentMap[str, XdsResource]().parts))
        self._compared: tuple[ReferenceType[ResourceSet], frozenset[str]] | None = None
        self._referencing: dict[str, frozenset[str]] = {}

    def _set_resources(self, resources: PersistentMap[str, XdsResource], digests: list[str]) -> None:
        self._resources = resources
        self._digests = digests
        self.version = content_hash(["".join(digests)])

    def __getitem__(self, name: str) -> XdsResource:
        return self._resources[name]

    def __contains__(self, name: object) -> bool:
        return name in self._resources

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def with_changes(self, changes: Mapping[str, XdsResource | None]) -> ResourceSet:
        """Return this set with other resources, and without those that are None; itself if nothing changes."""
        resources = self._resources.with_changes(changes)
        if resources is self._resources:
            return self
        parts = zip(resources.parts, self._resources.parts, self._digests, strict=True)
        result = ResourceSet()
        result._set_resources(
            resources, [digest if part is before else _hash_versions(part) for part, before, digest in parts]
        )
        return result

    @property
    def resource_map(self) -> PersistentMap[str, XdsResource]:
        """Resources as a map; the parts that two sets share are the same objects."""
        return self._resources

    def differing_names(self, before: ResourceSet) -> frozenset[str]:
        """Return the names under which this set and `before` have different resources.

        The result is cached, since it is the same for many proxies.
        """
        if before is self:
            return frozenset()
        if self._compared is None or self._compared[0]() is not before:
            self._compared = ref(before), self._resources.differing_keys(before.resource_map)
        return self._compared[1]

    def names_referencing(self, cluster: str) -> frozenset[str]:
        """Return the names of the resources that lead to `cluster`.

        The result is cached, since it is the same for every proxy that rejects the cluster.
        """
        if cluster not in self._referencing:
            self._referencing[cluster] = frozenset(
                name for name, resource in self.items() if cluster in resource.references
            )
        return self._referencing[cluster]


NO_RESOURCES: Final[ResourceSet] = ResourceSet()
