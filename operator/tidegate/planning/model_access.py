"""ModelAccess: its status, from what the proxies acknowledged and what the targets have ready."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.conditions import ConditionType, ObservedCondition, merge
from tidegate.api.model_access import (
    ModelAccess,
    ModelAccessStatus,
    Proxies,
    Route,
    RouteStatus,
    TargetStatus,
)
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Plan
from tidegate.planning.serving_status import Verdict, condition, standing

_PROGRAMMING: Final = timedelta(milliseconds=200)
_SILENT: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ProxyView:
    """What one connected proxy runs of this object."""

    node: str
    generation: int | None
    """The object's generation in the configuration that the proxy has accepted; None: it has none of it."""
    nack: str | None = None
    """Why the proxy refused the newest configuration, in Envoy's words."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """What a route's target has to offer."""

    served_name: str
    endpoints: int


@dataclass(frozen=True, slots=True)
class AccessObserved:
    """Everything that the status of a ModelAccess is made from."""

    access: ModelAccess
    now: datetime
    targets: Mapping[str, TargetView] = field(default_factory=dict[str, TargetView])
    """By name of the Inference; one that does not exist is absent."""
    proxies: Sequence[ProxyView] | None = None
    """None when no xDS server answered."""
    host_conflicts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Hosts of this object that an older one has, and which."""
    gateway: str = ""
    """Host and port at which clients inside the cluster reach the gateway."""


def plan_access(observed: AccessObserved) -> Plan:
    """The status; a ModelAccess has no children, its configuration goes to the proxies through xDS."""
    access = observed.access
    generation = access.metadata.generation
    programmed, targets = _programmed(observed), _targets(observed)
    ready = next(
        (v for v in (_conflict(observed), targets, programmed) if v is not None and not v.holds), programmed
    )
    said = (
        *standing(ready, generation),
        condition(ConditionType.PROGRAMMED, programmed, generation),
        condition(ConditionType.TARGETS_READY, targets, generation),
    )
    merged = merge(access.status.conditions, said, observed.now)
    status = ModelAccessStatus(
        observed_generation=generation,
        url=f"http://{observed.gateway}" if observed.gateway else None,
        grpc_target=observed.gateway or None,
        routes=tuple(_route(route, observed.targets) for route in access.spec.routes),
        proxies=_proxies(observed),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    return Plan(status=status.dump(), requeue_after=_requeue(observed, programmed))


def _requeue(observed: AccessObserved, programmed: Verdict) -> timedelta | None:
    if programmed.holds:
        return None
    return _PROGRAMMING if observed.proxies else _SILENT


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
        message = f"all {len(observed.proxies)} proxies run generation {generation}"
        return Verdict(True, Reason.PROGRAMMED, message)
    refused = next((proxy for proxy in missing if proxy.nack), None)
    if refused is not None:
        return Verdict(False, Reason.PROXY_REJECTED, f"proxy {refused.node}: {refused.nack}", stalled=True)
    there = len(observed.proxies) - len(missing)
    message = f"{there} of {len(observed.proxies)} proxies run generation {generation}"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)


def _targets(observed: AccessObserved) -> Verdict:
    """Whether everything that is to get traffic exists, has ready endpoints and serves one name."""
    weighted = [
        target.inference for route in observed.access.spec.routes for target in route.targets if target.weight
    ]
    named = {target.inference for route in observed.access.spec.routes for target in route.targets}
    missing = sorted(named - observed.targets.keys())
    if missing:
        message = f"Inference {missing[0]} does not exist in namespace {observed.access.metadata.namespace}"
        return Verdict(False, Reason.TARGET_NOT_FOUND, message)
    names = {name: view.served_name for name, view in sorted(observed.targets.items()) if name in named}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{name} serves '{served}'" for name, served in names.items())
        message = f"all targets must serve one model name, but {listed}: set spec.model.name"
        return Verdict(False, Reason.SERVED_NAME_MISMATCH, message, stalled=True)
    empty = next((name for name in weighted if observed.targets[name].endpoints == 0), None)
    if empty is not None:
        return Verdict(False, Reason.TARGET_NOT_READY, f"Inference {empty} has no ready endpoint")
    return Verdict(True, Reason.TARGETS_READY, "every target with weight has ready endpoints")


def _conflict(observed: AccessObserved) -> Verdict | None:
    if not observed.host_conflicts:
        return None
    host, holder = sorted(observed.host_conflicts.items())[0]
    return Verdict(
        False, Reason.HOST_CONFLICT, f"host {host} belongs to the older ModelAccess {holder}", stalled=True
    )


def _route(route: Route, targets: Mapping[str, TargetView]) -> RouteStatus:
    """Effective weights: a target with no endpoint has none as long as another of its route can answer."""

    def endpoints(name: str) -> int:
        return targets[name].endpoints if name in targets else 0

    answers = any(target.weight and endpoints(target.inference) for target in route.targets)
    return RouteStatus(
        name=route.name,
        targets=tuple(
            TargetStatus(
                inference=target.inference,
                weight=target.weight if endpoints(target.inference) or not answers else 0,
                endpoints=endpoints(target.inference),
            )
            for target in route.targets
        ),
    )
