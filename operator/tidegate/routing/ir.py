"""The routing IR: who answers to which name, and which pods stand behind it; knows no proxy's configuration language.

One `VirtualHost` for each ModelAccess and FeatureCompute, one `Pool` for each backend, and further ones for an access that asks for what only a cluster of its own can give.
Each value is frozen and hashable: rendering is remembered by value, so an unchanged access costs a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidegate.api.meta import ObjectKey
from tidegate.routing.fleet import BackendKey, Endpoint
from tidegate.routing.guards import Guard


class Protocol(StrEnum):
    """The two ways that the Open Inference Protocol is spoken; each has a port and an Envoy cluster of its own."""

    GRPC = "grpc"
    HTTP = "http"


class PoolRole(StrEnum):
    """What an access has a pool of its own for."""

    TARGET = "access"
    RELEASE = "release"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, order=True)
class AccessPoolKey:
    """Names the pool that one access has of one Inference for itself, with `fallback` behind it (empty: nothing)."""

    role: PoolRole
    access: ObjectKey
    inference: str
    fallback: str = ""


PoolKey = BackendKey | AccessPoolKey


class Comparison(StrEnum):
    """How a header's value is compared."""

    EXACT = "exact"
    PREFIX = "prefix"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class HeaderTest:
    """A request header that must be there, with a value like this."""

    name: str
    comparison: Comparison
    value: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Refuses a growing part of the requests once more than this percentage of those that were let through failed for overload."""

    failure_percent: float


@dataclass(frozen=True, slots=True)
class WeightedBackend:
    """A backend and its share in effect, relative to the sum over its rule; 0 keeps it known and idle."""

    backend: PoolKey
    weight: int
    admission: Admission | None = None
    """Which requests are let through to it; None: all."""


class UserKind(StrEnum):
    """Where a request says whose it is."""

    HEADER = "header"
    COOKIE = "cookie"


@dataclass(frozen=True, slots=True)
class User:
    """The header or cookie whose value names the user."""

    kind: UserKind
    name: str


@dataclass(frozen=True, slots=True)
class MirroredBackend:
    """A backend that gets a copy of `percent` of the requests."""

    backend: PoolKey
    percent: int


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The requests that pass all of `headers`, and where they go.

    `attempts` is the number of further tries that the user asked for; None when nothing was asked.
    `unavailable` is set when no target can answer: the request is then answered 503 with these words.
    With `sticky`, `targets` are intervals on the line of users, in their order, and a target may have several.
    `client_deadline` ends a gRPC request at its client's deadline where that is sooner than `timeout`.
    `counted`: Envoy counts its gRPC answers by status, for a release.
    """

    name: str
    headers: tuple[HeaderTest, ...]
    targets: tuple[WeightedBackend, ...]
    timeout: timedelta
    attempts: int | None = None
    unavailable: str | None = None
    sticky: User | None = None
    mirrors: tuple[MirroredBackend, ...] = ()
    client_deadline: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class RequestRate:
    """At most so many requests in each period."""

    requests: int
    period: timedelta


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """One object that answers, under its `name` (`access/<namespace>/<name>`) and its `hosts`.

    `title` names the object in messages: `ModelAccess ads/ctr`.
    """

    name: str
    title: str
    hosts: tuple[str, ...]
    rules: tuple[RouteRule, ...]
    rate: RequestRate | None = None
    guard: Guard | None = None
    """Who may call; None: everybody."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway may have under way to a pool; None leaves the general bounds."""

    concurrent: int | None
    pending: int | None


@dataclass(frozen=True, slots=True)
class Ejection:
    """Leaves a pod out for `duration` after so many failures in a row; `all_pods`: even if none is left."""

    failures: int
    duration: timedelta
    all_pods: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """The pods of one backend; two Envoy clusters, one for each protocol.

    `retry_budget_percent` is the largest that any route to it allows, since Envoy keeps the budget with the cluster.
    None when no route to it asks for retries.
    `fallback` are the pods that answer while all of `endpoints` are ejected.
    """

    backend: PoolKey
    endpoints: tuple[Endpoint, ...]
    retry_budget_percent: int | None = None
    fallback: tuple[Endpoint, ...] = ()
    limits: Limits | None = None
    ejection: Ejection | None = None


@dataclass(frozen=True, slots=True)
class RoutingIR:
    """All of the routing, each part sorted by name."""

    hosts: tuple[VirtualHost, ...]
    pools: tuple[Pool, ...]
