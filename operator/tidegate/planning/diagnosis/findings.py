"""Find what is wrong with objects: what their conditions say, and what only shows in comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import PROBLEM_MESSAGES, REASON_MESSAGES
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.messages.message import CatalogueMessage, MessageLevel
from tidegate.api.meta import NOT_OBSERVED, CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import (
    describe_absence,
    is_shared_with,
    list_shared_namespaces,
    resolve_shared_name,
)
from tidegate.routing.hosts import find_host_conflicts, find_host_owners

_SUMMARIES: Final = (ConditionType.READY.value, ConditionType.RECONCILING.value, ConditionType.STALLED.value)
"""They summarise other conditions of the same object."""
_ORDER: Final = (MessageLevel.ERROR, MessageLevel.WARNING, MessageLevel.INFO)
_REASONS: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one object."""

    name: str
    """Name of the reason or the problem."""
    text: CatalogueMessage
    kind: str
    key: ObjectKey
    message: str
    """The fact and the way out."""


@dataclass(frozen=True, slots=True)
class ObjectSet:
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
    namespaces: frozenset[str] | None = None
    """The namespaces whose objects were read; None: all. Objects of other namespaces count neither as missing nor as not referring."""

    def has_read(self, namespace: str) -> bool:
        """Return whether the objects of a namespace were read."""
        return self.namespaces is None or namespace in self.namespaces

    def iterate(self) -> Iterator[CustomResource]:
        """Yield every object, kind by kind."""
        for objects in (self.inferences, self.accesses, self.features, self.pools, self.overrides):
            yield from objects

    def is_planned(self, resource: CustomResource) -> bool:
        """Return whether an object has not been applied yet."""
        return (resource.KIND, resource.key) in self.planned


def find_problems(objects: ObjectSet) -> tuple[Finding, ...]:
    """Return all problems, the worst first; a problem that a condition reports is not repeated."""
    reported = tuple(_find_in_conditions(objects))
    known_problems = {(finding.text.code, finding.kind, finding.key) for finding in reported}
    compared = (
        finding
        for finding in _compare_objects(objects)
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


def make_finding(name: ProblemReason, resource: CustomResource, message: str) -> Finding:
    """Make a finding about a problem that no condition reports."""
    return Finding(name.value, PROBLEM_MESSAGES[name], resource.KIND, resource.key, message)


def _find_in_conditions(objects: ObjectSet) -> Iterator[Finding]:
    for resource in objects.iterate():
        if not objects.is_planned(resource):
            yield from _check_conditions(resource)


def _check_conditions(resource: CustomResource) -> Iterator[Finding]:
    status = getattr(resource, "status", None)
    conditions: Sequence[ObservedCondition] = getattr(status, "conditions", ())
    observed: int = getattr(status, "observed_generation", NOT_OBSERVED)
    if observed < resource.metadata.generation:
        yield make_finding(
            ProblemReason.NOT_ANSWERED,
            resource,
            "no controller has looked at it yet"
            if observed == NOT_OBSERVED
            else f"its status describes generation {observed}, and it has {resource.metadata.generation}",
        )
    # Summaries come last: they are reported only if they are worse than the conditions that they may summarise.
    ordered = sorted(conditions, key=lambda condition: condition.type in _SUMMARIES)
    reported: set[str] = set()
    worst = MessageLevel.INFO
    for condition in ordered:
        if condition.is_healthy or condition.reason not in _REASONS or condition.reason in reported:
            continue
        text = REASON_MESSAGES[Reason(condition.reason)]
        if condition.type in _SUMMARIES and reported and _ORDER.index(text.level) >= _ORDER.index(worst):
            continue
        reported.add(condition.reason)
        worst = min(worst, text.level, key=_ORDER.index)
        yield Finding(condition.reason, text, resource.KIND, resource.key, condition.message)


def _compare_objects(objects: ObjectSet) -> Iterator[Finding]:
    by_key = {inference.key: inference for inference in objects.inferences}
    pools = {pool.metadata.name for pool in objects.pools} | {
        key.name for kind, key in objects.unread if kind == ComputePool.KIND
    }
    unread = {key for kind, key in objects.unread if kind == Inference.KIND}
    callers = _group_callers(objects.accesses, by_key)
    for inference in objects.inferences:
        if ComputePool.KIND not in objects.unlisted:
            yield from _check_placement(inference, pools)
        yield from _check_scaling(inference, objects.autoscalers)
        if ModelAccess.KIND not in objects.unlisted and all(
            map(objects.has_read, list_shared_namespaces(inference))
        ):
            yield from _check_callers(inference, callers.get(inference.key, ()))
    for access in objects.accesses:
        if Inference.KIND not in objects.unlisted:
            yield from _check_targets(access, by_key, unread, objects)
    yield from _check_hosts(objects.accesses)


def _check_placement(inference: Inference, pools: Collection[str]) -> Iterator[Finding]:
    placement = inference.spec.placement
    for share in placement.pool_shares if placement is not None else ():
        if share.name in pools:
            continue
        text = REASON_MESSAGES[Reason.POOL_NOT_FOUND]
        field = "pool" if placement is not None and placement.pools is None else f"pools[{share.name}]"
        message = f"spec.placement.{field}: there is no ComputePool {share.name}"
        yield Finding(Reason.POOL_NOT_FOUND.value, text, inference.KIND, inference.key, message)


def _check_scaling(inference: Inference, autoscalers: Mapping[ObjectKey, str]) -> Iterator[Finding]:
    if inference.spec.scaling is None:
        return
    if (
        inference.spec.placement is not None
        and inference.spec.capacity is None
        and inference.spec.tier.traits.counts_requests
    ):
        message = (
            f"spec.capacity is absent, and spec.scaling waits for it: tidegate calibrate {inference.key}"
        )
        yield make_finding(ProblemReason.CAPACITY_UNKNOWN, inference, message)
    if inference.key in autoscalers:
        message = f"HorizontalPodAutoscaler {autoscalers[inference.key]} scales it, and so does spec.scaling"
        yield make_finding(ProblemReason.SCALED_TWICE, inference, message)


def _check_callers(inference: Inference, callers: Sequence[_CallingAccess]) -> Iterator[Finding]:
    if not inference.spec.tier.traits.is_routed:
        return
    if not callers:
        yield make_finding(ProblemReason.NOBODY_ASKS, inference, "no route of a ModelAccess names it")
        return
    scaling = inference.spec.scaling
    minimum, field_name = (
        (inference.spec.replicas, "spec.replicas")
        if scaling is None
        else (scaling.min_replicas, "minReplicas")
    )
    single_caller = next((caller.access for caller in callers if not caller.falls_back), None)
    if minimum == 1 and single_caller is not None:
        yield make_finding(
            ProblemReason.SINGLE_REPLICA,
            inference,
            f"{field_name} is 1, and ModelAccess {single_caller} leads to it",
        )


def _check_targets(
    access: ModelAccess,
    by_key: Mapping[ObjectKey, Inference],
    unread: Collection[ObjectKey],
    objects: ObjectSet,
) -> Iterator[Finding]:
    for route in access.spec.routes:
        # An applied pipeline's own conditions say more about its parts.
        is_judged = route.pipeline is not None and not objects.is_planned(access)
        parts = route.pipeline.inference_names if route.pipeline and is_judged else frozenset[str]()
        for name in sorted(route.inference_names - parts):
            key = resolve_shared_name(name, access.key.namespace)
            target = by_key.get(key)
            if target is not None and not is_shared_with(target, access.key.namespace):
                target = None
            if target is None and key not in unread and objects.has_read(key.namespace):
                text = REASON_MESSAGES[Reason.TARGET_NOT_FOUND]
                message = f"route {route.name}: {describe_absence(Inference, name, access.key.namespace)}"
                yield Finding(Reason.TARGET_NOT_FOUND.value, text, access.KIND, access.key, message)
            elif target is not None and not target.spec.tier.traits.is_routed:
                message = (
                    f"route {route.name} leads to Inference {name}, whose spec.tier is {target.spec.tier}"
                )
                yield make_finding(ProblemReason.TARGET_NOT_REALTIME, access, message)


def _check_hosts(accesses: Sequence[ModelAccess]) -> Iterator[Finding]:
    """Yield the ModelAccesses that claim a host of an older one."""
    owners = find_host_owners(accesses)
    for access in accesses:
        for refusal in find_host_conflicts(access, owners):
            text = REASON_MESSAGES[refusal.reason]
            yield Finding(refusal.reason.value, text, access.KIND, access.key, refusal.message)


@dataclass(frozen=True, slots=True)
class _CallingAccess:
    """A ModelAccess that leads to an Inference."""

    access: ObjectKey
    falls_back: bool
    """Whether another Inference answers when this one cannot."""


def _group_callers(
    accesses: Sequence[ModelAccess], inferences: Mapping[ObjectKey, Inference]
) -> Mapping[ObjectKey, Sequence[_CallingAccess]]:
    """Return the ModelAccesses that lead to each Inference, route by route; those without its consent do not."""
    callers: dict[ObjectKey, list[_CallingAccess]] = {}
    for access in accesses:
        for route in access.spec.routes:
            for name in sorted(route.inference_names):
                falls_back = route.fallback is not None and route.fallback.inference != name
                caller = _CallingAccess(access.key, falls_back)
                key = resolve_shared_name(name, access.key.namespace)
                target = inferences.get(key)
                if target is not None and is_shared_with(target, access.key.namespace):
                    callers.setdefault(key, []).append(caller)
    return callers
