"""The kind ModelAccess: one stable endpoint in front of one or many Inferences."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import DurationText, ObjectName, between
from tidegate.api.meta import ApiModel, Resource, StatusModel
from tidegate.api.schema import ListMap, ListSet, Rule, Rules, lacks, matches

MAX_ROUTES: Final = 64
MAX_TARGETS: Final = 16
MAX_WEIGHT: Final = 1_000_000
RESERVED_HOST_SUFFIX: Final = ".tidegate"

Host = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Rules(
        matches(
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            "must be a lower-case DNS name without a port, like ctr.ads.example.com",
        ),
        lacks(
            r"(^|[.])tidegate$",
            "must not end in .tidegate: those hosts are given out by name (<name>.<namespace>.tidegate)",
        ),
    ),
]

HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(
        matches(
            r"[a-z0-9][a-z0-9_-]*",
            "must be a lower-case header name, as HTTP/2 sends it; pseudo-headers like :authority are not headers: "
            "use hosts",
        ),
        lacks(
            r"^(x-envoy-.*|x-tidegate-.*|host)$",
            "must not be host, x-envoy-… or x-tidegate-…: the gateway itself sets or removes those",
        ),
    ),
]


class HeaderMatch(ApiModel):
    """One header that a request must carry."""

    name: Annotated[
        HeaderName, Field(description="The header's name, lower-case; for gRPC, the metadata key.")
    ]
    exact: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[ -~]+$",
            description="The value it must have, byte for byte; printable ASCII.",
        ),
    ]


class Match(ApiModel):
    """Which requests a route takes: those that meet every condition here."""

    headers: Annotated[
        tuple[HeaderMatch, ...],
        Field(min_length=1, max_length=8, description="Headers that must all be there, with these values."),
        ListMap("name"),
    ]


class Target(ApiModel):
    """One Inference that takes a share of a route's requests."""

    inference: Annotated[ObjectName, Field(description="Name of an Inference in the same namespace.")]
    weight: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_WEIGHT,
            description="Its share, relative to the sum over the route's targets; 0 takes none but stays warm.",
        ),
    ] = 100


class Retry(ApiModel):
    """Whether the gateway tries a failed request again, on another pod where there is one."""

    attempts: Annotated[int, Field(strict=True, ge=0, le=5, description="Number of further tries, 0 to 5.")]
    budget_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=100,
            description="Retries may be at most this percentage of the requests in flight, "
            "so that they cannot bury a failing model.",
        ),
    ] = 20


class Route(ApiModel):
    """Some of the requests, and where they go."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.targets.exists(t, t.weight > 0)",
            message="at least one target must have a weight above 0, or the route would answer nobody",
            check=lambda route: any(target.weight > 0 for target in route.targets),
            field="targets",
        ),
    )

    name: Annotated[
        ObjectName, Field(description="Name of the route, unique in this object; shown in metrics.")
    ]
    match: Annotated[
        Match | None,
        Field(
            description="Which requests it takes. Absent: all that no earlier route took, so it must be the last."
        ),
    ] = None
    targets: Annotated[
        tuple[Target, ...],
        Field(min_length=1, max_length=MAX_TARGETS, description="The Inferences that share its requests."),
        ListMap("inference"),
    ]
    timeout: Annotated[
        Annotated[DurationText, between("1ms", "1h")],
        Field(
            description="Longest that one request may take, retries included, as a duration from 1ms to 1h."
        ),
    ] = "1s"
    retry: Annotated[Retry | None, Field(description="Absent: no retries.")] = None


class ModelAccessSpec(ApiModel):
    """What the user asks for."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.routes.filter(r, !has(r.match)).size() <= 1",
            message="only one route may be without match: give the others a match",
            check=lambda spec: sum(route.match is None for route in spec.routes) <= 1,
            field="routes",
        ),
        Rule(
            cel="self.routes.all(r, has(r.match)) || !has(self.routes[self.routes.size() - 1].match)",
            message="the route without match must be the last, since it takes every request that reaches it",
            check=lambda spec: all(route.match is not None for route in spec.routes[:-1]),
            field="routes",
        ),
    )

    hosts: Annotated[
        tuple[Host, ...],
        Field(
            max_length=16,
            description="Hosts (:authority) that it answers to, besides <name>.<namespace>.tidegate.",
        ),
        ListSet(),
    ] = ()
    routes: Annotated[
        tuple[Route, ...],
        Field(
            min_length=1,
            max_length=MAX_ROUTES,
            description="Tried in this order; the first whose match fits takes the request. "
            "A request that none takes is answered 404 (gRPC: NOT_FOUND).",
        ),
        ListMap("name"),
    ]


class TargetStatus(StatusModel):
    """One target as the proxies see it."""

    inference: Annotated[str, Field(max_length=63, description="Name of the Inference.")]
    weight: Annotated[int, Field(ge=0, description="Its weight in effect.")] = 0
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods that it has.")] = 0


class RouteStatus(StatusModel):
    """One route as the proxies run it."""

    name: Annotated[str, Field(max_length=63, description="Name of the route.")]
    targets: Annotated[
        tuple[TargetStatus, ...],
        Field(max_length=MAX_TARGETS, description="Its targets in effect."),
        ListMap("inference"),
    ] = ()


class Proxies(StatusModel):
    """How far the configuration has come."""

    total: Annotated[int, Field(ge=0, description="Number of connected proxies.")] = 0
    acked: Annotated[int, Field(ge=0, description="How many of them run this generation.")] = 0


class ModelAccessStatus(StatusModel):
    """What the proxies acknowledged."""

    observed_generation: Annotated[
        int, Field(ge=0, description="The metadata.generation that this status is about.")
    ] = 0
    url: Annotated[
        str | None,
        Field(max_length=1024, description="Where REST clients (Open Inference Protocol) call it."),
    ] = None
    grpc_target: Annotated[str | None, Field(max_length=1024, description="Where gRPC clients call it.")] = (
        None
    )
    routes: Annotated[
        tuple[RouteStatus, ...],
        Field(max_length=MAX_ROUTES, description="The routes in effect."),
        ListMap("name"),
    ] = ()
    proxies: Annotated[Proxies, Field(description=Proxies.__doc__)] = Proxies()
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(max_length=32, description="Ready, Reconciling, Stalled, Programmed and TargetsReady."),
        ListMap("type"),
    ] = ()


class ModelAccess(Resource):
    """A stable endpoint in front of one or many Inferences: routes by header, shares by weight."""

    KIND: ClassVar[str] = "ModelAccess"
    PLURAL: ClassVar[str] = "modelaccesses"

    spec: Annotated[ModelAccessSpec, Field(description=ModelAccessSpec.__doc__)]
    status: Annotated[ModelAccessStatus, Field(description=ModelAccessStatus.__doc__)] = ModelAccessStatus()
