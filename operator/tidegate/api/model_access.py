"""The kind ModelAccess: a stable endpoint in front of one or several Inferences."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.auth import Auth
from tidegate.api.conditions import ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.durations import parse_duration
from tidegate.api.fields import (
    MAX_SHARED_NAME,
    DecimalText,
    DurationText,
    ObjectName,
    SharedName,
    duration_between,
)
from tidegate.api.matching import RequestMatch, StickySession
from tidegate.api.meta import NOT_OBSERVED, ApiModel, CustomResource, ObservedGeneration, StatusModel
from tidegate.api.pipeline import MAX_PIPELINE_MODELS, PipelineSpec
from tidegate.api.protection import Protection
from tidegate.api.release import ReleaseSpec, ReleaseStatus
from tidegate.api.schema import ListMap, ListSet, ValidationRule, ValidationRules, must_match, must_not_match

MAX_ROUTES: Final = 64
MAX_TARGETS: Final = 16
MAX_WEIGHT: Final = 1_000_000
MAX_MIRRORS: Final = 4
RESERVED_HOST_SUFFIX: Final = ".tidegate"

HostName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    ValidationRules(
        must_match(
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            "must be a lower-case DNS name without a port, like ctr.ads.example.com",
        ),
        must_not_match(
            r"(^|[.])tidegate$",
            "must not end in .tidegate: those hosts are given out by name (<name>.<namespace>.tidegate)",
        ),
    ),
]


class RouteTarget(ApiModel):
    """An Inference that gets a share of a route's requests."""

    inference: Annotated[
        SharedName,
        Field(
            description="Name of an Inference in the same namespace. Or <namespace>/<name> of one in another namespace whose "
            "annotation tidegate.io/shared-with lists this namespace."
        ),
    ]
    weight: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_WEIGHT,
            description="Share, relative to the sum over the route's targets; 0 gets no requests and stays loaded.",
        ),
    ] = 100


class RouteRetry(ApiModel):
    """How the gateway retries failed requests, on another pod if there is one."""

    attempts: Annotated[int, Field(strict=True, ge=0, le=5, description="Number of retries, 0 to 5.")]
    budget_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=100,
            description="Retries are at most this percentage of the requests in flight, "
            "so that they cannot overload a failing model.",
        ),
    ] = 20


class RouteMirror(ApiModel):
    """An Inference that gets copies of requests; its responses are discarded."""

    inference: Annotated[
        SharedName,
        Field(description="Name of an Inference that serves the same model name, as in targets."),
    ]
    percent: Annotated[
        int,
        Field(strict=True, ge=1, le=100, description="Percentage of the route's requests that are copied."),
    ] = 100


class RouteFallback(ApiModel):
    """The Inference that answers when the targets cannot."""

    inference: Annotated[
        SharedName,
        Field(
            description="Name of an Inference that serves the same model name and is not a target of the route, as in targets."
        ),
    ]
    value_percent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="What its answer is worth, as a percentage of the route's value. With "
            "protection.admissionControl.mode: Priced, it then also gets the requests that the targets have no capacity "
            "for, as far as its own pods have capacity, those of the highest value first. Absent: those are rejected.",
        ),
    ] = None


class Route(ApiModel):
    """Requests that match, and the targets that answer them."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.targets) != has(self.pipeline)",
            message="give exactly one of targets, pipeline",
            check=lambda route: bool(route.targets) != (route.pipeline is not None),
            field="targets",
        ),
        ValidationRule(
            cel="!has(self.pipeline) || !(has(self.sticky) || has(self.mirror) || has(self.fallback))",
            message="sticky, mirror and fallback are for targets: a pipeline's models may be ModelAccesses that have them",
            check=lambda route: (
                route.pipeline is None or not (route.sticky or route.mirror or route.fallback)
            ),
            field="pipeline",
        ),
        ValidationRule(
            cel="!has(self.pipeline) || self.pipeline.models.all(m, !has(m.timeout) || "
            "duration(m.timeout) < duration(self.timeout))",
            message="the timeout of a pipeline's model must be shorter than the route's, or nobody would wait for the answer",
            check=lambda route: _outlasts_models(route),
            field="pipeline",
        ),
        ValidationRule(
            cel="!has(self.fallback) || !has(self.targets) || "
            "!self.targets.exists(t, t.inference == self.fallback.inference)",
            message="must not be a target of the same route: there it would already be in use",
            check=lambda route: (
                route.fallback is None
                or all(target.inference != route.fallback.inference for target in route.targets)
            ),
            field="fallback",
        ),
        ValidationRule(
            cel="!has(self.fallback) || !has(self.fallback.valuePercent) || has(self.value)",
            message="fallback.valuePercent is a percentage of the route's value: give value, too",
            check=lambda route: (
                route.fallback is None or route.fallback.value_percent is None or route.value is not None
            ),
            field="fallback",
        ),
        ValidationRule(
            cel="!has(self.pipeline) || !has(self.pipeline.reducedValuePercent) || has(self.value)",
            message="pipeline.reducedValuePercent is a percentage of the route's value: give value, too",
            check=lambda route: (
                route.pipeline is None
                or route.pipeline.reduced_value_percent is None
                or route.value is not None
            ),
            field="pipeline",
        ),
        ValidationRule(
            cel="!has(self.targets) || self.targets.exists(t, t.weight > 0)",
            message="at least one target must have a weight above 0, or the route would answer nobody",
            check=lambda route: not route.targets or any(target.weight > 0 for target in route.targets),
            field="targets",
        ),
    )

    name: Annotated[
        ObjectName, Field(description="Name of the route, unique in this object; shown in metrics.")
    ]
    match: Annotated[
        RequestMatch | None,
        Field(
            description="Requests that take the route. Absent: all that match no earlier route, so it must be the last."
        ),
    ] = None
    targets: Annotated[
        tuple[RouteTarget, ...],
        Field(
            max_length=MAX_TARGETS,
            json_schema_extra={
                "minItems": 1
            },  # Empty and absent are the same here: the rule about pipeline covers both.
            description="Inferences that share the requests. Either targets or pipeline.",
        ),
        ListMap("inference"),
    ] = ()
    pipeline: Annotated[
        PipelineSpec | None,
        Field(description=f"{PipelineSpec.__doc__} Either pipeline or targets."),
    ] = None
    value: Annotated[
        DecimalText | None,
        Field(
            description="Value of one answered request of this route, in the unit of the Inferences' spec.value.perRequest, "
            "as a decimal in quotes. The allocator plans with the mix of values that clients send, and "
            "protection.admissionControl rejects requests of lower value first while a target is overloaded. "
            "Absent: that of the Inference that answers; '1' for a pipeline."
        ),
    ] = None
    timeout: Annotated[
        Annotated[DurationText, duration_between("1ms", "1h")],
        Field(description="Longest duration of one request, retries included, from 1ms to 1h."),
    ] = "1s"
    retry: Annotated[RouteRetry | None, Field(description=f"{RouteRetry.__doc__} Absent: no retries.")] = None
    sticky: Annotated[
        StickySession | None,
        Field(
            description="Keeps each user on one target of the route: when weight moves between two targets, "
            "only the corresponding share of users moves. "
            "Targets are ordered by name, with numbers compared by value. "
            "Absent: each request goes to a target by weight, at random."
        ),
    ] = None
    mirror: Annotated[
        tuple[RouteMirror, ...],
        Field(
            max_length=MAX_MIRRORS,
            description="Inferences that get copies of requests. Clients do not wait for them. Each mirror is limited to "
            "64 copies in flight per gateway replica, for gRPC and for REST; more are dropped.",
        ),
        ListMap("inference"),
    ] = ()
    fallback: Annotated[
        RouteFallback | None,
        Field(
            description="Gets the requests of a target whose pods are all ejected because they fail "
            "(protection.outlier), and all requests of the route when no target has a ready pod. "
            "It gets no requests that a limit rejects, except with valuePercent. Absent: such requests get 503 (gRPC: UNAVAILABLE)."
        ),
    ] = None

    @property
    def inference_names(self) -> frozenset[str]:
        """Return the names of all Inferences of the route: targets, mirrors, fallback and pipeline."""
        names = {target.inference for target in self.targets} | {mirror.inference for mirror in self.mirror}
        parts = self.pipeline.inference_names if self.pipeline else frozenset[str]()
        return frozenset(names | ({self.fallback.inference} if self.fallback else set()) | parts)


def _outlasts_models(route: Route) -> bool:
    if route.pipeline is None:
        return True
    route_timeout = parse_duration(route.timeout)
    return all(
        model.timeout is None or parse_duration(model.timeout) < route_timeout
        for model in route.pipeline.models
    )


class ModelAccessSpec(ApiModel):
    """Hosts, routes, authentication, protection and release."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.routes.filter(r, !has(r.match)).size() <= 1",
            message="only one route may be without match: give the others a match",
            check=lambda spec: sum(route.match is None for route in spec.routes) <= 1,
            field="routes",
        ),
        ValidationRule(
            cel="self.routes.all(r, has(r.match)) || !has(self.routes[self.routes.size() - 1].match)",
            message="the route without match must be the last, since it takes every request that reaches it",
            check=lambda spec: all(route.match is not None for route in spec.routes[:-1]),
            field="routes",
        ),
        ValidationRule(
            cel="!has(self.release) || self.routes.exists(r, r.name == self.release.route "
            "&& has(r.targets) && r.targets.exists(t, t.inference == self.release.target))",
            message="release.target must be a target of the route that release.route names; "
            "give it the weight 0 there until it is released",
            check=lambda spec: spec.release is None or spec.released_route is not None,
            field="release",
        ),
        ValidationRule(
            cel="!has(self.release) || !self.routes.exists(r, r.name == self.release.route) "
            "|| self.routes.exists(r, r.name == self.release.route "
            "&& has(r.targets) && r.targets.exists(t, t.inference != self.release.target && t.weight > 0))",
            message="the route needs another target with a weight above 0, which the release is measured by "
            "and goes back to",
            check=lambda spec: spec.released_route is None or bool(spec.stable_targets),
            field="release",
        ),
    )

    hosts: Annotated[
        tuple[HostName, ...],
        Field(
            max_length=16,
            description="Hosts (:authority) of the endpoint, in addition to <name>.<namespace>.tidegate.",
        ),
        ListSet(),
    ] = ()
    routes: Annotated[
        tuple[Route, ...],
        Field(
            min_length=1,
            max_length=MAX_ROUTES,
            description="Routes in order; a request takes the first one that matches. "
            "A request that matches none gets 404 (gRPC: NOT_FOUND).",
        ),
        ListMap("name"),
    ]
    auth: Annotated[
        Auth | None,
        Field(description=f"{Auth.__doc__} Absent: no authentication."),
    ] = None
    protection: Annotated[Protection | None, Field(description=f"{Protection.__doc__} Absent: none.")] = None
    release: Annotated[
        ReleaseSpec | None,
        Field(
            description=f"{ReleaseSpec.__doc__} A change of the release, or of its route's targets, starts a new release; "
            "but a promoted target stays promoted when interval, checks or onFailure change."
        ),
    ] = None

    @property
    def released_route(self) -> Route | None:
        """Return the route of the release; None without a release, or if the route lacks the release's target."""
        release = self.release
        if release is None:
            return None
        return next(
            (
                route
                for route in self.routes
                if route.name == release.route
                and any(target.inference == release.target for target in route.targets)
            ),
            None,
        )

    @property
    def stable_targets(self) -> tuple[RouteTarget, ...]:
        """Return the targets that the release is compared with and rolls back to."""
        route = self.released_route
        if route is None or self.release is None:
            return ()
        return tuple(
            target for target in route.targets if target.inference != self.release.target and target.weight
        )

    @property
    def inference_names(self) -> frozenset[str]:
        """Return the names of all Inferences that the object references; its routing depends on them."""
        return frozenset[str]().union(*(route.inference_names for route in self.routes))


class TargetStatus(StatusModel):
    """A target as planned."""

    inference: Annotated[
        str, Field(max_length=MAX_SHARED_NAME, description="Name of the Inference, as in the spec.")
    ]
    weight: Annotated[int, Field(ge=0, description="Planned weight.")] = 0
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0


class MirrorStatus(StatusModel):
    """A planned mirror."""

    inference: Annotated[
        str, Field(max_length=MAX_SHARED_NAME, description="Name of the Inference, as in the spec.")
    ]
    percent: Annotated[
        int, Field(ge=0, description="Percentage of the requests that are copied; 0 without a ready pod.")
    ] = 0
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0


class FallbackStatus(StatusModel):
    """The fallback as planned."""

    inference: Annotated[
        str, Field(max_length=MAX_SHARED_NAME, description="Name of the Inference, as in the spec.")
    ]
    serving: Annotated[
        bool,
        Field(
            description="Whether it answers instead of targets without a ready pod: every request of the route, "
            "or, during a release, the requests of the other targets. "
            "Requests that it answers for ejected pods are in the gateways' metrics."
        ),
    ] = False
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0


class PipelineModelStatus(StatusModel):
    """A planned model of a pipeline."""

    name: Annotated[str, Field(alias="as", max_length=63, description="Name of its output.")]
    inference: Annotated[
        str | None,
        Field(
            max_length=MAX_SHARED_NAME,
            description="Name of the Inference, as in the spec, if the model is one.",
        ),
    ] = None
    access: Annotated[
        str | None, Field(max_length=63, description="Name of the ModelAccess, if the model is one.")
    ] = None
    endpoints: Annotated[int | None, Field(ge=0, description="Number of ready pods of the Inference.")] = None


class PipelineStatus(StatusModel):
    """Pods of a pipeline, and the models that they call."""

    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0
    models: Annotated[
        tuple[PipelineModelStatus, ...],
        Field(max_length=MAX_PIPELINE_MODELS, description="Models of the pipeline."),
        ListMap("as", attribute="name"),
    ] = ()


class RouteStatus(StatusModel):
    """A route as planned."""

    name: Annotated[str, Field(max_length=63, description="Name of the route.")]
    targets: Annotated[
        tuple[TargetStatus, ...],
        Field(max_length=MAX_TARGETS, description="Planned targets."),
        ListMap("inference"),
    ] = ()
    mirror: Annotated[
        Annotated[tuple[MirrorStatus, ...], Field(max_length=MAX_MIRRORS), ListMap("inference")] | None,
        Field(description="Planned mirrors."),
    ] = None
    fallback: Annotated[FallbackStatus | None, Field(description="Planned fallback.")] = None
    pipeline: Annotated[PipelineStatus | None, Field(description="Planned pipeline.")] = None


class ModelAccessStatus(StatusModel):
    """Routes and release as the controllers have planned them; the condition Programmed shows whether every gateway runs them."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    url: Annotated[
        str | None,
        Field(max_length=1024, description="URL for REST clients (Open Inference Protocol)."),
    ] = None
    grpc_target: Annotated[str | None, Field(max_length=1024, description="Target for gRPC clients.")] = None
    routes: Annotated[
        tuple[RouteStatus, ...],
        Field(
            max_length=MAX_ROUTES,
            description="The routes as planned; the condition Programmed shows whether every gateway runs them.",
        ),
        ListMap("name"),
    ] = ()
    proxyless_ignored: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...],
        Field(
            max_length=64,
            description="Fields of the spec that have no effect on gRPC clients that call "
            "xds:///<name>.<namespace>.tidegate, without a gateway. "
            "With spec.auth the list is only auth, and there is no such target, because no gateway could authenticate the callers.",
        ),
        ListSet(),
    ] = ()
    release: Annotated[
        ReleaseStatus | None, Field(description="State of spec.release. Absent: no release.")
    ] = None
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled, Programmed and TargetsReady; with a release also Releasing and RolledBack.",
        ),
        ListMap("type"),
    ] = ()


class ModelAccess(CustomResource):
    """A stable endpoint in front of one or several Inferences: routes by header, splits by weight."""

    KIND: ClassVar[str] = "ModelAccess"
    PLURAL: ClassVar[str] = "modelaccesses"

    spec: Annotated[ModelAccessSpec, Field(description=ModelAccessSpec.__doc__)]
    status: Annotated[ModelAccessStatus, Field(description=ModelAccessStatus.__doc__)] = ModelAccessStatus()

    @property
    def is_programmed(self) -> bool:
        """Return whether the status says that the proxies run the current generation."""
        return any(
            condition.type == ConditionType.PROGRAMMED.value
            and condition.status is ConditionStatus.TRUE
            and condition.observed_generation == self.metadata.generation
            for condition in self.status.conditions
        )
