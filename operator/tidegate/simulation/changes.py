"""Change the manifests of a simulated day as a what-if asks, before anything is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from tidegate.allocation.errors import InvalidInputError
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource
from tidegate.api.what_if import DayWhatIf, InferenceChange, LostNodes
from tidegate.errors import InvalidSpecError
from tidegate.resources.names import RECORDED_NODES_ANNOTATION, RECORDED_SLICES_ANNOTATION
from tidegate.simulation.scenario import NodeOutage
from tidegate.simulation.trace import DemandTrace

_SHOWN = 5
_MAX_LOST = 5_000
"""Nodes that a day may lose: their replicas are lost node by node."""

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class SimulatedDay:
    """The manifests of a pool and its Inferences, and their demand."""

    pool: ComputePool
    inferences: Sequence[Inference]
    trace: DemandTrace


def change_day(day: SimulatedDay, changes: DayWhatIf) -> SimulatedDay:
    """Return the day with the changes of a what-if, without its lost nodes.

    Raises InvalidInputError for a name that does not exist, and for a spec that would be invalid.
    """
    by_name = {change.inference: change for change in changes.inferences}
    _check_names("inferences", by_name, [str(inference.key) for inference in day.inferences])
    return SimulatedDay(
        _change_pool(day.pool, changes),
        tuple(_change_inference(inference, by_name.get(str(inference.key))) for inference in day.inferences),
        _change_trace(day, changes.factor, by_name),
    )


def place_outages(losses: Sequence[LostNodes], nodes: int) -> tuple[NodeOutage, ...]:
    """Return the outages of a what-if: each loss takes other nodes. Raises InvalidInputError if they are too few."""
    lost = sum(loss.nodes for loss in losses)
    if lost > nodes:
        raise InvalidInputError(
            "lostNodes", f"takes {lost} nodes, the pool has {nodes}: lose fewer, or give more nodes"
        )
    if lost > _MAX_LOST:
        raise InvalidInputError("lostNodes", f"takes {lost} nodes, more than {_MAX_LOST}: lose fewer")
    outages: list[NodeOutage] = []
    for loss in losses:
        start_s = parse_duration(loss.after).total_seconds()
        end_s = start_s + parse_duration(loss.lasting).total_seconds()
        first = len(outages)
        outages += [NodeOutage(first + number, start_s, end_s) for number in range(loss.nodes)]
    return tuple(sorted(outages, key=lambda outage: outage.start_s))


def _change_pool(pool: ComputePool, changes: DayWhatIf) -> ComputePool:
    body = pool.dump()
    _check_names(
        "events",
        [change.event for change in changes.events],
        [event.name for event in pool.spec.policy.events],
    )
    counts = {RECORDED_SLICES_ANNOTATION: changes.slices, RECORDED_NODES_ANNOTATION: changes.nodes}
    annotations = {name: str(count) for name, count in counts.items() if count is not None}
    body["metadata"]["annotations"] = {**pool.metadata.annotations, **annotations}
    policy: dict[str, Any] = body["spec"]["policy"]
    if changes.dwell is not None:
        policy["dwell"] = changes.dwell
    if changes.node_loss is not None:
        policy["nodeLoss"]["mode"] = changes.node_loss
    factors = {change.event: change.factor for change in changes.events}
    for event in policy["events"]:
        if event["name"] in factors:
            event["factor"] = _format_decimal(factors[event["name"]])
    for change in changes.tiers:
        bounds = {"floor": change.floor, "ceiling": change.ceiling}
        tier = body["spec"]["tiers"].setdefault(change.tier.value, {})
        tier |= {name: slices for name, slices in bounds.items() if slices is not None}
    return _parse_changed(ComputePool, body)


def _change_inference(inference: Inference, change: InferenceChange | None) -> Inference:
    if change is None:
        return inference
    body = inference.dump()
    spec: dict[str, Any] = body["spec"]
    bounds = {"minReplicas": change.min_replicas, "maxReplicas": change.max_replicas}
    changed = {name: replicas for name, replicas in bounds.items() if replicas is not None}
    if changed:
        fixed = spec.pop("replicas", None)
        spec["scaling"] = {
            "minReplicas": fixed,
            "maxReplicas": fixed,
            **(spec.get("scaling") or {}),
            **changed,
        }
    if change.value is not None:
        spec["value"] = {**(spec.get("value") or {}), "perRequest": _format_decimal(change.value)}
    return _parse_changed(Inference, body)


def _change_trace(day: SimulatedDay, factor: float, changes: Mapping[str, InferenceChange]) -> DemandTrace:
    """Return the trace with other demand; that of an offline Inference that has no column stays what it may use."""
    rates = {
        name: _change_rates(values, factor, changes.get(name)) for name, values in day.trace.rates.items()
    }
    for name, change in changes.items():
        if change.demand is not None and name not in rates:
            rates[name] = (change.demand,) * len(day.trace.times)
        if change.factor is not None and name not in rates:
            raise InvalidInputError(
                f"inferences: factor of {name}", "has no recorded demand to multiply: give demand instead"
            )
    return replace(day.trace, rates=rates)


def _change_rates(
    rates: tuple[float | None, ...], factor: float, change: InferenceChange | None
) -> tuple[float | None, ...]:
    if change is not None and change.demand is not None:
        return (change.demand,) * len(rates)
    times = factor if change is None or change.factor is None else change.factor
    return rates if times == 1 else tuple(None if rate is None else rate * times for rate in rates)


def _parse_changed(kind: type[ResourceT], body: Mapping[str, object]) -> ResourceT:
    try:
        return kind.parse(body)
    except InvalidSpecError as error:
        resource = cast("Mapping[str, str]", body["metadata"])
        raise InvalidInputError(f"{kind.KIND} {resource['name']} with these changes", str(error)) from error


def _check_names(path: str, names: Sequence[str] | Mapping[str, Any], existing: Sequence[str]) -> None:
    for name in names:
        if name not in existing:
            listed = ", ".join(sorted(existing)[:_SHOWN]) or "none"
            raise InvalidInputError(path, f"there is no {name} in the pool; there are: {listed}")


def _format_decimal(number: float) -> str:
    return f"{number:.9f}".rstrip("0").rstrip(".")
