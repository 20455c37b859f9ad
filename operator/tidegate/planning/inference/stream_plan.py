"""Plan the stream of a near-line Inference: the agents' order, with the features of its messages if it names any."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import describe_absence
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan, list_marked_features, list_marks
from tidegate.planning.features.tensor_specs import format_spec, is_compatible
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.resources.digest import hash_json
from tidegate.resources.nearline import make_stream_order
from tidegate.routing.hosts import FEATURES_HEADER
from tidegate_dataplane.contract import (
    DesiredState,
    FeaturePlan,
    ModelCall,
    StreamFeatures,
    StreamOrder,
    TensorSpec,
)

_PATH: Final = "spec.nearline.features"
_TIMEOUT: Final = timedelta(seconds=10)
"""Limit for the features of one message; a slower FeatureCompute counts as one that does not answer."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What agents consume; no order consumes nothing, because there is no stream or for the reason in `refusal`."""

    order: StreamOrder | None = None
    refusal: PlanRefusal | None = None


def plan_stream(
    inference: Inference, compute: FeatureCompute | None, gateway: str, ordered: DesiredState | None
) -> StreamPlan:
    """Return the stream of an Inference.

    `compute` is the FeatureCompute that it names, None if there is none or it does not share with the namespace; `gateway` is
    the gateways' `host:port` inside the cluster. `ordered` is the last order, whose features stay until those of another plan
    have rolled out.
    """
    order, nearline = make_stream_order(inference), inference.spec.nearline
    if order is None or nearline is None or nearline.features is None:
        return StreamPlan(order)
    before = ordered.stream.features if ordered is not None and ordered.stream is not None else None
    features = _resolve_features(inference, nearline.features, compute, gateway, before)
    if isinstance(features, PlanRefusal):
        return StreamPlan(refusal=features)
    return StreamPlan(order.model_copy(update={"features": features}))


def _resolve_features(
    inference: Inference,
    name: str,
    compute: FeatureCompute | None,
    gateway: str,
    before: StreamFeatures | None,
) -> StreamFeatures | PlanRefusal:
    if compute is None or compute.metadata.deletion_timestamp is not None:
        absence = describe_absence(FeatureCompute, name, inference.key.namespace)
        message = f"{_PATH}: {absence}; messages wait in the stream"
        return PlanRefusal(Reason.TARGET_NOT_FOUND, message, stalled=False)
    headers = {FEATURES_HEADER: str(compute.key)}
    previous_features = before if before is not None and before.call.headers == headers else None
    try:
        plan = compile_plan(compute)
    except InvalidSpecError as error:
        if previous_features is not None:
            # Its pods keep the plan that they have, whatever became of the spec, or of an object whose features it shares.
            return previous_features
        message = f"{_PATH}: FeatureCompute {name}: {error}; messages wait in the stream"
        return PlanRefusal(Reason.TARGET_NOT_READY, message, stalled=False)
    problem = _find_problem(inference, name, plan)
    if problem is not None:
        return PlanRefusal(Reason.PLAN_INVALID, f"{_PATH}: {problem}")
    outputs = {output.name for output in plan.outputs}
    call = ModelCall(
        title=f"FeatureCompute {name}",
        headers=headers,
        model=compute.metadata.name,
        inputs=plan.inputs,
        outputs=plan.outputs,
        optional_outputs=list_marks(plan, outputs),
        timeout_us=_TIMEOUT // timedelta(microseconds=1),
    )
    marked = tuple(sorted(list_marked_features(plan) & outputs))
    revision = hash_json([gateway, call.model_dump(mode="json"), marked, plan.hash])
    features = StreamFeatures(gateway=gateway, call=call, marked_outputs=marked, revision=revision)
    if features == before or _is_rolled_out(compute, plan):
        return features
    if previous_features is not None:
        # Its pods change one after the other, and the old plan is right for most of them.
        return previous_features
    message = f"{_PATH}: FeatureCompute {name} is not Ready yet; messages wait in the stream"
    return PlanRefusal(Reason.TARGET_NOT_READY, message, stalled=False)


def _is_rolled_out(compute: FeatureCompute, plan: FeaturePlan) -> bool:
    """Return whether all pods have the present plan, which also changes when a FeatureCompute does whose features it uses."""
    ready = next((item for item in compute.status.conditions if item.type == ConditionType.READY), None)
    return (
        compute.status.observed_generation == compute.metadata.generation
        and compute.status.plan_hash == plan.hash
        and ready is not None
        and ready.status is ConditionStatus.TRUE
    )


def _find_problem(inference: Inference, name: str, plan: FeaturePlan) -> str | None:
    """Return why the features do not fit the inputs of the model that serves; None if they do, or none has loaded yet."""
    model = inference.status.model
    if model is None or not model.inputs:
        return None
    taken = {
        tensor.name: TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
        for tensor in model.inputs
    }
    used = [output for output in plan.outputs if output.name in taken]
    if not used:
        return (
            f"the model takes no feature of {name} ({', '.join(output.name for output in plan.outputs)}); it takes "
            f"{', '.join(sorted(taken))}: rename the features to match, or remove {_PATH}"
        )
    for output in used:
        spec = taken[output.name]
        if not is_compatible(output, spec):
            return f"feature {output.name} is {format_spec(output)}, but the model takes {format_spec(spec)}: change one of them"
    return None
