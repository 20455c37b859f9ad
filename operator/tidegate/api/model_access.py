"""The kind ModelAccess: one stable endpoint in front of one or many Inferences."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.auth import Auth
from tidegate.api.conditions import ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.durations import parse_duration
from tidegate.api.fields import DecimalText, DurationText, ObjectName, between
from tidegate.api.matching import Match, Sticky
from tidegate.api.meta import NOT_OBSERVED, ApiModel, ObservedGeneration, Resource, StatusModel
from tidegate.api.pipeline import MAX_PARTS, Pipeline
from tidegate.api.protection import Protection
from tidegate.api.release import Release, ReleaseStatus
from tidegate.api.schema import ListMap, ListSet, Rule, Rules, lacks, matches

MAX_ROUTES: Final = 64
MAX_TARGETS: Final = 16
MAX_WEIGHT: Final = 1_000_000
MAX_MIRRORS: Final = 4
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


class Mirror(ApiModel):
    """One Inference that gets a copy of some requests; its answers are thrown away."""

    inference: Annotated[
        ObjectName,
        Field(
            description="Name of an Inference in the same namespace, that serves under the same model name."
        ),
    ]
    percent: Annotated[
        int,
        Field(strict=True, ge=1, le=100, description="How many of the route's requests it gets, in percent."),
    ] = 100


class Fallback(ApiModel):
    """The Inference that answers when the targets cannot."""

    inference: Annotated[
        ObjectName,
        Field(
            description="Name of an Inference in the same namespace, that serves under the same model name "
            "and is no target of the route."
        ),
    ]


class Route(ApiModel):
    """Some of the requests, and where they go."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.targets) != has(self.pipeline)",
            message="give exactly one of targets, pipeline",
            check=lambda route: bool(route.targets) != (route.pipeline is not None),
            field="targets",
        ),
        Rule(
            cel="!has(self.pipeline) || !(has(self.sticky) || has(self.mirror) || has(self.fallback))",
            message="sticky, mirror and fallback are for targets: a pipeline's models may be ModelAccesses that have them",
            check=lambda route: (
                route.pipeline is None or not (route.sticky or route.mirror or route.fallback)
            ),
            field="pipeline",
        ),
        Rule(
            cel="!has(self.pipeline) || self.pipeline.models.all(m, !has(m.timeout) || "
            "duration(m.timeout) < duration(self.timeout))",
            message="the timeout of a pipeline's model must be shorter than the route's, or nobody would wait for the answer",
            check=lambda route: _waits_for_parts(route),
            field="pipeline",
        ),
        Rule(
            cel="!has(self.fallback) || !has(self.targets) || "
            "!self.targets.exists(t, t.inference == self.fallback.inference)",
            message="must not be a target of the same route: there it would already be in use",
            check=lambda route: (
                route.fallback is None
                or all(target.inference != route.fallback.inference for target in route.targets)
            ),
            field="fallback",
        ),
        Rule(
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
        Match | None,
        Field(
            description="Which requests it takes. Absent: all that no earlier route took, so it must be the last."
        ),
    ] = None
    targets: Annotated[
        tuple[Target, ...],
        Field(
            max_length=MAX_TARGETS,
            json_schema_extra={
                "minItems": 1
            },  # Here none is the same as absent: the rule about pipeline has it.
            description="The Inferences that share its requests. Either this or pipeline.",
        ),
        ListMap("inference"),
    ] = ()
    pipeline: Annotated[
        Pipeline | None,
        Field(description=f"{Pipeline.__doc__} Either this or targets."),
    ] = None
    value: Annotated[
        DecimalText | None,
        Field(
            description="What one request on this route is worth, relative to those on the object's other routes, as a decimal "
            "in quotes: while a target is overloaded, protection.admissionControl refuses routes of lower value first. "
            "Absent: '1.0'."
        ),
    ] = None
    timeout: Annotated[
        Annotated[DurationText, between("1ms", "1h")],
        Field(
            description="Longest that one request may take, retries included, as a duration from 1ms to 1h."
        ),
    ] = "1s"
    retry: Annotated[Retry | None, Field(description="Absent: no retries.")] = None
    sticky: Annotated[
        Sticky | None,
        Field(
            description="Keeps each user on one target of the route: when weights move between two targets, "
            "as many users move as the weights say, and nobody else. "
            "Targets lie side by side in the order of their names, numbers by their value. "
            "Absent: each request goes by weight, at random."
        ),
    ] = None
    mirror: Annotated[
        tuple[Mirror, ...],
        Field(
            max_length=MAX_MIRRORS,
            description="Inferences that get copies of requests. Nobody waits for them, and each has a limit of its own: "
            "64 copies in flight at each gateway replica, for gRPC and REST each; more are dropped.",
        ),
        ListMap("inference"),
    ] = ()
    fallback: Annotated[
        Fallback | None,
        Field(
            description="Takes the requests of a target all of whose pods are left out because they fail "
            "(protection.outlier), and all requests of the route when no target has a ready pod. "
            "It does not take what a limit refuses. Absent: such requests are answered 503 (gRPC: UNAVAILABLE)."
        ),
    ] = None

    @property
    def inferences(self) -> frozenset[str]:
        """Every Inference that the route names."""
        names = {target.inference for target in self.targets} | {mirror.inference for mirror in self.mirror}
        parts = self.pipeline.inferences if self.pipeline else frozenset[str]()
        return frozenset(names | ({self.fallback.inference} if self.fallback else set()) | parts)


def _waits_for_parts(route: Route) -> bool:
    if route.pipeline is None:
        return True
    whole = parse_duration(route.timeout)
    return all(part.timeout is None or parse_duration(part.timeout) < whole for part in route.pipeline.models)


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
        Rule(
            cel="self.routes.all(r, !has(r.value)) "
            "|| (has(self.protection) && has(self.protection.admissionControl))",
            message="a value counts with protection.admissionControl alone: give that too, {} for its defaults",
            check=lambda spec: (
                (spec.protection is not None and spec.protection.admission_control is not None)
                or all(route.value is None for route in spec.routes)
            ),
            field="routes",
        ),
        Rule(
            cel="!has(self.release) || self.routes.exists(r, r.name == self.release.route "
            "&& has(r.targets) && r.targets.exists(t, t.inference == self.release.target))",
            message="release.target must be a target of the route that release.route names; "
            "give it the weight 0 there until it is released",
            check=lambda spec: spec.release is None or spec.released_route is not None,
            field="release",
        ),
        Rule(
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
    auth: Annotated[
        Auth | None,
        Field(description=f"{Auth.__doc__} Absent: everybody who reaches the gateway may."),
    ] = None
    protection: Annotated[Protection | None, Field(description=f"{Protection.__doc__} Absent: none.")] = None
    release: Annotated[
        Release | None,
        Field(
            description=f"{Release.__doc__} Any change of it, or of its route's targets, is a new release; "
            "but what is promoted stays so when interval, checks or onFailure change."
        ),
    ] = None

    @property
    def released_route(self) -> Route | None:
        """The route of the release, if there is one and its target is among the route's."""
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
    def stable_targets(self) -> tuple[Target, ...]:
        """The targets that the release is measured by and goes back to."""
        route = self.released_route
        if route is None or self.release is None:
            return ()
        return tuple(t for t in route.targets if t.inference != self.release.target and t.weight)

    @property
    def inferences(self) -> frozenset[str]:
        """Every Inference that the object names: what its routing depends on."""
        return frozenset[str]().union(*(route.inferences for route in self.routes))


class TargetStatus(StatusModel):
    """One target as the proxies see it."""

    inference: Annotated[str, Field(max_length=63, description="Name of the Inference.")]
    weight: Annotated[int, Field(ge=0, description="Its weight in effect.")] = 0
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods that it has.")] = 0


class MirrorStatus(StatusModel):
    """One mirror as the proxies see it."""

    inference: Annotated[str, Field(max_length=63, description="Name of the Inference.")]
    percent: Annotated[
        int, Field(ge=0, description="How many requests it gets, in percent; 0 without a pod.")
    ] = 0
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods that it has.")] = 0


class FallbackStatus(StatusModel):
    """The fallback as the proxies see it."""

    inference: Annotated[str, Field(max_length=63, description="Name of the Inference.")]
    serving: Annotated[
        bool,
        Field(
            description="Whether it answers in place of targets without a ready pod: every request of the route, "
            "or, during a release, those that are not the released target's. "
            "What it takes for pods that fail is in the gateways' metrics."
        ),
    ] = False
    endpoints: Annotated[int, Field(ge=0, description="Number of ready pods that it has.")] = 0


class PartStatus(StatusModel):
    """One model of a pipeline as the proxies see it."""

    name: Annotated[str, Field(alias="as", max_length=63, description="What its answer is called.")]
    inference: Annotated[
        str | None, Field(max_length=63, description="Name of the Inference, where it is one.")
    ] = None
    access: Annotated[
        str | None, Field(max_length=63, description="Name of the ModelAccess, where it is one.")
    ] = None
    endpoints: Annotated[
        int | None, Field(ge=0, description="Number of ready pods that the Inference has.")
    ] = None


class PipelineStatus(StatusModel):
    """A pipeline's pods, and the models that they ask."""

    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of pods that answer.")] = 0
    models: Annotated[
        tuple[PartStatus, ...],
        Field(max_length=MAX_PARTS, description="Its models."),
        ListMap("as", attribute="name"),
    ] = ()


class RouteStatus(StatusModel):
    """One route as the proxies run it."""

    name: Annotated[str, Field(max_length=63, description="Name of the route.")]
    targets: Annotated[
        tuple[TargetStatus, ...],
        Field(max_length=MAX_TARGETS, description="Its targets in effect."),
        ListMap("inference"),
    ] = ()
    mirror: Annotated[
        Annotated[tuple[MirrorStatus, ...], Field(max_length=MAX_MIRRORS), ListMap("inference")] | None,
        Field(description="Its mirrors in effect."),
    ] = None
    fallback: Annotated[FallbackStatus | None, Field(description="Its fallback.")] = None
    pipeline: Annotated[PipelineStatus | None, Field(description="Its pipeline.")] = None


class ModelAccessStatus(StatusModel):
    """What the proxies acknowledged."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
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
    proxyless_ignored: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...],
        Field(
            max_length=64,
            description="Fields of the spec that have no effect on gRPC clients that call "
            "xds:///<name>.<namespace>.tidegate, without a gateway. "
            "With spec.auth it is auth alone, and there is no such target, since nobody would check who calls.",
        ),
        ListSet(),
    ] = ()
    release: Annotated[
        ReleaseStatus | None, Field(description="How far spec.release is. Absent: none was asked for.")
    ] = None
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled, Programmed and TargetsReady; with a release Releasing and RolledBack.",
        ),
        ListMap("type"),
    ] = ()


class ModelAccess(Resource):
    """A stable endpoint in front of one or many Inferences: routes by header, shares by weight."""

    KIND: ClassVar[str] = "ModelAccess"
    PLURAL: ClassVar[str] = "modelaccesses"

    spec: Annotated[ModelAccessSpec, Field(description=ModelAccessSpec.__doc__)]
    status: Annotated[ModelAccessStatus, Field(description=ModelAccessStatus.__doc__)] = ModelAccessStatus()

    @property
    def programmed(self) -> bool:
        """Whether its status says that the proxies run its present generation."""
        return any(
            each.type == ConditionType.PROGRAMMED.value
            and each.status is ConditionStatus.TRUE
            and each.observed_generation == self.metadata.generation
            for each in self.status.conditions
        )
