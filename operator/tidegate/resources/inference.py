"""Build the order for the agents of an Inference, and its ConfigMap, Deployment and PodDisruptionBudget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from tidegate.api.compilation import CompileBuckets
from tidegate.api.durations import parse_duration
from tidegate.api.inference import DynamicBatchingMode, Inference, RolloutMode
from tidegate.api.quantities import canonicalize_quantity
from tidegate.resources.artefact import find_volume_claims, is_fetched, reads_host
from tidegate.resources.digest import hash_json
from tidegate.resources.manifest import Manifest, make_owner_reference
from tidegate.resources.names import (
    INFERENCE_LABEL,
    MANAGED_BY,
    MANAGER,
    POOL_LABEL,
    SOURCE_LABEL,
    TIER_LABEL,
    make_child_name,
    make_pool_deployment_name,
    to_label_value,
)
from tidegate.resources.nearline import (
    PROMPT_DRAIN,
    PROMPT_EXIT_S,
    find_results_secret,
    find_stream_secret,
    make_stream_order,
)
from tidegate.resources.sample_log import find_sample_secret, find_sample_url, make_sample_order
from tidegate.resources.serving import (
    ServingWorkload,
    build_config_map,
    build_deployment,
    build_disruption_budgets,
)
from tidegate.resources.serving_pod import DEFAULT_ACCOUNT, ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import (
    BatchingMode as AgentBatching,
)
from tidegate_dataplane.contract import (
    DesiredState,
    EngineMode,
    EngineOrder,
    ModelFormat,
    OwnerKind,
)

_BATCHING: Final = {
    DynamicBatchingMode.DISABLED: AgentBatching.OFF,
    DynamicBatchingMode.FIXED: AgentBatching.FIXED,
    DynamicBatchingMode.ADAPTIVE: AgentBatching.ADAPTIVE,
}


def make_desired_state(
    inference: Inference, settings: ServingSettings, *, epoch: int, slices: SliceResources | None = None
) -> DesiredState:
    """Return the order of every pod's agent; `slices` is what pools give it, those of GPUs before others."""
    model = inference.spec.model
    batching = inference.spec.batching
    delay = parse_duration(batching.max_queue_delay) if batching.max_queue_delay else timedelta()
    return DesiredState(
        owner=str(inference.key),
        kind=OwnerKind.INFERENCE,
        epoch=epoch,
        generation=inference.metadata.generation,
        model=inference.served_name,
        version=int(model.version),
        uri=model.uri,
        revision=model.revision or "",
        sha256=model.sha256,
        format=ModelFormat(model.format.value),
        max_batch_size=batching.max_batch_size,
        batching=_BATCHING[batching.mode],
        max_queue_delay_us=delay // timedelta(microseconds=1),
        instances=inference.spec.instances,
        shared_inputs=tuple(sorted(model.shared_inputs)),
        graph_passes=_has_graph_passes(inference, slices),
        engine=_make_engine_order(inference, slices),
        compile_cache=_find_compile_cache(inference, slices),
        keep_versions=inference.spec.rollout.keep_versions,
        warmup_requests=inference.spec.rollout.warmup.requests,
        samples=make_sample_order(inference.spec.logging),
        stream=make_stream_order(inference),
        max_artefact_bytes=settings.max_artefact_bytes,
        allowed_hosts=settings.allowed_hosts,
        allow_python=settings.allow_python,
    )


def _has_graph_passes(inference: Inference, slices: SliceResources | None) -> bool:
    """Return whether graphs are compiled: not for a GPU, on which nothing was proved."""
    return inference.spec.has_graph_passes and not (slices is not None and slices.devices)


def _make_engine_order(inference: Inference, slices: SliceResources | None) -> EngineOrder | None:
    spec = inference.spec
    if spec.compile is None or not spec.has_engine or not _has_graph_passes(inference, slices):
        return None
    buckets = spec.compile.buckets or CompileBuckets()
    return EngineOrder(
        engine=EngineMode(spec.compile.engine.value),
        precision=spec.compile.precision,
        rows=buckets.rows or (),
        lengths=buckets.lengths or (),
    )


def _find_compile_cache(inference: Inference, slices: SliceResources | None) -> str:
    spec = inference.spec
    if spec.compile is None or not _has_graph_passes(inference, slices):
        return ""
    return spec.compile.cache or ""


def hash_source(inference: Inference) -> str:
    """Return the hash of what needs new pods: everything about the model but its version, revision and pin.

    The uid is part of it: the pods of a deleted object of the same name live on for a moment, and do not count.
    """
    spec = inference.spec
    return hash_json(
        [
            inference.metadata.uid,
            spec.model.uri,
            inference.served_name,
            spec.model.format.value,
            spec.batching.model_dump(mode="json"),
            *([sorted(spec.model.shared_inputs)] if spec.model.shared_inputs else []),
            *([spec.instances] if spec.instances > 1 else []),
        ]
    )


def make_inference_selector(inference: Inference) -> dict[str, str]:
    """Return the labels that select the pods of an Inference, within its namespace."""
    return {INFERENCE_LABEL: to_label_value(inference.metadata.name)}


@dataclass(frozen=True, slots=True)
class PoolPods:
    """The pods of one Deployment of an Inference."""

    slices: SliceResources | None = None
    """What a pool gives each pod; None without placement, where the spec decides."""
    replicas: int | None = None
    """How many pods there are; None for spec.replicas."""
    own_pool: str = ""
    """The pool's label, if the Deployment is that of one pool beside others; empty for the one with the bare name."""


def make_inference_workload(inference: Inference, start: str, pods: PoolPods = PoolPods()) -> ServingWorkload:
    """Return the workload of an Inference whose starting pods begin with the DesiredState JSON `start`."""
    selector, scaling = make_inference_selector(inference), inference.spec.scaling
    name, pool = inference.metadata.name, pods.own_pool
    return ServingWorkload(
        namespace=inference.metadata.namespace,
        name=make_child_name("inf", name),
        owner=make_owner_reference("tidegate.io/v1alpha1", "Inference", inference.metadata),
        selector=selector,
        labels={**selector, TIER_LABEL: inference.spec.tier.value},
        pool_labels=pods.slices.labels if pods.slices is not None else {},
        source=hash_source(inference),
        replicas=inference.spec.replicas if pods.replicas is None else pods.replicas,
        start_order=start,
        max_replicas=scaling.max_replicas if scaling is not None else inference.spec.replicas,
        in_place=inference.spec.rollout.mode is RolloutMode.IN_PLACE,
        progress_deadline_s=parse_duration(inference.spec.rollout.progress_deadline) // timedelta(seconds=1),
        deployment=make_pool_deployment_name(name, pool) if pool else "",
        pod_selector={**selector, POOL_LABEL: pool} if pool else {},
        has_compiler=bool(_find_compiler_memory(inference, pods.slices)),
    )


def build_inference_objects(
    inference: Inference, settings: ServingSettings, start: str, pools: Sequence[PoolPods] = (PoolPods(),)
) -> tuple[Manifest, ...]:
    """Build all children of an Inference in the order of application, with one Deployment for each of `pools`."""
    workload = make_inference_workload(inference, start)
    return (
        build_config_map(workload, settings),
        *(build_pool_deployment(inference, settings, start, pods) for pods in pools),
        *build_disruption_budgets(workload),
    )


def build_pool_deployment(
    inference: Inference, settings: ServingSettings, start: str, pods: PoolPods
) -> Manifest:
    """Build one Deployment of an Inference; `start` as in `make_inference_workload`."""
    workload = make_inference_workload(inference, start, pods)
    pod = make_serving_pod(inference, workload, settings, pods.slices)
    if inference.spec.nearline is not None:
        pod = replace(pod, agent_env=PROMPT_DRAIN, exit_timeout_s=PROMPT_EXIT_S)
    return build_deployment(workload, pod, settings)


def make_serving_pod(
    inference: Inference,
    workload: ServingWorkload,
    settings: ServingSettings,
    slices: SliceResources | None = None,
) -> ServingPod:
    """Return the pod of an Inference, without what its tier adds; `slices` is what a pool gives it."""
    own = inference.spec.own_resources
    uris = (inference.spec.model.uri,)
    pod = ServingPod(
        labels={
            **workload.labels,
            **workload.pool_labels,
            MANAGED_BY: MANAGER,
            SOURCE_LABEL: workload.source,
        },
        service_account=inference.spec.service_account_name or DEFAULT_ACCOUNT,
        config_map=workload.config_map,
        spread_labels=workload.pod_selector or workload.selector,
        cpu=canonicalize_quantity(own.cpu),
        memory=canonicalize_quantity(own.memory),
        priority_class=f"{settings.priority_class_prefix}{inference.spec.tier.value}",
        claims=find_volume_claims(uris),
        storage_secret=inference.spec.model.secret_name or settings.storage_secret,
        cache_folder=inference.metadata.namespace if settings.node_cache_path and is_fetched(uris) else "",
        sample_secret=find_sample_secret(inference.spec.logging),
        sample_claim=next(iter(find_volume_claims((find_sample_url(inference.spec.logging),))), ""),
        stream_secret=find_stream_secret(inference),
        results_secret=find_results_secret(inference),
        compiler_memory=_find_compiler_memory(inference, slices),
        host_models=reads_host(uris) and bool(settings.models_host_path),
    )
    if slices is None:
        return pod
    return replace(
        pod,
        cpu=slices.cpu,
        memory=slices.memory,
        node_selector=slices.node_selector,
        tolerations=slices.tolerations,
        devices=slices.devices,
        env=slices.env,
        run_as_user=slices.run_as_user,
        shared_memory_of_node=slices.shared_memory_of_node,
    )


def _find_compiler_memory(inference: Inference, slices: SliceResources | None) -> str:
    """Return the memory limit of the compiler; empty if no graph is compiled."""
    spec = inference.spec
    if spec.compile is None or not _has_graph_passes(inference, slices):
        return ""
    own_memory = spec.own_resources.memory if slices is None else slices.memory
    return canonicalize_quantity(spec.compile.memory or own_memory)
