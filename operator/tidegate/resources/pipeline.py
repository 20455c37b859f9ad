"""Build the order for the agents of a ModelAccess's pipeline, and its Kubernetes objects."""

from dataclasses import dataclass
from typing import Final

from tidegate.api.inference import Tier
from tidegate.api.meta import API_VERSION
from tidegate.api.model_access import ModelAccess
from tidegate.api.pipeline import PipelineSpec
from tidegate.api.quantities import canonicalize_quantity
from tidegate.resources.digest import hash_json
from tidegate.resources.manifest import Manifest, make_owner_reference
from tidegate.resources.names import (
    ACCESS_LABEL,
    CALLS_ANNOTATION,
    MANAGED_BY,
    MANAGER,
    PIPELINE_LABEL,
    SOURCE_LABEL,
    TIER_LABEL,
    make_child_name,
    to_label_value,
)
from tidegate.resources.serving import ServingWorkload, build_workload_objects
from tidegate.resources.serving_pod import ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import (
    CANDIDATES_HEADER,
    BatchingMode,
    DesiredState,
    ModelFormat,
    OwnerKind,
    PipelinePlan,
)

_TIER: Final = Tier.REALTIME.value


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """The plan of one route's pods, and how many rows they may put into one call."""

    plan: PipelinePlan
    max_batch_size: int
    calls: tuple[str, ...] = ()
    """The Inferences that the pods call by their own names."""


def make_pipeline_name(access: ModelAccess, route: str) -> str:
    """Return the name of a route's pipeline in its namespace; neither part has a dot."""
    return f"{access.metadata.name}.{route}"


def make_pipeline_selector(access: ModelAccess, route: str) -> dict[str, str]:
    """Return the labels that select the pods of a route's pipeline, within its namespace."""
    return {PIPELINE_LABEL: to_label_value(make_pipeline_name(access, route))}


def hash_pipeline_source(access: ModelAccess, compiled: CompiledPipeline) -> str:
    """Return the hash in names and labels: a changed plan or another object of the same name needs new pods."""
    return hash_json([access.metadata.uid, compiled.plan.hash, compiled.max_batch_size])


def make_pipeline_state(
    access: ModelAccess, pipeline: PipelineSpec, compiled: CompiledPipeline
) -> DesiredState:
    """Return the order of every pod's agent: the compiled plan, as version 1 of a model of the pipeline's name.

    Requests are batched while the instances wait for their answers; no request waits for others to come.
    """
    return DesiredState(
        owner=str(access.key),
        kind=OwnerKind.MODEL_ACCESS,
        epoch=0,
        generation=0,
        model=pipeline.resolve_served_name(access.metadata.name),
        version=1,
        format=ModelFormat.PIPELINE,
        max_batch_size=compiled.max_batch_size,
        batching=BatchingMode.FIXED,
        pipeline=compiled.plan,
    )


def build_pipeline_objects(
    access: ModelAccess,
    route: str,
    pipeline: PipelineSpec,
    compiled: CompiledPipeline,
    settings: ServingSettings,
) -> tuple[Manifest, ...]:
    """Build all children of one route's pipeline in the order of application."""
    selector = make_pipeline_selector(access, route)
    labels = {**selector, ACCESS_LABEL: to_label_value(access.metadata.name), TIER_LABEL: _TIER}
    workload = ServingWorkload(
        namespace=access.metadata.namespace,
        name=make_child_name("mac", make_pipeline_name(access, route)),
        owner=make_owner_reference(API_VERSION, access.KIND, access.metadata),
        selector=selector,
        labels=labels,
        source=hash_pipeline_source(access, compiled),
        replicas=pipeline.replicas,
        max_replicas=pipeline.replicas,
        start_order=make_pipeline_state(access, pipeline, compiled).to_json(),
    )
    pod = ServingPod(
        labels={**labels, MANAGED_BY: MANAGER, SOURCE_LABEL: workload.source},
        config_map=workload.config_map,
        spread_labels=selector,
        cpu=canonicalize_quantity(pipeline.resources.cpu),
        memory=canonicalize_quantity(pipeline.resources.memory),
        priority_class=f"{settings.priority_class_prefix}{_TIER}",
        storage_secret=settings.storage_secret,
        forwarded_header=CANDIDATES_HEADER if any(part.cut for part in compiled.plan.parts) else "",
        annotations={CALLS_ANNOTATION: ",".join(sorted(set(compiled.calls)))},
    )
    return build_workload_objects(workload, pod, settings)
