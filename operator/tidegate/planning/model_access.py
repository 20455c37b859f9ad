"""ModelAccess: its status, from what routing makes of it and what the proxies acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.conditions import ConditionType, ObservedCondition, merge
from tidegate.api.model_access import ModelAccess, ModelAccessStatus, Proxies, RouteStatus, TargetStatus
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Plan
from tidegate.planning.serving_status import Verdict, condition, standing
from tidegate.routing.planner import AccessPlan, PlannedRoute

_AGAIN: Final = timedelta(seconds=2)
"""A net only: whatever a proxy accepts or refuses wakes the objects that it is about."""
_USERS_TO_MEND: Final = frozenset({Reason.HOST_CONFLICT, Reason.SERVED_NAME_MISMATCH})
"""Refusals that no object still to come can cure; a missing target may simply not be applied yet."""


@dataclass(frozen=True, slots=True)
class ProxyView:
    """What one connected proxy runs of this object."""

    node: str
    generation: int | None
    """The object's generation in the configuration that the proxy has accepted; None: it has none of it."""
    nack: str | None = None
    """Why the proxy refused the newest configuration, in Envoy's words."""


@dataclass(frozen=True, slots=True)
class AccessObserved:
    """Everything that the status of a ModelAccess is made from."""

    access: ModelAccess
    now: datetime
    routing: AccessPlan
    """What the proxies are told, from the very function that the xDS server uses."""
    proxies: Sequence[ProxyView] | None
    """None when no xDS server answered."""
    gateway: str = ""
    """Host and port at which clients inside the cluster reach the gateway."""


def plan_model_access(observed: AccessObserved) -> Plan:
    """The status; a ModelAccess has no children, its configuration goes to the proxies through xDS."""
    access = observed.access
    generation = access.metadata.generation
    programmed, targets = _programmed(observed), _targets(access, observed.routing)
    answers = _answers(observed.routing)
    ready = next((verdict for verdict in (answers, programmed) if not verdict.holds), programmed)
    said = (
        *standing(_refused(observed.routing) or ready, generation),
        condition(ConditionType.PROGRAMMED, programmed, generation),
        condition(ConditionType.TARGETS_READY, targets, generation),
    )
    merged = merge(access.status.conditions, said, observed.now)
    status = ModelAccessStatus(
        observed_generation=generation,
        url=f"http://{observed.gateway}" if observed.gateway else None,
        grpc_target=observed.gateway or None,
        routes=tuple(_route(route) for route in observed.routing.routes),
        proxies=_proxies(observed),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    return Plan(status=status.dump(), requeue_after=None if programmed.holds else _AGAIN)


def _runs(proxy: ProxyView, generation: int) -> bool:
    return proxy.generation is not None and proxy.generation >= generation


def _proxies(observed: AccessObserved) -> Proxies:
    if observed.proxies is None:
        return observed.access.status.proxies
    generation = observed.access.metadata.generation
    acked = sum(_runs(proxy, generation) for proxy in observed.proxies)
    return Proxies(total=len(observed.proxies), acked=acked)


def _programmed(observed: AccessObserved) -> Verdict:
    """Whether every connected proxy has acknowledged this generation."""
    if observed.proxies is None:
        return Verdict(
            False, Reason.XDS_UNREACHABLE, "no xDS server answers, so what the proxies run is not known"
        )
    if not observed.proxies:
        return Verdict(False, Reason.NO_PROXIES, "no proxy is connected to any xDS server")
    generation = observed.access.metadata.generation
    missing = [proxy for proxy in observed.proxies if not _runs(proxy, generation)]
    if not missing:
        return Verdict(True, Reason.PROGRAMMED, f"every connected proxy runs generation {generation}")
    refused = next((proxy for proxy in missing if proxy.nack), None)
    if refused is not None:
        return Verdict(False, Reason.PROXY_REJECTED, f"proxy {refused.node}: {refused.nack}", stalled=True)
    there = len(observed.proxies) - len(missing)
    message = f"{there} of {len(observed.proxies)} proxies run generation {generation}"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)


def _refused(routing: AccessPlan) -> Verdict | None:
    """The first part of the spec that the gateways leave out, if there is one."""
    first = next(iter(sorted(routing.refusals)), None)
    if first is None:
        return None
    message = f"{first.part}: {first.message}"
    return Verdict(False, first.reason, message, stalled=first.reason in _USERS_TO_MEND)


def _targets(access: ModelAccess, routing: AccessPlan) -> Verdict:
    """Whether everything that is to get traffic exists and has ready endpoints."""
    refused = _refused(routing)
    if refused is not None and refused.reason is not Reason.HOST_CONFLICT:
        return refused
    wanted = {target.inference for route in access.spec.routes for target in route.targets if target.weight}
    have = {target.inference for route in routing.routes for target in route.targets if target.endpoints}
    if wanted <= have:
        return Verdict(True, Reason.TARGETS_READY, "every target with weight has ready endpoints")
    missing = min(wanted - have)
    return Verdict(False, Reason.TARGET_NOT_READY, f"Inference {missing} has no ready endpoint")


def _answers(routing: AccessPlan) -> Verdict:
    """Whether every route can answer; one with a target left serves on without the others."""
    for route in routing.routes:
        if not any(target.endpoints for target in route.targets):
            message = f"no target of route {route.name} has a ready endpoint"
            return Verdict(False, Reason.TARGET_NOT_READY, message)
    return Verdict(True, Reason.TARGETS_READY, "every route answers")


def _route(route: PlannedRoute) -> RouteStatus:
    return RouteStatus(
        name=route.name,
        targets=tuple(
            TargetStatus(inference=target.inference, weight=target.weight, endpoints=target.endpoints)
            for target in route.targets
        ),
    )
