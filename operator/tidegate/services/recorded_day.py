"""Read the demand of a pool's Inferences for a past time, with what the cluster knows of the pool, as a day to simulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.port import Manifest
from tidegate.kube.store import key_of
from tidegate.planning.allocator.replica_times import ReplicaTimes, measure_decided_times
from tidegate.planning.pools.claims import AssignedPod, find_median_load, read_assigned_pod
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
    """A pool, the Inferences that are placed in it, sorted by key, and the times that are measured of them."""

    pool: ComputePool
    inferences: Sequence[Inference]
    times: Mapping[ObjectKey, ReplicaTimes] = field(default_factory=dict[ObjectKey, ReplicaTimes])

    def get_times(self, key: ObjectKey) -> ReplicaTimes:
        """Return the times of one Inference."""
        return self.times.get(key, ReplicaTimes())


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
            times = self.objects.get_times(inference.key)
            seconds = {RECORDED_LOAD_ANNOTATION: times.load_s, RECORDED_DRAIN_ANNOTATION: times.drain_s}
            annotations = {name: f"{time_s:.0f}s" for name, time_s in seconds.items() if time_s is not None}
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


def make_recorded_objects(
    pool: ComputePool,
    inferences: Iterable[Inference],
    pods: Iterable[Manifest],
    decisions: Iterable[AllocationDecision],
) -> RecordedObjects:
    """Return a pool with those of the Inferences that are placed in it, and the times that its pods and decisions show.

    `pods` have the label of the pool; of `decisions`, those of other pools do not count.
    """
    name = pool.metadata.name
    placed = select_placed(name, inferences)
    decided = measure_decided_times(decision for decision in decisions if decision.spec.pool == name)
    pod_loads = _measure_pod_loads(pods)
    times = {
        inference.key: decided.get(str(inference.key), ReplicaTimes()).include_pods(
            pod_loads.get(inference.key)
        )
        for inference in placed
    }
    return RecordedObjects(pool, placed, times)


def select_placed(pool: str, inferences: Iterable[Inference]) -> Sequence[Inference]:
    """Return the Inferences that are placed in a pool, sorted by key."""
    placed = (
        item
        for item in inferences
        if item.spec.placement is not None and item.spec.placement.find_share(pool) is not None
    )
    return sorted(placed, key=lambda inference: inference.key)


def _measure_pod_loads(pods: Iterable[Manifest]) -> Mapping[ObjectKey, float]:
    by_key: dict[ObjectKey, list[AssignedPod]] = {}
    for body in pods:
        if (pod := read_assigned_pod(body)) is not None:
            name = body["metadata"]["labels"].get(INFERENCE_LABEL, "")
            by_key.setdefault(ObjectKey(key_of(body).namespace, name), []).append(pod)
    measured = {key: find_median_load(assigned) for key, assigned in by_key.items()}
    return {key: load_s for key, load_s in measured.items() if load_s is not None}


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
