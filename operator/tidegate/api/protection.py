"""What a ModelAccess protects its models with: limits of its own, and ejection of pods that fail."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tidegate.api.fields import DurationText, between
from tidegate.api.meta import ApiModel

MAX_LIMIT: Final = 65_536


class RateLimit(ApiModel):
    """How many requests the access takes; more are answered 429 (gRPC: RESOURCE_EXHAUSTED) with retry-after."""

    requests: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_000_000,
            description="Number of requests in each period, gRPC and REST together, at each gateway replica: "
            "with three replicas the whole is three times as much. "
            "A burst of as many may come at once; a change of routing fills it up again.",
        ),
    ]
    per: Annotated[
        Annotated[DurationText, between("100ms", "1m")],
        Field(description="The period, as a duration from 100ms to 1m."),
    ] = "1s"


class Outlier(ApiModel):
    """When a pod that fails is left alone for a while."""

    consecutive_failures: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_000,
            description="A pod is left out after this many failures in a row, as one gateway replica sees them: "
            "server errors (REST 5xx; gRPC UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS, DEADLINE_EXCEEDED and the like), "
            "timeouts and lost connections. At most half of a target's pods are left out, "
            "or all of them where the route has a fallback.",
        ),
    ] = 5
    eject_for: Annotated[
        Annotated[DurationText, between("1s", "1h")],
        Field(description="How long it is left out, as a duration from 1s to 1h."),
    ] = "30s"


class AdmissionControl(ApiModel):
    """Refuses requests before they reach a target that is overloaded, routes of the lowest value first."""

    max_failure_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=50,
            description="Requests on routes of the lowest value begin to be refused when more than this percentage of those "
            "that a route sent to a target in the last 10 s failed for overload: limits, deadlines, or no answer "
            "(gRPC RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED; REST 429, 503, 504; requests that their clients gave up). "
            "Where routes differ in value, those of the highest begin at 80 and those between in equal ratios. "
            "Each gateway replica, and each thread of it, judges by what it sees itself, never by one failure, "
            "and from 5 requests a second on (7 where the limit is 3, 10 at 2, 20 at 1). "
            "Answered 503 with retry-after (gRPC: RESOURCE_EXHAUSTED); 5 in 100 pass in any case.",
        ),
    ] = 10


class Protection(ApiModel):
    """Limits of this access alone: they neither count nor bound what other accesses send to the same Inference."""

    rate_limit: Annotated[RateLimit | None, Field(description=f"{RateLimit.__doc__} Absent: no limit.")] = (
        None
    )
    max_concurrent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_LIMIT,
            description="Most requests in flight to one target, at each gateway replica and for gRPC and REST each; "
            "more are answered 503 with retry-after (gRPC: RESOURCE_EXHAUSTED). Each thread of a gateway may let one more in "
            "that comes at the same moment as another. Absent: 65536.",
        ),
    ] = None
    max_pending: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_LIMIT,
            description="Most requests that wait for a connection to one target, counted and answered like maxConcurrent. "
            "Connections are kept, so requests wait when a pod is new or all connections are full. Absent: 65536.",
        ),
    ] = None
    admission_control: Annotated[
        AdmissionControl | None,
        Field(description=f"{AdmissionControl.__doc__} Absent: none is refused for that."),
    ] = None
    outlier: Annotated[
        Outlier | None,
        Field(
            description=f"{Outlier.__doc__} Absent: never, but for routes with a fallback, which have the defaults."
        ),
    ] = None
    deadline: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether the gateway ends a gRPC request at its client's deadline (grpc-timeout) where that is "
            "sooner than the route's timeout: a model that hangs then holds nothing for a client that has given up. "
            "By default only the model and the client themselves keep that deadline.",
        ),
    ] = False
