"""`spec.protection` of a ModelAccess: limits, admission control and ejection of failing pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidegate.api.fields import DurationText, duration_between
from tidegate.api.meta import ApiModel

MAX_LIMIT: Final = 65_536


class RequestRateLimit(ApiModel):
    """Limits the rate of requests; more get 429 (gRPC: RESOURCE_EXHAUSTED) with retry-after."""

    requests: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_000_000,
            description="Number of requests per period, gRPC and REST together, at each gateway replica: "
            "three replicas together accept three times as many. "
            "All may come in one burst; a change of the routing refills the bucket.",
        ),
    ]
    per: Annotated[
        Annotated[DurationText, duration_between("100ms", "1m")],
        Field(description="Period, as a duration from 100ms to 1m."),
    ] = "1s"


class OutlierSpec(ApiModel):
    """When a failing pod gets no requests for a while."""

    consecutive_failures: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_000,
            description="A pod is ejected after this many consecutive failures at one gateway replica: "
            "server errors (REST 5xx; gRPC UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS, DEADLINE_EXCEEDED and the like), "
            "timeouts and lost connections. At most half of a target's pods are ejected, "
            "or all of them if the route has a fallback.",
        ),
    ] = 5
    eject_for: Annotated[
        Annotated[DurationText, duration_between("1s", "1h")],
        Field(description="How long the pod is ejected, as a duration from 1s to 1h."),
    ] = "30s"


class AdmissionMode(StrEnum):
    """Who decides which requests are rejected."""

    LOCAL = "Local"
    PRICED = "Priced"


class AdmissionControl(ApiModel):
    """Rejects requests before they reach an overloaded target, those of the lowest value first."""

    mode: Annotated[
        AdmissionMode,
        Field(
            description="Who decides. Local: each gateway, from the failures that it sees. "
            "Priced: also the xDS servers, from the requests at all gateways and the capacity of the ready pods "
            "(spec.capacity of the Inference): every second they compute the share of each route's requests that "
            "gateways admit, lowest value first and no more than needed. Gateways whose shares are not renewed for "
            "10 s decide alone. Rejected requests get 503 with retry-after (gRPC: RESOURCE_EXHAUSTED)."
        ),
    ] = AdmissionMode.LOCAL
    max_failure_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=50,
            description="Requests of the lowest value are rejected from this percentage of overload failures "
            "on, among the requests of a route to a target in the last 10 s: limits, deadlines, or no response "
            "(gRPC RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED; REST 429, 503, 504; requests that clients cancelled). "
            "If values differ, the highest starts at 80, and those between at equal ratios. "
            "Each thread of each gateway replica decides by its own requests, never by a single failure, "
            "and from 5 requests per second on (7 with a limit of 3, 10 with 2, 20 with 1). "
            "Rejected requests get 503 with retry-after (gRPC: RESOURCE_EXHAUSTED); 5 in 100 always pass.",
        ),
    ] = 10


class Protection(ApiModel):
    """Limits of this ModelAccess. They ignore requests of other ModelAccesses to the same Inference."""

    rate_limit: Annotated[
        RequestRateLimit | None, Field(description=f"{RequestRateLimit.__doc__} Absent: no limit.")
    ] = None
    max_concurrent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_LIMIT,
            description="Most requests in flight to one target, per gateway replica, for gRPC and for REST; "
            "more get 503 with retry-after (gRPC: RESOURCE_EXHAUSTED). Each thread of a gateway may admit one more "
            "if two arrive at the same moment. Absent: 65536.",
        ),
    ] = None
    max_pending: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_LIMIT,
            description="Most requests that wait for a connection to one target, counted and rejected like maxConcurrent. "
            "Connections are reused, so requests wait only when a pod is new or all connections are full. Absent: 65536.",
        ),
    ] = None
    admission_control: Annotated[
        AdmissionControl | None,
        Field(description=f"{AdmissionControl.__doc__} Absent: no admission control."),
    ] = None
    outlier: Annotated[
        OutlierSpec | None,
        Field(
            description=f"{OutlierSpec.__doc__} Absent: no ejection, except on routes with a fallback, which use the defaults."
        ),
    ] = None
    deadline: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether the gateway ends a gRPC request at its client's deadline (grpc-timeout), if that is "
            "earlier than the route's timeout: a hanging model then blocks nothing for a client that has given up. "
            "By default only the model and the client enforce the deadline.",
        ),
    ] = False
