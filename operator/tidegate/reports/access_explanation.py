"""Explain how far the newest spec of a ModelAccess has come, from the API server to the gateways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess, RouteStatus
from tidegate.reports.report import Report, format_name


class StageState(StrEnum):
    """Whether a stage has done its part for the newest spec."""

    DONE = "Done"
    BEHIND = "Behind"
    UNKNOWN = "Unknown"
    """An earlier stage is behind, so this one cannot be judged."""


class StageReport(ApiModel):
    """One stage between `kubectl apply` and the first request that follows the new spec."""

    name: str
    state: StageState
    message: str


class AccessExplanation(Report):
    """The stages of a ModelAccess; the first one that is behind is where to look."""

    kind: Literal["ModelAccess"] = "ModelAccess"
    access: str
    generation: int
    stages: tuple[StageReport, ...]
    behind: str | None
    """Name of the first stage that is behind; absent if all are done."""
    notes: tuple[str, ...]
    """What makes traffic differ from the spec's weights although every stage is done."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line for each stage, then the notes."""
        del wide
        yield f"ModelAccess {self.access}, generation {self.generation}"
        for stage in self.stages:
            yield f"  {stage.name:12}{stage.state.lower():9}{stage.message}"
        if self.behind is None:
            yield "  every stage runs this generation"
        else:
            yield f"  look at: {self.behind}"
        yield from (f"  note: {note}" for note in self.notes)

    def object_names(self) -> Iterator[str]:
        """Yield the access."""
        yield format_name(ModelAccess.KIND, self.access.partition("/")[2])


def explain_access(access: ModelAccess) -> AccessExplanation:
    """Explain an access from its own status: which stage is the first that does not follow its newest spec."""
    stages = tuple(_report_stages(access))
    behind = next((stage.name for stage in stages if stage.state is StageState.BEHIND), None)
    return AccessExplanation(
        access=str(access.key),
        generation=access.metadata.generation,
        stages=stages,
        behind=behind,
        notes=tuple(_find_notes(access)),
    )


def _report_stages(access: ModelAccess) -> Iterator[StageReport]:
    generation, observed = access.metadata.generation, access.status.observed_generation
    yield StageReport(name="API server", state=StageState.DONE, message=f"stores generation {generation}")
    is_observed = observed >= generation
    yield StageReport(
        name="controllers",
        state=StageState.DONE if is_observed else StageState.BEHIND,
        message=_describe_observation(generation, observed),
    )
    conditions = {condition.type: condition for condition in access.status.conditions}
    for name, condition_type in (
        ("targets", ConditionType.TARGETS_READY),
        ("gateways", ConditionType.PROGRAMMED),
        ("ready", ConditionType.READY),
    ):
        yield _report_condition(
            name, conditions.get(condition_type.value), generation, is_observed=is_observed
        )


def _describe_observation(generation: int, observed: int) -> str:
    if observed >= generation:
        return f"have reconciled generation {generation}"
    remedy = '"tidegate doctor" shows whether a leader runs'
    if observed < 0:
        return f"have not reconciled the object yet; {remedy}"
    return f"have reconciled generation {observed} and not {generation}; {remedy}"


def _report_condition(
    name: str, condition: ObservedCondition | None, generation: int, *, is_observed: bool
) -> StageReport:
    if not is_observed:
        return StageReport(name=name, state=StageState.UNKNOWN, message="not judged for this generation yet")
    if condition is None or condition.observed_generation < generation:
        return StageReport(name=name, state=StageState.BEHIND, message="not reported for this generation yet")
    state = StageState.DONE if condition.is_healthy else StageState.BEHIND
    return StageReport(name=name, state=state, message=f"{condition.reason}: {condition.message}")


def _find_notes(access: ModelAccess) -> Iterator[str]:
    routes = {route.name: route for route in access.status.routes}
    for spec in access.spec.routes:
        route = routes.get(spec.name)
        if route is None:
            continue
        desired = _compute_shares({target.inference: target.weight for target in spec.targets or ()})
        planned = _compute_shares({target.inference: target.weight for target in route.targets})
        if desired and desired != planned:
            yield _describe_weights(access, spec.name, desired, planned)
        yield from _describe_substitutes(route)


def _compute_shares(weights: Mapping[str, int]) -> Mapping[str, float]:
    """Return each target's share of the requests in percent, to a tenth."""
    total = sum(weights.values())
    return {name: round(100 * weight / total, 1) if total else 0.0 for name, weight in weights.items()}


def _describe_weights(
    access: ModelAccess, route: str, desired: Mapping[str, float], planned: Mapping[str, float]
) -> str:
    differences = ", ".join(
        f"{name} gets {planned.get(name, 0.0):g}% and not {share:g}%"
        for name, share in desired.items()
        if planned.get(name, 0.0) != share
    )
    release = access.spec.release
    if release is not None and release.route == route:
        remedy = '"tidegate release status" shows its step'
        return f"route {route}: the release of {release.target} decides the weights ({differences}); {remedy}"
    return f"route {route}: planned weights differ from the spec ({differences})"


def _describe_substitutes(route: RouteStatus) -> Iterator[str]:
    if route.fallback is not None and route.fallback.serving:
        yield f"route {route.name}: the fallback {route.fallback.inference} answers in place of targets without a ready pod"
    for name in _find_targets_without_pods(route):
        yield f"route {route.name}: target {name} has no ready pod, so its share goes to the others"


def _find_targets_without_pods(route: RouteStatus) -> Sequence[str]:
    return [target.inference for target in route.targets if target.weight and not target.endpoints]
