"""Plan the stream of a near-line Inference: the agents' order, with the features of its messages if it names any."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import SHARED_WITH_ANNOTATION, resolve_shared_name
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.tensor_specs import format_spec, is_compatible
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.resources.digest import hash_json
from tidegate.resources.nearline import make_stream_order
from tidegate.routing.hosts import FEATURES_HEADER
from tidegate_dataplane.contract import FeaturePlan, ModelCall, StreamFeatures, StreamOrder, TensorSpec

_PATH: Final = "spec.nearline.features"
_TIMEOUT: Final = timedelta(seconds=10)
"""Limit for the features of one message; a slower FeatureCompute counts as one that does not answer."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What agents consume; no order consumes nothing, because there is no stream or for the reason in `refusal`."""

    order: StreamOrder | None = None
    refusal: PlanRefusal | None = None


def plan_stream(inference: Inference, compute: FeatureCompute | None, gateway: str) -> StreamPlan:
    """Return the stream of an Inference.

    `compute` is the FeatureCompute that it names, None if there is none or it does not share with the namespace; `gateway` is
    the gateways' `host:port` inside the cluster.
    """
    order, nearline = make_stream_order(inference), inference.spec.nearline
    if order is None or nearline is None or nearline.features is None:
        return StreamPlan(order)
    features = _resolve_features(inference, nearline.features, compute, gateway)
    if isinstance(features, PlanRefusal):
        return StreamPlan(refusal=features)
    return StreamPlan(order.model_copy(update={"features": features}))


def _resolve_features(
    inference: Inference, name: str, compute: FeatureCompute | None, gateway: str
) -> StreamFeatures | PlanRefusal:
    if compute is None or compute.metadata.deletion_timestamp is not None:
        message = f"{_PATH}: {_describe_absence(inference, name)}; messages wait in the stream"
        return PlanRefusal(Reason.TARGET_NOT_FOUND, message, stalled=False)
    try:
        plan = compile_plan(compute)
    except InvalidSpecError as error:
        message = f"{_PATH}: FeatureCompute {name}: {error}; messages wait in the stream"
        return PlanRefusal(Reason.TARGET_NOT_READY, message, stalled=False)
    model = inference.status.model
    if model is None or not model.inputs:
        message = f"{_PATH}: which features the model takes is unknown until it has loaded"
        return PlanRefusal(Reason.WAITING_FOR_REPLICAS, message, stalled=False)
    taken = {
        tensor.name: TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
        for tensor in model.inputs
    }
    problem = _find_problem(name, plan, taken)
    if problem is not None:
        return PlanRefusal(Reason.PLAN_INVALID, f"{_PATH}: {problem}")
    call = ModelCall(
        title=f"FeatureCompute {name}",
        headers={FEATURES_HEADER: str(compute.key)},
        model=compute.metadata.name,
        inputs=plan.inputs,
        outputs=tuple(output for output in plan.outputs if output.name in taken),
        timeout_us=_TIMEOUT // timedelta(microseconds=1),
    )
    passed = tuple(spec.name for spec in plan.inputs if spec.name in taken)
    revision = hash_json([gateway, call.model_dump(mode="json"), passed, plan.hash])
    return StreamFeatures(gateway=gateway, call=call, passed_inputs=passed, revision=revision)


def _describe_absence(inference: Inference, name: str) -> str:
    """Return why there is no FeatureCompute to call; of another namespace, the message does not show whether it exists."""
    namespace = inference.key.namespace
    if resolve_shared_name(name, namespace).namespace == namespace:
        return (
            f"FeatureCompute {name} does not exist in namespace {namespace}: create it, or correct the name"
        )
    return (
        f"FeatureCompute {name} does not exist, or does not share with namespace {namespace}: its owner can add {namespace} to "
        f"its annotation {SHARED_WITH_ANNOTATION}"
    )


def _find_problem(name: str, plan: FeaturePlan, taken: dict[str, TensorSpec]) -> str | None:
    """Return why the features do not fit the inputs of the model that `taken` has by name; None if they do."""
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
