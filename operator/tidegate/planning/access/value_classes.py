"""Attribute requests to the values of their routes, from what the gateways count by route and by Inference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.pipeline import PipelineSpec
from tidegate.api.shared_names import parse_shared_namespaces, resolve_shared_name
from tidegate.planning.allocator.signals import ClassRates
from tidegate.routing.ir import REDUCED


@dataclass(frozen=True, slots=True)
class RouteDemand:
    """How the requests of a route are attributed: the share of each Inference, and what one is worth.

    `value` None: what the Inference says. `sheds`: gateways reject its requests of low value first.
    `instead_of`: the Inferences that had no capacity for these requests, and what their answers would have been worth more.
    `required`: the Inferences that a pipeline needs for each request; their calls are counted where it makes them.
    """

    by_inference: Mapping[ObjectKey, float]
    value: float | None = None
    sheds: bool = False
    instead_of: RouteDemand | None = None
    required: frozenset[ObjectKey] = frozenset()


RouteDemands = Mapping[str, RouteDemand]
"""By route (`access/<namespace>/<name>/<route>`)."""


class RouteOutcome(StrEnum):
    """Outcomes of requests to an Inference that none of its Envoy clusters has counted."""

    REFUSED = "refused"
    """They were beyond the admitted share of their route."""
    REDUCED = "reduced"
    """A fallback answered them, because the targets had no capacity; the route has REDUCED in its name."""


@dataclass(frozen=True, slots=True)
class DemandShare:
    """The requests of a route with an outcome that are demand for an Inference, per request with that outcome."""

    route: str
    outcome: RouteOutcome
    inference: ObjectKey
    ratio: float


_UNKNOWN: Final = RouteDemand({})
_NONE_SHARED: Final[Mapping[ObjectKey, Collection[str]]] = {}


SharedInferences = Mapping[ObjectKey, Collection[str]]
"""The other namespaces that an Inference is shared with, of those that are."""


def index_routes(accesses: Iterable[ModelAccess], shared: SharedInferences = _NONE_SHARED) -> RouteDemands:
    """Return how the requests of each route are attributed: to its targets by the weights in the spec.

    Those of a pipeline are attributed only if they are refused. Inferences of other namespaces that are not `shared` with that
    of an access get none of its requests, so they have no part in them: a stranger's requests must not scale them.
    """
    demands: dict[str, RouteDemand] = {}
    for access in accesses:
        may_use = partial(_may_use, access.key.namespace, shared)
        protection = access.spec.protection
        for route in access.spec.routes:
            weights = {
                resolve_shared_name(target.inference, access.key.namespace): target.weight
                for target in route.targets
            }
            weights = {key: weight for key, weight in weights.items() if may_use(key)}
            total = sum(weights.values())
            name = f"access/{access.key}/{route.name}"
            demands[name] = RouteDemand(
                {key: weight / total for key, weight in weights.items()} if total else {},
                None if route.value is None else float(route.value),
                protection is not None and protection.admission_control is not None,
                required=frozenset()
                if route.pipeline is None
                else frozenset(filter(may_use, _list_required(access, route.pipeline))),
            )
            if route.fallback is not None and route.fallback.value_percent is not None:
                fallback = resolve_shared_name(route.fallback.inference, access.key.namespace)
                if may_use(fallback):
                    demands[f"{name}{REDUCED}"] = _reduce_demand(
                        demands[name], fallback, route.fallback.value_percent / 100
                    )
    return demands


def _may_use(namespace: str, shared: SharedInferences, key: ObjectKey) -> bool:
    return key.namespace == namespace or namespace in shared.get(key, ())


def index_shared(inferences: Iterable[tuple[ObjectKey, Mapping[str, str]]]) -> SharedInferences:
    """Return the other namespaces that Inferences are shared with, from their keys and annotations."""
    shared = ((key, parse_shared_namespaces(annotations, key.namespace)) for key, annotations in inferences)
    return {key: namespaces for key, namespaces in shared if namespaces}


def _list_required(access: ModelAccess, pipeline: PipelineSpec) -> frozenset[ObjectKey]:
    """Return the Inferences without which a pipeline answers nothing."""
    return frozenset(
        resolve_shared_name(model.inference, access.key.namespace)
        for model in pipeline.models
        if model.inference is not None and not model.optional
    )


def _reduce_demand(demand: RouteDemand, fallback: ObjectKey, share: float) -> RouteDemand:
    """Return the demand of requests that the fallback answers, for `share` of their value.

    The targets lack what their own answers would have been worth beyond that.
    """
    value = demand.value or 0.0
    return RouteDemand(
        {fallback: 1.0}, value * share, demand.sheds, replace(demand, value=value * (1 - share))
    )


def list_unserved(routes: RouteDemands, route: str, answered: float) -> Iterable[tuple[ObjectKey, float]]:
    """Yield the Inferences that had no capacity for the answered requests of a route, with their requests per second."""
    demand = routes.get(route, _UNKNOWN).instead_of
    for key, share in demand.by_inference.items() if demand is not None else ():
        yield key, share * answered


def list_refused(routes: RouteDemands, route: str, refused: float) -> Iterable[tuple[ObjectKey, float]]:
    """Yield the Inferences whose capacity a route's refused requests needed, with their requests per second."""
    demand = routes.get(route, _UNKNOWN)
    for key in sorted(demand.required):
        yield key, refused
    for key, share in demand.by_inference.items():
        yield key, share * refused


def list_demand_shares(routes: RouteDemands) -> Iterable[DemandShare]:
    """Yield which part of each route's requests without an Envoy cluster counts for which Inference."""
    for route, demand in routes.items():
        is_reduced = demand.instead_of is not None
        outcome = RouteOutcome.REDUCED if is_reduced else RouteOutcome.REFUSED
        for key, ratio in (list_unserved if is_reduced else list_refused)(routes, route, 1.0):
            yield DemandShare(route, outcome, key, ratio)


def add_rest(
    classes: Iterable[ClassRates], offered_per_s: float, served_per_s: float = 0.0
) -> Sequence[ClassRates]:
    """Return the classes, and one without a value for what no route counted: calls of pipelines, mirrors and fallbacks."""
    counted = tuple(classes)
    offered = offered_per_s - sum(rates.offered_per_s for rates in counted)
    served = served_per_s - sum(rates.served_per_s for rates in counted)
    return (*counted, ClassRates(offered_per_s=max(offered, 0.0), served_per_s=max(served, 0.0)))


def average_value(pairs: Iterable[tuple[float, float]], otherwise: float) -> float:
    """Return the mean of (value, rate) pairs: exactly the value if there is only one, `otherwise` without any requests."""
    rated = [(value, rate) for value, rate in pairs if rate > 0]
    if len({value for value, _ in rated}) <= 1:
        return rated[0][0] if rated else otherwise
    return sum(value * rate for value, rate in rated) / sum(rate for _, rate in rated)


class ClassTotals:
    """Sums the rates of value classes by Inference, in requests per second; unknown routes add nothing."""

    def __init__(self, routes: RouteDemands) -> None:
        self._routes = routes
        self._totals: defaultdict[ObjectKey, dict[tuple[float | None, bool], ClassRates]] = defaultdict(dict)

    def add_answered(self, route: str, answered: float, served: float) -> None:
        """Add requests of a route that were answered by anyone, `served` of them by a model."""
        demand = self._routes.get(route, _UNKNOWN)
        for key, share in demand.by_inference.items():
            self._add_rates(
                demand, key, ClassRates(offered_per_s=answered * share, served_per_s=served * share)
            )
        if demand.instead_of is not None:
            for key, rate in list_unserved(self._routes, route, answered):
                self._add_rates(demand.instead_of, key, ClassRates(offered_per_s=rate, refused_per_s=rate))

    def add_shed(self, route: str, inference: ObjectKey, rate: float) -> None:
        """Add requests of a route that admission control rejected for an Inference."""
        demand = self._routes.get(route)
        if demand is not None:
            self._add_rates(demand, inference, ClassRates(offered_per_s=rate, refused_per_s=rate))

    def add_unserved(self, route: str, rate: float) -> None:
        """Add requests of a route without an available pod."""
        self.add_answered(route, rate, 0.0)

    def get_classes(self, inference: ObjectKey) -> tuple[ClassRates, ...]:
        """Return the classes of an Inference; those of requests in flight or cancelled are unknown."""
        return tuple(self._totals.get(inference, {}).values())

    def _add_rates(self, demand: RouteDemand, inference: ObjectKey, rates: ClassRates) -> None:
        classes, kind = self._totals[inference], (demand.value, demand.sheds)
        before = classes.get(kind, ClassRates(demand.value, demand.sheds))
        classes[kind] = ClassRates(
            demand.value,
            demand.sheds,
            before.offered_per_s + rates.offered_per_s,
            before.served_per_s + rates.served_per_s,
            before.refused_per_s + rates.refused_per_s,
        )
