"""Report the status of one ModelAccess: its routes with their planned weights, its proxies, and its release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tidegate.api.inference import Inference
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess, RouteStatus
from tidegate.api.shared_names import resolve_shared_name
from tidegate.reports.release import ReleaseCommandResult, ReleaseReport
from tidegate.reports.state import ObjectReport, ObjectState
from tidegate.reports.status import (
    RelatedObjects,
    RouteRole,
    StatusReport,
    common_fields,
    format_field,
    render_table,
)


class TargetLine(ApiModel):
    """One Inference that a route leads to, as the controllers have planned it."""

    route: str
    role: RouteRole
    inference: str
    weight: int | None = None
    """The weight of a target; of a mirror, its percentage."""
    share: float | None = None
    """The share of the route's requests that goes to a target, in percent."""
    endpoints: int | None
    serving: bool | None = None
    """For a fallback, whether it answers in place of targets."""
    state: ObjectState | None = None
    """Absent if the Inference does not exist or cannot be read."""


class AccessStatusReport(StatusReport):
    """One ModelAccess."""

    kind: Literal["ModelAccess"] = "ModelAccess"
    hosts: tuple[str, ...]
    url: str | None
    grpc_target: str | None
    programmed: bool
    """Whether every gateway runs the present generation."""
    routes: tuple[TargetLine, ...]
    release: ReleaseReport | None

    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the addresses, and how far the release is."""
        if self.hosts:
            yield format_field("hosts", ", ".join(self.hosts))
        yield format_field("REST", self.url or "-")
        yield format_field("gRPC", self.grpc_target or "-")
        yield format_field("proxies", "all run it" if self.programmed else "not all run it")
        if self.release is not None:
            first, *other_lines = self.release.render_lines(wide=wide)
            yield format_field("release", first.partition(", ")[2])
            yield from (f"  {line}" for line in other_lines)

    def related_lines(self) -> Iterator[str]:
        """Yield the targets of the routes with their planned shares."""
        rows = [["ROUTE", "AS", "INFERENCE", "SHARE", "ENDPOINTS", "STATE"]]
        rows += [
            [
                target.route,
                f"{target.role}, serving" if target.serving else target.role,
                target.inference,
                "-" if target.share is None else f"{target.share:g}%",
                "-" if target.endpoints is None else str(target.endpoints),
                target.state.value if target.state is not None else "-",
            ]
            for target in self.routes
        ]
        yield from render_table("ROUTES", rows)


def report_access(
    access: ModelAccess, inferences: Sequence[Inference], related: RelatedObjects
) -> AccessStatusReport:
    """Report an access from the Inferences that it names and what was read with it."""
    status = access.status
    states = {inference.key: ObjectReport.from_object(inference).state for inference in inferences}
    return AccessStatusReport(
        **common_fields(access, related),
        hosts=access.spec.hosts,
        url=status.url,
        grpc_target=status.grpc_target,
        programmed=access.is_programmed,
        routes=tuple(
            line.model_copy(
                update={"state": states.get(resolve_shared_name(line.inference, access.key.namespace))}
            )
            for route in status.routes
            for line in _report_targets(route)
        ),
        release=ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)
        if access.spec.release is not None
        else None,
    )


def _report_targets(route: RouteStatus) -> Iterator[TargetLine]:
    name = route.name
    total_weight = sum(target.weight for target in route.targets)
    for target in route.targets:
        share = round(100 * target.weight / total_weight, 2) if total_weight else 0.0
        line = TargetLine(
            route=name, role=RouteRole.TARGET, inference=target.inference, endpoints=target.endpoints
        )
        yield line.model_copy(update={"weight": target.weight, "share": share})
    for mirror in route.mirror or ():
        line = TargetLine(
            route=name, role=RouteRole.MIRROR, inference=mirror.inference, endpoints=mirror.endpoints
        )
        yield line.model_copy(update={"weight": mirror.percent, "share": float(mirror.percent)})
    if route.fallback is not None:
        fallback = route.fallback
        yield TargetLine(
            route=name,
            role=RouteRole.FALLBACK,
            inference=fallback.inference,
            endpoints=fallback.endpoints,
            serving=fallback.serving,
        )
    for model in route.pipeline.models if route.pipeline is not None else ():
        if model.inference is not None:
            yield TargetLine(
                route=name, role=RouteRole.PIPELINE, inference=model.inference, endpoints=model.endpoints
            )
