"""The routing IR: who answers to which name, and which pods stand behind it; knows no proxy's configuration language.

One `VirtualHost` for each ModelAccess and FeatureCompute, one `Pool` for each backend.
Each value is frozen and hashable: rendering is remembered by value, so an unchanged access costs a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidegate.routing.fleet import BackendKey, Endpoint


class Protocol(StrEnum):
    """The two ways that the Open Inference Protocol is spoken; each has a port and an Envoy cluster of its own."""

    GRPC = "grpc"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class HeaderEquals:
    """A request header that must have exactly this value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class WeightedBackend:
    """A backend and its share in effect, relative to the sum over its rule; 0 keeps it known and idle."""

    backend: BackendKey
    weight: int


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The requests with all of `headers`, and where they go.

    `attempts` is the number of further tries that the user asked for; None when nothing was asked.
    `unavailable` is set when no target can answer: the request is then answered 503 with these words.
    """

    name: str
    headers: tuple[HeaderEquals, ...]
    targets: tuple[WeightedBackend, ...]
    timeout: timedelta
    attempts: int | None = None
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """One name to call, or several for the same thing: `domains` holds `namespace/name` for the header and the hosts.

    `title` names the object in messages: `ModelAccess ads/ctr`.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    rules: tuple[RouteRule, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """The pods of one backend; two Envoy clusters, one for each protocol.

    `retry_budget_percent` is the largest that any route to it allows, since Envoy keeps the budget with the cluster.
    None when no route to it asks for retries.
    """

    backend: BackendKey
    endpoints: tuple[Endpoint, ...]
    retry_budget_percent: int | None = None


@dataclass(frozen=True, slots=True)
class RoutingIR:
    """All of the routing, each part sorted by name."""

    hosts: tuple[VirtualHost, ...]
    pools: tuple[Pool, ...]
