"""Find the pipelines that call FeatureComputes, and the models of each that take features."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.shared_names import resolve_shared_name
from tidegate.planning.access.callees import CalleeLookup, find_callees
from tidegate.planning.access.pipeline_plan import compile_pipeline
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate_dataplane.contract import PipelinePlan

_NO_GATEWAY = ""
"""Which models take which features does not depend on the gateway that the calls go through."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model of a pipeline that takes features as inputs of the same names."""

    access: ObjectKey
    route: str
    part: str
    """Name of the model's output in the response."""
    model: str
    """Kind and name of the callee, like `Inference ctr`."""
    features: tuple[str, ...]
    """In the order of the model's inputs."""


@dataclass(frozen=True, slots=True)
class PipelineUse:
    """A pipeline that calls a FeatureCompute."""

    access: ObjectKey
    route: str
    feature_compute: ObjectKey
    models: tuple[ModelUse, ...] = ()
    problem: str = ""
    """Why the pipeline cannot be compiled, so that its models are unknown; empty if it can."""


def find_pipeline_uses(accesses: Iterable[ModelAccess], lookup: CalleeLookup) -> tuple[PipelineUse, ...]:
    """Return the pipelines of `accesses` that call a FeatureCompute, as their plans have it."""
    return tuple(use for access in accesses for use in _find_uses(access, lookup))


def _find_uses(access: ModelAccess, lookup: CalleeLookup) -> Iterator[PipelineUse]:
    callees = find_callees(access, lookup)
    for route in access.spec.routes:
        pipeline = route.pipeline
        if pipeline is None or pipeline.features is None:
            continue
        features = resolve_shared_name(pipeline.features, access.key.namespace)
        compiled = compile_pipeline(access, route, pipeline, callees, _NO_GATEWAY)
        if isinstance(compiled, PlanRefusal):
            yield PipelineUse(access.key, route.name, features, problem=compiled.message)
            continue
        models = tuple(_list_model_uses(access, route, compiled.plan))
        yield PipelineUse(access.key, route.name, features, models)


def _list_model_uses(access: ModelAccess, route: Route, plan: PipelinePlan) -> Iterator[ModelUse]:
    provided = {spec.name for spec in plan.features.outputs} if plan.features is not None else set[str]()
    for part in plan.parts:
        taken = tuple(spec.name for spec in part.call.inputs if spec.name in provided)
        if taken:
            yield ModelUse(access.key, route.name, part.name, part.call.title, taken)
