"""What is wrong with objects: what their conditions say, and what only shows beside others."""

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
"""They repeat what another condition says of the same object."""
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.INFO)
_REASONS: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, about one object."""

    name: str
    """Of the reason or the problem."""
    text: Message
    kind: str
    key: ObjectKey
    message: str
    """What is so here: the object, the number and the way out."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What there is, of which some may only be planned."""

    inferences: Sequence[Inference] = ()
    accesses: Sequence[ModelAccess] = ()
    features: Sequence[FeatureCompute] = ()
    pools: Sequence[ComputePool] = ()
    overrides: Sequence[ComputeOverride] = ()
    autoscalers: Mapping[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    """The HorizontalPodAutoscaler of each Inference that has one."""
    planned: frozenset[tuple[str, ObjectKey]] = frozenset()
    """Kind and key of those that nobody has applied yet: no controller has said anything of them."""
    unread: frozenset[tuple[str, ObjectKey]] = frozenset()
    """Kind and key of those that are there, or planned, and cannot be read: nobody misses them."""
    unlisted: frozenset[str] = frozenset()
    """Kinds of which nobody knows what there is: none of them is missed either."""

    def all(self) -> Iterator[Resource]:
        """Every object, kind by kind."""
        for of in (self.inferences, self.accesses, self.features, self.pools, self.overrides):
            yield from of

    def is_planned(self, one: Resource) -> bool:
        """Whether nobody has applied it yet."""
        return (one.KIND, one.key) in self.planned


def findings(objects: Objects) -> tuple[Finding, ...]:
    """Everything that is not as it should be, the worst first; what a condition says already is not said again."""
    said = tuple(_said(objects))
    known = {(each.text.code, each.kind, each.key) for each in said}
    beside = (each for each in _beside_others(objects) if (each.text.code, each.kind, each.key) not in known)
    return tuple(
        sorted(
            (*said, *beside),
            key=lambda each: (_ORDER.index(each.text.level), each.kind, each.key, each.text.code),
        )
    )


def problem(name: Problem, one: Resource, message: str) -> Finding:
    """Something that no condition says."""
    return Finding(name.value, OF_PROBLEMS[name], one.KIND, one.key, message)


def _said(objects: Objects) -> Iterator[Finding]:
    for one in objects.all():
        if not objects.is_planned(one):
            yield from _of_conditions(one)


def _of_conditions(one: Resource) -> Iterator[Finding]:
    status = getattr(one, "status", None)
    conditions: Sequence[ObservedCondition] = getattr(status, "conditions", ())
    observed: int = getattr(status, "observed_generation", NOT_OBSERVED)
    if observed < one.metadata.generation:
        yield problem(
            Problem.NOT_ANSWERED,
            one,
            "no controller has looked at it yet"
            if observed == NOT_OBSERVED
            else f"its status is about generation {observed}, and it has {one.metadata.generation}",
        )
    # The summaries last: they are told where they say something worse than what they may summarise.
    ordered = sorted(conditions, key=lambda each: each.type in _SUMMARIES)
    told: set[str] = set()
    worst = Level.INFO
    for each in ordered:
        if each.as_it_should_be or each.reason not in _REASONS or each.reason in told:
            continue
        text = OF_REASONS[Reason(each.reason)]
        if each.type in _SUMMARIES and told and _ORDER.index(text.level) >= _ORDER.index(worst):
            continue
        told.add(each.reason)
        worst = min(worst, text.level, key=_ORDER.index)
        yield Finding(each.reason, text, one.KIND, one.key, each.message)


def _beside_others(objects: Objects) -> Iterator[Finding]:
    by_key = {one.key: one for one in objects.inferences}
    pools = {one.metadata.name for one in objects.pools} | {
        key.name for kind, key in objects.unread if kind == ComputePool.KIND
    }
    unread = {key for kind, key in objects.unread if kind == Inference.KIND}
    asked = _asked(objects.accesses)
    for one in objects.inferences:
        if ComputePool.KIND not in objects.unlisted:
            yield from _placement(one, pools)
        yield from _scaling(one, objects.autoscalers)
        if ModelAccess.KIND not in objects.unlisted:
            yield from _asking(one, asked.get(one.key, ()))
    for access in objects.accesses:
        if Inference.KIND not in objects.unlisted:
            yield from _targets(access, by_key, unread, planned=objects.is_planned(access))
    yield from _hosts(objects.accesses)


def _placement(one: Inference, pools: Collection[str]) -> Iterator[Finding]:
    placement = one.spec.placement
    if placement is not None and placement.pool not in pools:
        text = OF_REASONS[Reason.POOL_NOT_FOUND]
        said = f"spec.placement.pool: there is no ComputePool {placement.pool}"
        yield Finding(Reason.POOL_NOT_FOUND.value, text, one.KIND, one.key, said)


def _scaling(one: Inference, autoscalers: Mapping[ObjectKey, str]) -> Iterator[Finding]:
    if one.spec.scaling is None:
        return
    if one.spec.placement is not None and one.spec.capacity is None and one.spec.tier is not Tier.OFFLINE:
        said = f"spec.capacity is absent, and spec.scaling waits for it: tidegate calibrate {one.key}"
        yield problem(Problem.CAPACITY_UNKNOWN, one, said)
    if one.key in autoscalers:
        said = f"HorizontalPodAutoscaler {autoscalers[one.key]} scales it, and so does spec.scaling"
        yield problem(Problem.SCALED_TWICE, one, said)


def _asking(one: Inference, askers: Sequence[_Asker]) -> Iterator[Finding]:
    if one.spec.tier is not Tier.REALTIME:
        return
    if not askers:
        yield problem(Problem.NOBODY_ASKS, one, "no route of a ModelAccess names it")
        return
    scaling = one.spec.scaling
    least, where = (
        (one.spec.replicas, "spec.replicas") if scaling is None else (scaling.min_replicas, "minReplicas")
    )
    alone = next((each.access for each in askers if not each.falls_back), None)
    if least == 1 and alone is not None:
        yield problem(Problem.SINGLE_REPLICA, one, f"{where} is 1, and ModelAccess {alone} leads to it")


def _targets(
    access: ModelAccess,
    by_key: Mapping[ObjectKey, Inference],
    unread: Collection[ObjectKey],
    *,
    planned: bool,
) -> Iterator[Finding]:
    for route in access.spec.routes:
        # Of the parts of a pipeline that was applied its conditions say more.
        parts = route.pipeline.inferences if route.pipeline is not None and not planned else frozenset[str]()
        for name in sorted(route.inferences - parts):
            key = ObjectKey(access.key.namespace, name)
            target = by_key.get(key)
            if target is None and key not in unread:
                text = OF_REASONS[Reason.TARGET_NOT_FOUND]
                said = f"route {route.name}: there is no Inference {name} in namespace {access.key.namespace}"
                yield Finding(Reason.TARGET_NOT_FOUND.value, text, access.KIND, access.key, said)
            elif target is not None and target.spec.tier is not Tier.REALTIME:
                said = f"route {route.name} leads to Inference {name}, whose spec.tier is {target.spec.tier}"
                yield problem(Problem.TARGET_NOT_REALTIME, access, said)


def _hosts(accesses: Sequence[ModelAccess]) -> Iterator[Finding]:
    """Those that want a host of an older one."""
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
    """Who leads to each Inference, route by route."""
    found: dict[ObjectKey, list[_Asker]] = {}
    for access in accesses:
        for route in access.spec.routes:
            for name in sorted(route.inferences):
                falls_back = route.fallback is not None and route.fallback.inference != name
                asker = _Asker(access.key, falls_back)
                found.setdefault(ObjectKey(access.key.namespace, name), []).append(asker)
    return found
