"""Report the status of one Inference: its versions, its replicas and pods, and the ModelAccesses that lead to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.model_access import ModelAccess, Route, RouteStatus
from tidegate.api.shared_names import format_shared_name, is_shared_with
from tidegate.planning.pools.overrides import select_active_for
from tidegate.reports.report import format_count
from tidegate.reports.shared import OverrideReport
from tidegate.reports.status import (
    RelatedObjects,
    RouteRole,
    StatusReport,
    common_fields,
    format_field,
    render_table,
)


class InferenceRoute(ApiModel):
    """One route of a ModelAccess that leads to the Inference."""

    access: str
    route: str
    role: RouteRole
    weight: int | None
    """The planned weight of a target; of a mirror, the percentage of requests that it gets a copy of."""
    endpoints: int | None
    """Ready pods that the proxies see."""


class VersionsReport(ApiModel):
    """The versions of the model."""

    target: str
    serving: str | None
    loaded: tuple[str, ...]
    swapping_to: str | None
    """Absent if no version change is under way."""
    swapped_replicas: int | None
    failed: str | None
    """The version that does not serve."""
    failure: str
    """The reason in a sentence."""


class InferenceStatusReport(StatusReport):
    """One Inference."""

    kind: Literal["Inference"] = "Inference"
    model: str
    uri: str
    format: str
    tier: Tier
    versions: VersionsReport
    decided: int
    """The desired replicas that get requests."""
    spares: int
    """The desired warm spares: loaded, without requests."""
    existing: int
    ready: int
    pool: str | None
    slices: int | None
    """The slices of each replica, by default where there are several pools."""
    pool_summary: str | None = None
    """The ready and planned replicas in each of several pools."""
    accesses: tuple[InferenceRoute, ...]
    overrides: tuple[OverrideReport, ...]

    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield model, versions, replicas and placement."""
        versions = self.versions
        yield format_field(
            "model", f"{self.model}, {self.format}, tier {self.tier}{f', {self.uri}' if wide else ''}"
        )
        loaded = f", loaded {' '.join(versions.loaded)}" if versions.loaded else ""
        yield format_field(
            "version", f"serving {versions.serving or 'none'}, spec asks for {versions.target}{loaded}"
        )
        if versions.swapping_to is not None:
            yield format_field(
                "swap", f"to {versions.swapping_to}: {versions.swapped_replicas} replicas serve it so far"
            )
        if versions.failed is not None:
            yield format_field("failed", f"version {versions.failed}: {versions.failure}")
        spares = f", {self.spares} warm spares" if self.spares else ""
        yield format_field("replicas", f"{self.ready} ready of {self.decided}{spares}, {self.existing} exist")
        if self.pool_summary is not None:
            yield format_field("placed in", f"ComputePools {self.pool_summary} (ready/planned replicas)")
        elif self.pool is not None:
            yield format_field("placed in", f"ComputePool {self.pool}, {self.slices} slices each")
        for override in self.overrides:
            yield format_field("override", override.message)

    def related_lines(self) -> Iterator[str]:
        """Yield the routes that lead to the Inference."""
        rows = [["MODELACCESS", "ROUTE", "AS", "WEIGHT", "ENDPOINTS"]]
        rows += [
            [
                route.access,
                route.route,
                route.role.value,
                format_count(route.weight),
                format_count(route.endpoints),
            ]
            for route in self.accesses
        ]
        yield from render_table("ROUTES THAT LEAD TO IT", rows)


def report_inference(
    inference: Inference,
    accesses: Sequence[ModelAccess],
    overrides: Sequence[ComputeOverride],
    related: RelatedObjects,
) -> InferenceStatusReport:
    """Report an Inference from the accesses that may name it, all overrides, and what was read with it."""
    spec, status = inference.spec, inference.status
    placement = spec.placement
    return InferenceStatusReport(
        **common_fields(inference, related),
        model=inference.served_name,
        uri=spec.model.uri,
        format=spec.model.format.value,
        tier=spec.tier,
        versions=_report_versions(inference),
        decided=inference.decided_replicas,
        spares=inference.decided_spares,
        existing=status.replicas,
        ready=status.ready_replicas,
        pool=placement.pool_names if placement is not None else None,
        slices=placement.slices if placement is not None else None,
        pool_summary=status.pool_summary,
        accesses=tuple(route for access in accesses for route in _find_routes(access, inference)),
        overrides=tuple(
            OverrideReport.from_override(override)
            for override in select_active_for(overrides, OverrideKind.INFERENCE, inference.key, related.now)
        ),
    )


def _report_versions(inference: Inference) -> VersionsReport:
    status = inference.status
    failure, swap = status.failure, status.swap
    return VersionsReport(
        target=inference.spec.model.version,
        serving=status.versions.serving,
        loaded=status.versions.loaded,
        swapping_to=swap.version if swap is not None else None,
        swapped_replicas=swap.replicas if swap is not None else None,
        failed=failure.version if failure is not None else None,
        failure=f"{failure.reason}: {failure.message}" if failure is not None else "",
    )


def _find_routes(access: ModelAccess, inference: Inference) -> Iterator[InferenceRoute]:
    if not is_shared_with(inference, access.key.namespace):
        return
    name = format_shared_name(inference.key, access.key.namespace)
    in_effect = {route.name: route for route in access.status.routes}
    for route in access.spec.routes:
        for role, weight, endpoints in _find_roles(route, in_effect.get(route.name), name):
            yield InferenceRoute(
                access=str(access.key), route=route.name, role=role, weight=weight, endpoints=endpoints
            )


def _find_roles(
    route: Route, status: RouteStatus | None, name: str
) -> Iterator[tuple[RouteRole, int | None, int | None]]:
    """Yield each role of the Inference in the route, with its planned weight and its ready pods.

    Both numbers are absent where the proxies report nothing.
    """
    if any(target.inference == name for target in route.targets):
        target = (
            next((target_status for target_status in status.targets if target_status.inference == name), None)
            if status
            else None
        )
        yield RouteRole.TARGET, _read_number(target, "weight"), _read_number(target, "endpoints")
    if any(mirror.inference == name for mirror in route.mirror):
        mirrors = (status.mirror or ()) if status else ()
        mirror = next((mirror_status for mirror_status in mirrors if mirror_status.inference == name), None)
        yield RouteRole.MIRROR, _read_number(mirror, "percent"), _read_number(mirror, "endpoints")
    if route.fallback is not None and route.fallback.inference == name:
        yield RouteRole.FALLBACK, None, _read_number(status.fallback if status else None, "endpoints")
    if route.pipeline is not None and name in route.pipeline.inference_names:
        models = status.pipeline.models if status and status.pipeline else ()
        model_status = next((model for model in models if model.inference == name), None)
        yield RouteRole.PIPELINE, None, _read_number(model_status, "endpoints")


def _read_number(status: StatusModel | None, name: str) -> int | None:
    """Return a number of a status; None where the proxies report nothing."""
    number: int | None = getattr(status, name, None)
    return number
