"""The routing IR: virtual hosts, their routes and endpoint pools, independent of any proxy's configuration.

There is one `VirtualHost` for each ModelAccess and FeatureCompute, and one `EndpointPool` for each backend.
An access has further pools of its own for settings that Envoy keeps with a cluster (access_pools.py).
Each value is frozen and hashable: rendering is cached by value, so an unchanged access costs a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.shared_names import resolve_shared_name
from tidegate.routing.fleet import BackendKey, Endpoint, SparePods
from tidegate.routing.guards import Guard
from tidegate.routing.refusals import RoutingRefusal


class InferenceProtocol(StrEnum):
    """The two protocols of Open Inference; each has a port and an Envoy cluster of its own."""

    GRPC = "grpc"
    HTTP = "http"


class PoolRole(StrEnum):
    """Why an access has an endpoint pool of its own."""

    TARGET = "access"
    RELEASE = "release"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, order=True)
class AccessPoolKey:
    """The key of an endpoint pool of one Inference that only one access uses; `fallback` is empty without a fallback Inference."""

    role: PoolRole
    access: ObjectKey
    inference: str
    """The name as in the access's spec: without a namespace if it is the access's own."""
    fallback: str = ""

    @property
    def inference_key(self) -> ObjectKey:
        """Return the key of the Inference."""
        return resolve_shared_name(self.inference, self.access.namespace)


PoolKey = BackendKey | AccessPoolKey


class Comparison(StrEnum):
    """How a header's value is compared."""

    EXACT = "exact"
    PREFIX = "prefix"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class HeaderMatcher:
    """A request header that must be present and have a value that matches."""

    name: str
    comparison: Comparison
    value: str


@dataclass(frozen=True, slots=True)
class AdmissionLimit:
    """The limit of admission control, as the percentage of requests that fail for overload.

    Above it Envoy rejects a growing share of the requests.
    """

    failure_percent: float


@dataclass(frozen=True, slots=True)
class WeightedBackend:
    """A backend and its effective weight, relative to the sum over its rule.

    Weight 0 keeps its cluster and sends nothing.
    """

    backend: PoolKey
    weight: int
    admission: AdmissionLimit | None = None
    """None: every request is admitted."""


class UserSourceKind(StrEnum):
    """The part of a request that identifies its user."""

    HEADER = "header"
    COOKIE = "cookie"


@dataclass(frozen=True, slots=True)
class UserSource:
    """The header or cookie whose value identifies the user."""

    kind: UserSourceKind
    name: str


@dataclass(frozen=True, slots=True)
class MirroredBackend:
    """A backend that gets a copy of `percent` of the requests."""

    backend: PoolKey
    percent: int


REDUCED: Final = "/reduced"
"""Suffix, in counters and the runtime layer, of the rule that answers the requests beyond another rule's admitted share.

One of several rules that do has the name of a part of the pipeline after it (`name_reduced`).
"""


def name_reduced(part: str = "") -> str:
    """Return the suffix of the rule that shortens one part of a pipeline, or all of them."""
    return f"{REDUCED}/{part}" if part else REDUCED


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The requests that pass all of `headers`, and where they go.

    `attempts` is the number of retries in the spec; None if the spec has none.
    `unavailable` is set if no target can answer: the proxy then answers 503 with this text.
    With `sticky`, `targets` are the intervals of the line of users in their order, and a target may have several.
    `client_deadline` ends a gRPC request at its client's deadline if that is sooner than `timeout`.
    `counted`: Envoy counts its gRPC answers by status, for a release.
    `priced`: the proxy admits the share of the requests that the runtime layer sets, and refuses the others.
    `reduced`: the rules that answer shares of the refused requests, also set by that layer.
    `request_headers` are set on requests to the targets.
    """

    name: str
    headers: tuple[HeaderMatcher, ...]
    targets: tuple[WeightedBackend, ...]
    timeout: timedelta
    attempts: int | None = None
    unavailable: str | None = None
    sticky: UserSource | None = None
    mirrors: tuple[MirroredBackend, ...] = ()
    client_deadline: bool = False
    counted: bool = False
    priced: bool = False
    reduced: tuple[RouteRule, ...] = ()
    request_headers: tuple[tuple[str, str], ...] = ()

    @property
    def answering_targets(self) -> tuple[WeightedBackend, ...]:
        """Return the targets, and those that answer requests beyond the admitted share."""
        return *self.targets, *(target for rule in self.reduced for target in rule.targets)


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A limit of `requests` in each `period`."""

    requests: int
    period: timedelta


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """One object that answers requests, under its `name` (`access/<namespace>/<name>`) and its `hosts`.

    `title` identifies the object in messages: `ModelAccess ads/ctr`.
    """

    name: str
    title: str
    hosts: tuple[str, ...]
    rules: tuple[RouteRule, ...]
    rate: RequestRate | None = None
    guard: Guard | None = None
    """None: every caller is admitted."""


@dataclass(frozen=True, slots=True)
class HostState:
    """The object and generation that a virtual host was made from, and whether it can answer every request."""

    uid: str
    generation: int
    answers: bool


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """The virtual host of one ModelAccess or FeatureCompute, and the parts of its spec that are refused."""

    host: VirtualHost
    state: HostState
    refusals: tuple[RoutingRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The most requests that one gateway may have in flight and pending to a pool; None leaves the general limit."""

    concurrent: int | None
    pending: int | None


@dataclass(frozen=True, slots=True)
class OutlierEjection:
    """Ejects a pod for `duration` after `failures` in a row; `all_pods` allows the ejection of every pod."""

    failures: int
    duration: timedelta
    all_pods: bool


@dataclass(frozen=True, slots=True)
class EndpointPool:
    """The pods of one backend; rendered as two Envoy clusters, one for each protocol.

    `retry_budget_percent` is the largest of all routes to it, since Envoy keeps the budget with the cluster.
    It is None if no route to it retries.
    `fallback` are the pods that answer while all of `endpoints` are ejected; of an Inference with spares and without endpoints,
    they answer what is more than the pods that these replace.
    `spares` get the requests of endpoints that do not answer; gateways find those by active health checks of `health_path`.
    """

    backend: PoolKey
    endpoints: tuple[Endpoint, ...]
    retry_budget_percent: int | None = None
    fallback: tuple[Endpoint, ...] = ()
    limits: PoolLimits | None = None
    ejection: OutlierEjection | None = None
    spares: SparePods | None = None
    health_path: str = ""

    @property
    def answering_pods(self) -> tuple[Endpoint, ...]:
        """Return its endpoints, or the spares while it has none."""
        return self.endpoints if self.endpoints or self.spares is None else self.spares.pods


@dataclass(frozen=True, slots=True)
class RoutingIR:
    """The routing of the whole fleet; each tuple is sorted by name."""

    hosts: tuple[VirtualHost, ...]
    pools: tuple[EndpointPool, ...]
