"""Build the order for the agents of a ModelAccess's pipeline, and its Kubernetes objects."""

from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import API_VERSION
from tidegate.api.model_access import ModelAccess
from tidegate.api.pipeline import Pipeline
from tidegate.api.quantities import canonical
from tidegate.resources.digest import short_digest
from tidegate.resources.manifest import Manifest, owner_reference
from tidegate.resources.names import (
    ACCESS_LABEL,
    CALLS_ANNOTATION,
    MANAGED_BY,
    MANAGER,
    PIPELINE_LABEL,
    SOURCE_LABEL,
    TIER_LABEL,
    child_name,
    label_value,
)
from tidegate.resources.pod import ServingPod
from tidegate.resources.serving import Workload, workload_objects
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import BatchingMode, DesiredState, ModelFormat, OwnerKind, PipelinePlan

_TIER: Final = "realtime"


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """The plan of one route's pods, and how many rows they may put into one call."""

    plan: PipelinePlan
    max_batch_size: int
    calls: tuple[str, ...] = ()
    """The Inferences that the pods call by their own names."""


def pipeline_name(access: ModelAccess, route: str) -> str:
    """Return the name of a route's pipeline in its namespace; neither part has a dot."""
    return f"{access.metadata.name}.{route}"


def pipeline_selector(access: ModelAccess, route: str) -> dict[str, str]:
    """Return the labels that select the pods of a route's pipeline, within its namespace."""
    return {PIPELINE_LABEL: label_value(pipeline_name(access, route))}


def pipeline_source(access: ModelAccess, compiled: CompiledPipeline) -> str:
    """Return the hash in names and labels: a changed plan or another object of the same name needs new pods."""
    return short_digest([access.metadata.uid, compiled.plan.hash, compiled.max_batch_size])


def pipeline_state(access: ModelAccess, pipeline: Pipeline, compiled: CompiledPipeline) -> DesiredState:
    """Return the order of every pod's agent: the compiled plan, as version 1 of a model of the pipeline's name.

    Requests are batched while the instances wait for their answers; no request waits for others to come.
    """
    return DesiredState(
        owner=str(access.key),
        kind=OwnerKind.MODEL_ACCESS,
        epoch=0,
        generation=0,
        model=pipeline.served_name(access.metadata.name),
        version=1,
        format=ModelFormat.PIPELINE,
        max_batch_size=compiled.max_batch_size,
        batching=BatchingMode.FIXED,
        pipeline=compiled.plan,
    )


def pipeline_objects(
    access: ModelAccess, route: str, pipeline: Pipeline, compiled: CompiledPipeline, settings: ServingSettings
) -> tuple[Manifest, ...]:
    """Build all children of one route's pipeline in the order of application."""
    selector = pipeline_selector(access, route)
    labels = {**selector, ACCESS_LABEL: label_value(access.metadata.name), TIER_LABEL: _TIER}
    workload = Workload(
        namespace=access.metadata.namespace,
        name=child_name("mac", pipeline_name(access, route)),
        owner=owner_reference(API_VERSION, access.KIND, access.metadata),
        selector=selector,
        labels=labels,
        source=pipeline_source(access, compiled),
        replicas=pipeline.replicas,
        most_replicas=pipeline.replicas,
        desired=pipeline_state(access, pipeline, compiled).to_json(),
    )
    pod = ServingPod(
        labels={**labels, MANAGED_BY: MANAGER, SOURCE_LABEL: workload.source},
        config_map=workload.config_map,
        spread=selector,
        cpu=canonical(pipeline.resources.cpu),
        memory=canonical(pipeline.resources.memory),
        priority_class=f"{settings.priority_class_prefix}{_TIER}",
        storage_secret=settings.storage_secret,
        annotations={CALLS_ANNOTATION: ",".join(sorted(set(compiled.calls)))},
    )
    return workload_objects(workload, pod, settings)
