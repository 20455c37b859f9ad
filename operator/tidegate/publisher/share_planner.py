"""Plans every second, from what clients send and what the ready pods can answer: the admitted shares of priced routes, and spares.

Spares that Inferences share get what the decided replicas have no capacity for.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Final

import structlog

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import PipelineSpec
from tidegate.api.shared_names import resolve_shared_name
from tidegate.planning.access.admitted_shares import ReducedAnswer, RouteLoad, plan_shares
from tidegate.planning.access.value_classes import RouteDemand, SharedInferences, index_routes, index_shared
from tidegate.planning.allocator.measured_capacity import build_curve
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.routing.ir import REDUCED, name_reduced
from tidegate.routing.route_targets import is_priced
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.route_rates import RouteRates
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.shares import AdmittedShares

_PERIOD_S: Final = 1.0
_ADMITTED_LOAD: Final = 0.97
"""The part of the capacity that is admitted: at 1, the queue that a moment of stalling leaves would never drain."""
_HELD_NEED: Final = 0.25
"""The needed replicas stay as they are while they are more by at most this, so that chance changes nothing.

By as much as this less than was decided, spares that serve go on with the least part.
"""
_LEAST_EXCESS: Final = 1e-6
"""What is more than was decided, before it is rounded up to tenths."""
_SUBJECT: Final = "admitted shares"
"""Their name among the objects whose planning failed."""
_ACCESS_SUBJECT: Final = f"{_SUBJECT} of "

log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlanner:
    """Reads the gateways and publishes the shares, as long as an access is priced or Inferences share spares."""

    inputs: RoutingInputs
    shares: AdmittedShares
    metrics: XdsMetrics
    find_gateways: Callable[[], Awaitable[Sequence[ScrapeTarget]]]
    rates: RouteRates = field(default_factory=RouteRates)

    async def run_rounds(self) -> None:
        """Plan every second, until cancelled. A round that fails renews nothing, so gateways end up admitting everything.

        Without rates spares serve for missing replicas alone.
        """
        while True:
            await asyncio.sleep(_PERIOD_S)
            with self.inputs.faults.isolate(_SUBJECT):
                try:
                    await self.update_shares()
                except OSError as error:
                    log.warning("shares_not_planned", error=str(error))
                    self.inputs.put_needed({})

    async def update_shares(self) -> None:
        """Read the gateways and publish the shares that follow; nothing if no gateway can be read. Raises OSError."""
        accesses = self.inputs.list_accesses()
        has_priced = any(is_priced(access) for access in accesses)
        if not has_priced:
            self._clear_faults()
            self._publish_shares({})
        if not has_priced and not self.inputs.has_spares:
            self.inputs.put_needed({})
            return
        rates = await self.rates.read_gateways(await self.find_gateways())
        if rates is None:
            self.inputs.put_needed({})
            return
        inferences = self.inputs.list_inferences()
        loads = self._build_loads(accesses, inferences, rates)
        self.inputs.put_needed(self._find_needed(loads, inferences))
        if has_priced:
            priced = {key for load in loads if load.priced for key in load.limiting_inferences}
            capacities = self._sum_capacities(
                inference for inference in inferences if inference.key in priced
            )
            self._publish_shares(plan_shares(loads, capacities, self.shares.by_route))

    def _build_loads(
        self, accesses: Sequence[ModelAccess], inferences: Sequence[Inference], rates: Mapping[str, float]
    ) -> list[RouteLoad]:
        """Return the loads of all accesses; one whose loads raise has none, and shows among the faults."""
        shared = index_shared((inference.key, inference.metadata.annotations) for inference in inferences)
        values = {inference.key: float(inference.spec.value.per_request) for inference in inferences}
        loads: list[RouteLoad] = []
        self._clear_faults()
        for access in accesses:
            with self.inputs.faults.isolate(f"{_ACCESS_SUBJECT}{access.key}"):
                loads += build_loads(access, values, rates, shared)
        return loads

    def _find_needed(
        self, loads: Iterable[RouteLoad], inferences: Iterable[Inference]
    ) -> Mapping[ObjectKey, float]:
        """Return how many replicas' work clients send, in tenths, where spares serve a part of it: more than was decided.

        Where they serve already, also a little less than was decided: endpoints change for no single second.
        """
        offered: defaultdict[ObjectKey, float] = defaultdict(float)
        for load in loads:
            for key, cost in load.costs.items():
                offered[key] += load.offered_per_s * cost
        needed: dict[ObjectKey, float] = {}
        for inference in inferences:
            key, capacity = inference.key, inference.spec.capacity
            if capacity is None or not self.inputs.has_spare(key):
                continue
            curve, before = build_curve(capacity), self.inputs.find_needed(key)
            count = curve.useful_work_of(offered[key])
            decided = inference.decided_replicas
            if before > decided and count >= decided - _HELD_NEED:
                count = max(count, decided + _LEAST_EXCESS)
            if isfinite(count) and count > decided:
                needed[key] = before if count <= before <= count + _HELD_NEED else ceil(10 * count) / 10
        return needed

    def _clear_faults(self) -> None:
        for subject in tuple(self.inputs.faults.failures):
            if subject.startswith(_ACCESS_SUBJECT):
                self.inputs.faults.clear(subject)

    def _sum_capacities(self, inferences: Iterable[Inference]) -> Mapping[ObjectKey, float]:
        """Return the requests per second to admit to the ready pods of each Inference, where their capacity was measured."""
        capacities: dict[ObjectKey, float] = {}
        for inference in inferences:
            if (capacity := inference.spec.capacity) is not None:
                curve, pods = build_curve(capacity), self.inputs.count_pods(inference.key)
                # Replicas of one pool slow each other down, and those of others do not.
                served = sum(relative * curve.rate_at(count) for relative, count in pods.items())
                capacities[inference.key] = _ADMITTED_LOAD * served
        return capacities

    def _publish_shares(self, shares: Mapping[str, float]) -> None:
        self.shares.publish_shares(shares)
        self.metrics.admitted_share.clear()
        for route, share in self.shares.by_route.items():
            self.metrics.admitted_share.labels(route).set(share)


def build_loads(
    access: ModelAccess,
    values: Mapping[ObjectKey, float],
    rates: Mapping[str, float],
    shared: SharedInferences,
) -> list[RouteLoad]:
    """Return the load of each route of an access with requests.

    `values`: what a request is worth by Inference; `rates`: requests per second by route; `shared` as for index_routes.
    """
    demands, priced = index_routes([access], shared), is_priced(access)
    loads: list[RouteLoad] = []
    for route in access.spec.routes:
        name = f"access/{access.key}/{route.name}"
        parts_alone = route.pipeline.separately_reduced if route.pipeline is not None else ()
        suffixes = ("", *(name_reduced(part) for part in ("", *(model.name for model in parts_alone))))
        offered = sum(rates.get(f"{name}{suffix}", 0.0) for suffix in suffixes)
        if not offered > 0:
            continue
        if route.pipeline is not None:
            loads.append(_build_pipeline_load(access, route, route.pipeline, offered, demands[name]))
            continue
        reduced = demands.get(f"{name}{REDUCED}")
        answer = (ReducedAnswer(reduced.by_inference, reduced.value or 0.0),) if reduced else ()
        costs, value = demands[name].by_inference, _find_value(demands[name], values)
        loads.append(RouteLoad(name, offered, costs, value, priced, answer))
    return loads


def _build_pipeline_load(
    access: ModelAccess, route: Route, pipeline: PipelineSpec, offered: float, demand: RouteDemand
) -> RouteLoad:
    """Return the load of a route that a pipeline answers: each of its Inferences answers a request for each of its models.

    Optional models limit nothing: requests are answered without them.
    With the fewest candidates, a request takes as much less of an Inference's capacity as it has fewer rows: for all models, or, where
    several have fewest candidates, for one of them.
    """
    required = {
        model.name: (key, model.candidates)
        for model in pipeline.models
        if model.inference is not None and not model.optional
        if (key := resolve_shared_name(model.inference, access.key.namespace)) in demand.required
    }

    def sum_costs(shortened: Container[str]) -> Mapping[ObjectKey, float]:
        costs: defaultdict[ObjectKey, float] = defaultdict(float)
        for name, (key, limit) in required.items():
            rows = limit.min_rows if limit is not None and name in shortened else None
            costs[key] += 1.0 if limit is None or rows is None else rows / limit.max_rows
        return costs

    value, percent = float(route.value or 1), pipeline.reduced_value_percent
    reduced: list[ReducedAnswer] = []
    if percent is not None:
        reduced.append(ReducedAnswer(sum_costs(required), value * percent / 100))
        for model in pipeline.separately_reduced:
            own = model.candidates.reduced_value_percent if model.candidates is not None else None
            worth = value * (percent if own is None else own) / 100
            reduced.append(ReducedAnswer(sum_costs({model.name}), worth, name_reduced(model.name)))
    name = f"access/{access.key}/{route.name}"
    return RouteLoad(name, offered, sum_costs(()), value, is_priced(access), tuple(reduced))


def _find_value(demand: RouteDemand, values: Mapping[ObjectKey, float]) -> float:
    """Return what a request of a route is worth: its own value, or the mean of its Inferences'."""
    if demand.value is not None:
        return demand.value
    return sum(share * values.get(key, 1.0) for key, share in demand.by_inference.items())


async def resolve_gateways(host: str, port: int) -> Sequence[ScrapeTarget]:
    """Return the gateways behind a headless Service. Raises OSError if the name does not resolve."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted({str(address[0]) for *_, address in answers})
    return [
        ScrapeTarget(address, f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
        for address in addresses
    ]
