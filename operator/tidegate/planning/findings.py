"""Find what is wrong with objects: what their conditions say, and what only shows in comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tier
from tidegate.api.messages.catalogue import OF_PROBLEMS, OF_REASONS
from tidegate.api.messages.message import Level, Message
from tidegate.api.messages.problem import Problem
from tidegate.api.meta import NOT_OBSERVED, ObjectKey, Resource
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.hosts import claim, refuse

_SUMMARIES: Final = (ConditionType.READY.value, ConditionType.RECONCILING.value, ConditionType.STALLED.value)
"""They summarise other conditions of the same object."""
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.INFO)
_REASONS: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one object."""

    name: str
    """Name of the reason or the problem."""
    text: Message
    kind: str
    key: ObjectKey
    message: str
    """The fact and the way out."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects to check, some of which may only be planned."""

    inferences: Sequence[Inference] = ()
    accesses: Sequence[ModelAccess] = ()
    features: Sequence[FeatureCompute] = ()
    pools: Sequence[ComputePool] = ()
    overrides: Sequence[ComputeOverride] = ()
    autoscalers: Mapping[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    """The HorizontalPodAutoscaler of each Inference that has one."""
    planned: frozenset[tuple[str, ObjectKey]] = frozenset()
    """Kind and key of objects that are not applied yet: they have no status."""
    unread: frozenset[tuple[str, ObjectKey]] = frozenset()
    """Kind and key of objects that exist or are planned, and do not parse: they are not missing."""
    unlisted: frozenset[str] = frozenset()
    """Kinds that could not be listed: no object of them counts as missing."""

    def all(self) -> Iterator[Resource]:
        """Yield every object, kind by kind."""
        for objects in (self.inferences, self.accesses, self.features, self.pools, self.overrides):
            yield from objects

    def is_planned(self, resource: Resource) -> bool:
        """Return whether an object has not been applied yet."""
        return (resource.KIND, resource.key) in self.planned


def findings(objects: Objects) -> tuple[Finding, ...]:
    """Return all problems, the worst first; a problem that a condition reports is not repeated."""
    reported = tuple(_said(objects))
    known_problems = {(finding.text.code, finding.kind, finding.key) for finding in reported}
    compared = (
        finding
        for finding in _beside_others(objects)
        if (finding.text.code, finding.kind, finding.key) not in known_problems
    )
    return tuple(
        sorted(
            (*reported, *compared),
            key=lambda finding: (
                _ORDER.index(finding.text.level),
                finding.kind,
                finding.key,
                finding.text.code,
            ),
        )
    )


def problem(name: Problem, resource: Resource, message: str) -> Finding:
    """Make a finding about a problem that no condition reports."""
    return Finding(name.value, OF_PROBLEMS[name], resource.KIND, resource.key, message)


def _said(objects: Objects) -> Iterator[Finding]:
    for resource in objects.all():
        if not objects.is_planned(resource):
            yield from _of_conditions(resource)


def _of_conditions(resource: Resource) -> Iterator[Finding]:
    status = getattr(resource, "status", None)
    conditions: Sequence[ObservedCondition] = getattr(status, "conditions", ())
    observed: int = getattr(status, "observed_generation", NOT_OBSERVED)
    if observed < resource.metadata.generation:
        yield problem(
            Problem.NOT_ANSWERED,
            resource,
            "no controller has looked at it yet"
            if observed == NOT_OBSERVED
            else f"its status is about generation {observed}, and it has {resource.metadata.generation}",
        )
    # Summaries come last: they are reported only if they are worse than the conditions that they may summarise.
    ordered = sorted(conditions, key=lambda condition: condition.type in _SUMMARIES)
    reported: set[str] = set()
    worst = Level.INFO
    for condition in ordered:
        if condition.as_it_should_be or condition.reason not in _REASONS or condition.reason in reported:
            continue
        text = OF_REASONS[Reason(condition.reason)]
        if condition.type in _SUMMARIES and reported and _ORDER.index(text.level) >= _ORDER.index(worst):
            continue
        reported.add(condition.reason)
        worst = min(worst, text.level, key=_ORDER.index)
        yield Finding(condition.reason, text, resource.KIND, resource.key, condition.message)


def _beside_others(objects: Objects) -> Iterator[Finding]:
    by_key = {inference.key: inference for inference in objects.inferences}
    pools = {pool.metadata.name for pool in objects.pools} | {
        key.name for kind, key in objects.unread if kind == ComputePool.KIND
    }
    unread = {key for kind, key in objects.unread if kind == Inference.KIND}
    callers = _asked(objects.accesses)
    for inference in objects.inferences:
        if ComputePool.KIND not in objects.unlisted:
            yield from _placement(inference, pools)
        yield from _scaling(inference, objects.autoscalers)
        if ModelAccess.KIND not in objects.unlisted:
            yield from _asking(inference, callers.get(inference.key, ()))
    for access in objects.accesses:
        if Inference.KIND not in objects.unlisted:
            yield from _targets(access, by_key, unread, planned=objects.is_planned(access))
    yield from _hosts(objects.accesses)


def _placement(inference: Inference, pools: Collection[str]) -> Iterator[Finding]:
    placement = inference.spec.placement
    if placement is not None and placement.pool not in pools:
        text = OF_REASONS[Reason.POOL_NOT_FOUND]
        message = f"spec.placement.pool: there is no ComputePool {placement.pool}"
        yield Finding(Reason.POOL_NOT_FOUND.value, text, inference.KIND, inference.key, message)


def _scaling(inference: Inference, autoscalers: Mapping[ObjectKey, str]) -> Iterator[Finding]:
    if inference.spec.scaling is None:
        return
    if (
        inference.spec.placement is not None
        and inference.spec.capacity is None
        and inference.spec.tier is not Tier.OFFLINE
    ):
        message = (
            f"spec.capacity is absent, and spec.scaling waits for it: tidegate calibrate {inference.key}"
        )
        yield problem(Problem.CAPACITY_UNKNOWN, inference, message)
    if inference.key in autoscalers:
        message = f"HorizontalPodAutoscaler {autoscalers[inference.key]} scales it, and so does spec.scaling"
        yield problem(Problem.SCALED_TWICE, inference, message)


def _asking(inference: Inference, callers: Sequence[_Asker]) -> Iterator[Finding]:
    if inference.spec.tier is not Tier.REALTIME:
        return
    if not callers:
        yield problem(Problem.NOBODY_ASKS, inference, "no route of a ModelAccess names it")
        return
    scaling = inference.spec.scaling
    minimum, field_name = (
        (inference.spec.replicas, "spec.replicas")
        if scaling is None
        else (scaling.min_replicas, "minReplicas")
    )
    single_caller = next((caller.access for caller in callers if not caller.falls_back), None)
    if minimum == 1 and single_caller is not None:
        yield problem(
            Problem.SINGLE_REPLICA,
            inference,
            f"{field_name} is 1, and ModelAccess {single_caller} leads to it",
        )


def _targets(
    access: ModelAccess,
    by_key: Mapping[ObjectKey, Inference],
    unread: Collection[ObjectKey],
    *,
    planned: bool,
) -> Iterator[Finding]:
    for route in access.spec.routes:
        # An applied pipeline's own conditions say more about its parts.
        parts = route.pipeline.inferences if route.pipeline is not None and not planned else frozenset[str]()
        for name in sorted(route.inferences - parts):
            key = ObjectKey(access.key.namespace, name)
            target = by_key.get(key)
            if target is None and key not in unread:
                text = OF_REASONS[Reason.TARGET_NOT_FOUND]
                message = (
                    f"route {route.name}: there is no Inference {name} in namespace {access.key.namespace}"
                )
                yield Finding(Reason.TARGET_NOT_FOUND.value, text, access.KIND, access.key, message)
            elif target is not None and target.spec.tier is not Tier.REALTIME:
                message = (
                    f"route {route.name} leads to Inference {name}, whose spec.tier is {target.spec.tier}"
                )
                yield problem(Problem.TARGET_NOT_REALTIME, access, message)


def _hosts(accesses: Sequence[ModelAccess]) -> Iterator[Finding]:
    """Yield the ModelAccesses that claim a host of an older one."""
    owners = claim(accesses)
    for access in accesses:
        for refusal in refuse(access, owners):
            text = OF_REASONS[refusal.reason]
            yield Finding(refusal.reason.value, text, access.KIND, access.key, refusal.message)


@dataclass(frozen=True, slots=True)
class _Asker:
    """A ModelAccess that leads to an Inference."""

    access: ObjectKey
    falls_back: bool
    """Whether another Inference answers when this one cannot."""


def _asked(accesses: Sequence[ModelAccess]) -> Mapping[ObjectKey, Sequence[_Asker]]:
    """Return the ModelAccesses that lead to each Inference, route by route."""
    callers: dict[ObjectKey, list[_Asker]] = {}
    for access in accesses:
        for route in access.spec.routes:
            for name in sorted(route.inferences):
                falls_back = route.fallback is not None and route.fallback.inference != name
                caller = _Asker(access.key, falls_back)
                callers.setdefault(ObjectKey(access.key.namespace, name), []).append(caller)
    return callers
