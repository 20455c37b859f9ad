"""How one ModelAccess is: its routes with the shares in effect, its proxies, and its release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tidegate.api.inference import Inference
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.api.model_access import ModelAccess, RouteStatus
from tidegate.reports.release import Acted, ReleaseReport
from tidegate.reports.state import ObjectReport, State
from tidegate.reports.status import Beside, RouteRole, StatusReport, field, parts, table


class TargetLine(ApiModel):
    """One Inference that a route leads to, as the proxies see it."""

    route: str
    role: RouteRole
    inference: str
    weight: int | None = None
    """Of a target; of a mirror in percent."""
    share: float | None = None
    """Of the route's requests that go to a target, in percent."""
    endpoints: int | None
    serving: bool | None = None
    """Of a fallback: whether it answers in place of targets."""
    state: State | None = None
    """Absent where there is no such Inference, or it cannot be read."""


class AccessStatusReport(StatusReport):
    """One ModelAccess."""

    kind: Literal["ModelAccess"] = "ModelAccess"
    hosts: tuple[str, ...]
    url: str | None
    grpc_target: str | None
    programmed: bool
    """Whether every gateway runs its present generation."""
    routes: tuple[TargetLine, ...]
    release: ReleaseReport | None

    def summary(self, *, wide: bool) -> Iterator[str]:
        """Where it is called, and how far its release is."""
        if self.hosts:
            yield field("hosts", ", ".join(self.hosts))
        yield field("REST", self.url or "-")
        yield field("gRPC", self.grpc_target or "-")
        yield field("proxies", "all run it" if self.programmed else "not all run it")
        if self.release is not None:
            first, *others = self.release.lines(wide=wide)
            yield field("release", first.partition(", ")[2])
            yield from (f"  {line}" for line in others)

    def related(self) -> Iterator[str]:
        """The shares in effect."""
        rows = [["ROUTE", "AS", "INFERENCE", "SHARE", "ENDPOINTS", "STATE"]]
        rows += [
            [
                each.route,
                f"{each.role}, serving" if each.serving else each.role,
                each.inference,
                "-" if each.share is None else f"{each.share:g}%",
                "-" if each.endpoints is None else str(each.endpoints),
                each.state.value if each.state is not None else "-",
            ]
            for each in self.routes
        ]
        yield from table("ROUTES", rows)


def access_status(one: ModelAccess, inferences: Sequence[Inference], beside: Beside) -> AccessStatusReport:
    """From the access, the Inferences of its namespace, and what was read beside them."""
    status = one.status
    states = {each.key: ObjectReport.of(each).state for each in inferences}
    return AccessStatusReport(
        **parts(one, beside),
        hosts=one.spec.hosts,
        url=status.url,
        grpc_target=status.grpc_target,
        programmed=one.programmed,
        routes=tuple(
            line.model_copy(update={"state": states.get(ObjectKey(one.metadata.namespace, line.inference))})
            for route in status.routes
            for line in _lines(route)
        ),
        release=ReleaseReport.of(one, Acted.NOTHING_ASKED) if one.spec.release is not None else None,
    )


def _lines(route: RouteStatus) -> Iterator[TargetLine]:
    name = route.name
    whole = sum(each.weight for each in route.targets)
    for each in route.targets:
        share = round(100 * each.weight / whole, 2) if whole else 0.0
        line = TargetLine(
            route=name, role=RouteRole.TARGET, inference=each.inference, endpoints=each.endpoints
        )
        yield line.model_copy(update={"weight": each.weight, "share": share})
    for mirror in route.mirror or ():
        line = TargetLine(
            route=name, role=RouteRole.MIRROR, inference=mirror.inference, endpoints=mirror.endpoints
        )
        yield line.model_copy(update={"weight": mirror.percent, "share": float(mirror.percent)})
    if route.fallback is not None:
        back = route.fallback
        yield TargetLine(
            route=name,
            role=RouteRole.FALLBACK,
            inference=back.inference,
            endpoints=back.endpoints,
            serving=back.serving,
        )
    for part in route.pipeline.models if route.pipeline is not None else ():
        if part.inference is not None:
            yield TargetLine(
                route=name, role=RouteRole.PIPELINE, inference=part.inference, endpoints=part.endpoints
            )
