"""Read the demand of a pool's Inferences for a past time, with what the cluster knows of the pool, as a day to simulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.port import Manifest
from tidegate.kube.store import key_of
from tidegate.planning.pools.claims import read_assigned_pod
from tidegate.resources.names import (
    INFERENCE_LABEL,
    RECORDED_DRAIN_ANNOTATION,
    RECORDED_LOAD_ANNOTATION,
    RECORDED_NODES_ANNOTATION,
    RECORDED_SLICES_ANNOTATION,
)
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.trace import DemandTrace
from tidegate.telemetry.recorded_rates import PrometheusRecording

Rates = Mapping[ObjectKey, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A time to record: `count` steps from `begin` on."""

    begin: datetime
    step: timedelta
    count: int

    @property
    def end_time(self) -> datetime:
        """Return the end of the last step."""
        return self.begin + self.count * self.step


@dataclass(frozen=True, slots=True)
class RecordedObjects:
    """A pool, the Inferences that are placed in it, sorted by key, and the median load and drain times of their pods in seconds."""

    pool: ComputePool
    inferences: Sequence[Inference]
    loads: Mapping[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    drains: Mapping[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])


@dataclass(frozen=True, slots=True)
class PoolRecording:
    """The rates of the Inferences `keys`; `skipped` have no capacity, and their slices do not count."""

    objects: RecordedObjects
    span: RecordedSpan
    keys: frozenset[ObjectKey]
    skipped: Sequence[Inference]
    simulated: Sequence[Inference]
    slices: int
    nodes: int
    rates: Rates

    def make_manifests(self) -> Sequence[Manifest]:
        """Return the manifests of the pool and the simulated Inferences, with what the cluster measured as annotations."""
        counts = {RECORDED_SLICES_ANNOTATION: str(self.slices), RECORDED_NODES_ANNOTATION: str(self.nodes)}
        manifests = [_make_manifest(self.objects.pool, counts)]
        for inference in self.simulated:
            times = {
                RECORDED_LOAD_ANNOTATION: self.objects.loads.get(inference.key),
                RECORDED_DRAIN_ANNOTATION: self.objects.drains.get(inference.key),
            }
            annotations = {name: f"{time_s:.0f}s" for name, time_s in times.items() if time_s is not None}
            manifests.append(_make_manifest(inference, annotations))
        return manifests

    def make_day(self) -> SimulatedDay:
        """Return the day as `tidegate simulate` reads it from the files of `tidegate record`."""
        pool, *inferences = self.make_manifests()
        begin_s, step_s = self.span.begin.timestamp(), self.span.step.total_seconds()
        times = tuple(begin_s + number * step_s for number in range(self.span.count))
        rates = {str(key): tuple(values) for key, values in self.rates.items()}
        return SimulatedDay(
            ComputePool.parse(pool), tuple(map(Inference.parse, inferences)), DemandTrace(times, rates)
        )


def select_placed(pool: str, inferences: Iterable[Inference]) -> Sequence[Inference]:
    """Return the Inferences that are placed in a pool, sorted by key."""
    placed = (
        item
        for item in inferences
        if item.spec.placement is not None and item.spec.placement.find_share(pool) is not None
    )
    return sorted(placed, key=lambda inference: inference.key)


def measure_loads(
    pods: Iterable[Manifest], decisions: Iterable[AllocationDecision]
) -> Mapping[ObjectKey, float]:
    """Return the median time in seconds until a new replica of each Inference served, from when its slices were free.

    It is that of the decisions that gave slices to this Inference alone. Without one it is that of its running pods: those
    may be few, and may have started together with many others.
    """
    started: dict[ObjectKey, list[float]] = {}
    for body in pods:
        pod = read_assigned_pod(body)
        if pod is not None and pod.load_s is not None:
            name = body["metadata"]["labels"].get(INFERENCE_LABEL, "")
            started.setdefault(ObjectKey(key_of(body).namespace, name), []).append(pod.load_s)
    decided: dict[ObjectKey, list[float]] = {}
    for decision in decisions:
        moves, outcome = decision.spec.moves, decision.status.outcome
        takers = [move for move in moves if move.after > move.before]
        if outcome is None or outcome.applied_at is None or len(takers) != 1 or takers[0].promoted:
            continue
        reclaim_s = outcome.reclaim_seconds if len(moves) > 1 else 0.0
        if reclaim_s is not None:
            load_s = (outcome.applied_at - decision.spec.at).total_seconds() - reclaim_s
            decided.setdefault(ObjectKey.parse(takers[0].inference), []).append(max(load_s, 0.0))
    return {key: median(seconds) for key, seconds in {**started, **decided}.items()}


def measure_drains(decisions: Iterable[AllocationDecision]) -> Mapping[ObjectKey, float]:
    """Return the median time in seconds from a decision until an Inference had freed the slices that it was to give.

    A decision has one such time, so only those that take slices from a single Inference count.
    """
    measured: dict[ObjectKey, list[float]] = {}
    for decision in decisions:
        outcome = decision.status.outcome
        givers = [move.inference for move in decision.spec.moves if move.after < move.before]
        if outcome is not None and outcome.reclaim_seconds is not None and len(givers) == 1:
            measured.setdefault(ObjectKey.parse(givers[0]), []).append(outcome.reclaim_seconds)
    return {key: median(seconds) for key, seconds in measured.items()}


def count_simulated_slices(objects: RecordedObjects) -> int:
    """Return the healthy slices of the pool without those of Inferences that have no capacity."""
    pool, skipped = objects.pool, filter(_cannot_simulate, objects.inferences)
    used = sum(_count_slices(inference, pool.metadata.name) for inference in skipped)
    return max(pool.status.slices.healthy - used, 0)


async def read_recording(
    source: PrometheusRecording, objects: RecordedObjects, span: RecordedSpan
) -> PoolRecording:
    """Read the rates. Raises TidegateError that names what is missing."""
    pool, name = objects.pool, objects.pool.metadata.name
    skipped = [inference for inference in objects.inferences if _cannot_simulate(inference)]
    simulated = [inference for inference in objects.inferences if not _cannot_simulate(inference)]
    keys = frozenset(inference.key for inference in simulated if inference.spec.tier is not Tier.OFFLINE)
    if not keys:
        message = (
            f"ComputePool {name} has no realtime or nearline Inference with spec.capacity, which tidegate calibrate "
            "measures: there is no demand to record"
        )
        raise PermanentError(message)
    slices = count_simulated_slices(objects)
    if slices == 0:
        message = f"ComputePool {name} has no healthy slices to simulate"
        raise PermanentError(message)
    rates = await source.read_rates(keys, span.begin, span.count, span.step)
    if all(rate is None for steps in rates.values() for rate in steps):
        message = (
            f"{source.name} has no rate of the Inferences of ComputePool {name} between "
            f"{format_timestamp(span.begin)} and {format_timestamp(span.end_time)}: check that it scrapes the gateways"
        )
        raise PermanentError(message)
    nodes = max(pool.status.nodes, 1)
    return PoolRecording(objects, span, keys, skipped, simulated, slices, nodes, rates)


def _cannot_simulate(inference: Inference) -> bool:
    return explain_skip(inference) is not None


def explain_skip(inference: Inference) -> str | None:
    """Return why an Inference is not simulated; None if it is."""
    placement = inference.spec.placement
    if placement is not None and len(placement.pool_shares) > 1:
        return "runs in several pools, and a simulation has one"
    if inference.spec.tier is not Tier.OFFLINE and inference.spec.capacity is None:
        return "has no spec.capacity; measure it with tidegate calibrate"
    return None


def _count_slices(inference: Inference, pool: str) -> int:
    placement = inference.spec.placement
    share = placement.find_share(pool) if placement is not None else None
    if share is None:
        return 0
    several = placement is not None and len(placement.pool_shares) > 1
    pods = inference.count_pool_replicas(share).replicas if several else inference.status.replicas
    return pods * share.slices


def _make_manifest(resource: ComputePool | Inference, annotations: Mapping[str, str]) -> Manifest:
    key = resource.key
    metadata: dict[str, Any] = {"name": key.name}
    if key.namespace:
        metadata["namespace"] = key.namespace
    if annotations:
        metadata["annotations"] = dict(annotations)
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return {"apiVersion": API_VERSION, "kind": resource.KIND, "metadata": metadata, "spec": spec}
