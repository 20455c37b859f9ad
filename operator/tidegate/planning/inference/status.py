"""Build the status of an Inference from what its agents and pods report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.api.conditions import ConditionType, ObservedCondition, merge_conditions
from tidegate.api.inference import (
    FailureStatus,
    Inference,
    InferenceStatus,
    ModelVersions,
    PoolReplicas,
    ServedModel,
    SwapProgress,
    TensorMetadata,
    VersionMemoryStatus,
)
from tidegate.planning.inference.compiled_graph import describe_graph
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.pool_deployments import DeploymentSet, describe_retired
from tidegate.planning.inference.readiness import (
    ReadyInputs,
    judge_model,
    judge_placement,
    judge_readiness,
)
from tidegate.planning.inference.replicas import select_serving_pods
from tidegate.planning.inference.rollout import find_rolled_back
from tidegate.planning.inference.serving_status import (
    PlanRefusal,
    Verdict,
    format_selector,
    kstatus_conditions,
    make_condition,
)
from tidegate.planning.inference.side_conditions import (
    SideInputs,
    drop_side_conditions,
    make_side_conditions,
    make_side_events,
)
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.inference.version_swap import SwapPlan, serves_target
from tidegate.planning.plan import Event, EventType
from tidegate.planning.pods import PodView
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.inference import make_inference_selector
from tidegate_dataplane.contract import DesiredState


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """What the status of an Inference reports."""

    observed: InferenceObserved
    deployments: DeploymentSet
    target: DesiredState
    replicas: Sequence[ObservedReplica]
    swap: SwapPlan
    pods: Verdict
    """Whether the pods of all Deployments are ready."""
    stream_refusal: PlanRefusal | None = None
    """Why agents consume nothing although the spec names a stream."""


def build_status(inputs: StatusInputs) -> InferenceStatus:
    """Build the status from what agents and pods report."""
    observed, target, replicas, swap = inputs.observed, inputs.target, inputs.replicas, inputs.swap
    inference, pods = observed.inference, inputs.pods
    generation = inference.metadata.generation
    serving = _find_serving_version(observed, replicas, swap)
    model = judge_model(inference, target, _select_required(observed, target, replicas), swap, serving)
    placement = _describe_placement(observed.placement, inputs.deployments)
    side_inputs = SideInputs(
        inference, placement, observed.overrides, pods, observed.replicas, replicas, inputs.stream_refusal
    )
    ready_inputs = ReadyInputs(observed, model, pods, replicas, judge_placement(observed, inputs.deployments))
    conditions = (
        *kstatus_conditions(judge_readiness(ready_inputs), generation),
        make_condition(ConditionType.MODEL_LOADED, model, generation),
        *make_side_conditions(side_inputs),
    )
    previous = drop_side_conditions(side_inputs, inference.status.conditions)
    merged = merge_conditions(previous, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    pools = _list_pools(inputs)
    return InferenceStatus(
        observed_generation=generation,
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        spare_replicas=_count_spares(observed),
        pools=pools,
        pool_summary=_format_pools(pools),
        selector=format_selector(make_inference_selector(inference)),
        versions=ModelVersions(
            serving=serving,
            loaded=_list_loaded_versions(replicas),
            memory=_list_version_memory(replicas),
            target=str(target.version),
        ),
        model=_describe_model(inference, target, replicas),
        graph=describe_graph(inference, replicas),
        failure=_to_failure_status(swap),
        swap=_to_progress_status(swap),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _describe_placement(
    placement: PlacementResult | None, deployments: DeploymentSet
) -> PlacementResult | None:
    """Return the placement with what happens in pools that the spec does not name any more in its message."""
    retired = describe_retired(deployments)
    if placement is None or not retired:
        return placement
    verdict = replace(placement.verdict, message=placement.verdict.message + retired)
    return replace(placement, verdict=verdict)


def _list_pools(inputs: StatusInputs) -> tuple[PoolReplicas, ...]:
    """Return the replicas by pool; none for an Inference that names one pool and has pods in no other."""
    placement = inputs.observed.inference.spec.placement
    retired = inputs.deployments.retired
    if placement is None or (placement.pools is None and not retired):
        return ()
    by_pool = {item.placement.pool: item for item in inputs.deployments.desired if item.placement is not None}
    listed = [
        _count_pool(
            share.name, item.replicas if item is not None else 0, item.pods if item is not None else ()
        )
        for share in placement.pool_shares
        for item in (by_pool.get(share.name),)
    ]
    # The key of the list: a Deployment that was there before the Inference had a pool has none.
    unlisted = [item for item in retired if item.live.pool and item.live.pool not in by_pool]
    return (*listed, *(_count_pool(item.live.pool, item.replicas, item.pods) for item in unlisted))


def _count_pool(name: str, replicas: int, pods: Sequence[PodView]) -> PoolReplicas:
    ready = sum(pod.ready and not pod.terminating for pod in pods)
    return PoolReplicas(name=name, replicas=replicas, ready_replicas=ready)


def _format_pools(pools: Sequence[PoolReplicas]) -> str | None:
    """Return the ready and planned replicas by pool in words; None without pools."""
    return ", ".join(f"{pool.name} {pool.ready_replicas}/{pool.replicas}" for pool in pools) or None


def _count_spares(observed: InferenceObserved) -> int | None:
    """Return how many pods can answer and get no requests; None if no spares were decided."""
    if not observed.inference.decided_spares:
        return None
    available = sum(pod.ready and pod.is_reachable for pod in observed.pods)
    return available - len(select_serving_pods(observed.inference, observed.pods))


def _select_required(
    observed: InferenceObserved, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> Sequence[ObservedReplica]:
    """Return the replicas that count for ModelLoaded: without starting spares once all required replicas serve."""
    if not observed.inference.decided_spares:
        return replicas
    running = [replica for replica in replicas if replica.pod.ready or serves_target(replica, target)]
    return running if len(running) >= observed.required_pods else replicas


def _to_failure_status(swap: SwapPlan) -> FailureStatus | None:
    if swap.failure is None:
        return None
    failure = swap.failure.failure
    time = swap.failure.time.replace(microsecond=0)
    return FailureStatus(
        version=str(failure.version),
        reason=failure.reason.value,
        message=failure.message,
        time=time,
        attempts=swap.failure.attempts,
    )


def _to_progress_status(swap: SwapPlan) -> SwapProgress | None:
    progress = swap.progress
    if progress is None:
        return None
    return SwapProgress(
        version=str(progress.version),
        replicas=progress.serving,
        fetching=progress.fetching,
        since=progress.since.replace(microsecond=0),
        started=progress.started.replace(microsecond=0) if progress.started is not None else None,
    )


def _find_serving_version(
    observed: InferenceObserved, replicas: Sequence[ObservedReplica], swap: SwapPlan
) -> str | None:
    """Return the version that answers: during a swap the committed one, until every replica has left it."""
    versions = {
        replica.report.serving
        for replica in replicas
        if replica.report is not None and replica.report.serving is not None
    }
    if versions:
        return str(swap.committed.version if swap.committed.version in versions else max(versions))
    silent = any(replica.report is None for replica in replicas)
    replica_uids = {replica.pod.uid for replica in replicas}
    predecessors = any(
        pod.ready and not pod.terminating for pod in observed.pods if pod.uid not in replica_uids
    )
    # No report names a serving version: the last status is the best information.
    return observed.inference.status.versions.serving if silent or predecessors else None


def _list_loaded_versions(replicas: Sequence[ObservedReplica]) -> tuple[str, ...]:
    """Return the versions that every serving replica has loaded.

    A pod that still starts has none and is left out, so that it removes no version from the list.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    loaded = [set(report.loaded) for report in reports if report.serving is not None]
    return tuple(str(version) for version in sorted(set.intersection(*loaded))) if loaded else ()


def _list_version_memory(replicas: Sequence[ObservedReplica]) -> tuple[VersionMemoryStatus, ...]:
    """Return the most memory that each version takes on any replica, rounded so that status changes rarely."""
    largest: dict[int, int] = {}
    for replica in replicas:
        for usage in replica.report.memory if replica.report is not None else ():
            largest[usage.version] = max(largest.get(usage.version, 0), usage.bytes)
    return tuple(
        VersionMemoryStatus(version=str(version), bytes=_round_up(bytes_used))
        for version, bytes_used in sorted(largest.items())
    )


def _round_up(count: int) -> int:
    """Round up to the next number with four significant binary digits: by an eighth at most."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


def _describe_model(
    inference: Inference, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> ServedModel | None:
    for replica in replicas:
        if replica.report is not None and replica.report.serving == target.version:
            inputs, outputs = (
                tuple(TensorMetadata.model_validate(spec.model_dump()) for spec in specs)
                for specs in (replica.report.inputs, replica.report.outputs)
            )
            return ServedModel(name=inference.served_name, inputs=inputs, outputs=outputs)
    return inference.status.model


def list_events(previous: InferenceStatus, current: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    failure, previous_failure = current.failure, previous.failure
    if failure is not None and (
        previous_failure is None
        or (failure.version, failure.message) != (previous_failure.version, previous_failure.message)
    ):
        events.append(
            Event(EventType.WARNING, failure.reason, f"Version {failure.version}: {failure.message}")
        )
    rolled_back_condition = find_rolled_back(current.conditions)
    if rolled_back_condition is not None and find_rolled_back(previous.conditions) is None:
        events.append(Event(EventType.WARNING, rolled_back_condition.reason, rolled_back_condition.message))
    events += make_side_events(previous.conditions, current.conditions)
    serving = current.versions.serving
    if serving is not None and serving != previous.versions.serving:
        events.append(Event(EventType.NORMAL, "VersionServing", f"Version {serving} serves"))
    return tuple(events)
