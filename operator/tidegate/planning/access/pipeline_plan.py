"""Compile a route's pipeline into the plan that its pods run, from the tensors of its models and features."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, TensorMetadata
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import PipelineModel, PipelineSpec
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import describe_absence
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan, list_marks
from tidegate.planning.features.tensor_specs import format_spec, is_compatible
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.resources.pipeline import CompiledPipeline
from tidegate.routing.hosts import ACCESS_HEADER, FEATURES_HEADER
from tidegate.routing.pipelines import PART_HEADER, parts_target
from tidegate_dataplane.contract import (
    DEFAULTED,
    NOT_CURRENT,
    CandidateCut,
    ModelCall,
    PipelinePart,
    PipelinePlan,
    TensorSpec,
)

_INTEGER_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "BOOL": (0, 1),
    **{f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""Integer types, with the least and the greatest number that each holds."""
_FLOAT_TYPES: Final = frozenset({"FP16", "FP32", "FP64"})
_TYPES: Final = _FLOAT_TYPES | {*_INTEGER_RANGES, "BYTES"}
# A default has at most 15 digits before its point, so only these types are too narrow for some defaults.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {**_INTEGER_RANGES, "FP16": (-65_504, 65_504)}
_MAX_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Callees:
    """Objects that the pipelines of one ModelAccess may call, by the name in its spec; those being deleted are absent."""

    inferences: Mapping[str, Inference] = field(default_factory=dict[str, Inference])
    features: Mapping[str, FeatureCompute] = field(default_factory=dict[str, FeatureCompute])
    accesses: Mapping[str, ModelAccess] = field(default_factory=dict[str, ModelAccess])
    withheld: frozenset[str] = frozenset()
    """FeatureComputes of other namespaces that do not share with this one."""


class _RefusedError(Exception):
    """Carries a refusal to `compile_pipeline`; it does not leave this module."""

    def __init__(self, reason: Reason, message: str, *, stalled: bool) -> None:
        super().__init__(message)
        self.refusal = PlanRefusal(reason, message, stalled=stalled)


def compile_pipeline(
    access: ModelAccess, route: Route, pipeline: PipelineSpec, callees: Callees, gateway: str
) -> CompiledPipeline | PlanRefusal:
    """Return the compiled pipeline of a route, or why it cannot be compiled yet.

    Its calls go to `gateway`, host:port.
    """
    try:
        return _compile_plan(access, route, pipeline, callees, gateway)
    except _RefusedError as error:
        refusal = error.refusal
        return PlanRefusal(
            refusal.reason, f"pipeline of route {route.name}: {refusal.message}", stalled=refusal.stalled
        )


@dataclass(frozen=True, slots=True)
class _PartModel:
    """Model that answers for a part: how to call it, and its input and output tensors."""

    title: str
    headers: Mapping[str, str]
    served_name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int


def _compile_plan(
    access: ModelAccess, route: Route, pipeline: PipelineSpec, callees: Callees, gateway: str
) -> CompiledPipeline:
    longest_us = _to_microseconds(route.timeout) * 9 // 10
    models = {part.name: _resolve_model(access, part, callees) for part in pipeline.models}
    parts = tuple(_compile_part(part, models[part.name], longest_us) for part in pipeline.models)
    _check_cuts(parts)
    needed = _merge_inputs((part.name, spec) for part in parts for spec in part.call.inputs)
    features = _compile_features(access, pipeline, callees, needed, longest_us)
    from_clients = _list_client_inputs(needed, features)
    plan = PipelinePlan(
        gateway=gateway,
        features=features,
        parts=parts,
        inputs=from_clients,
        outputs=(
            *(_rename_spec(part.call.outputs[0], part.name) for part in parts),
            *_list_marks(parts, features),
        ),
    )
    return CompiledPipeline(
        plan=plan.model_copy(update={"hash": plan.compute_digest()}),
        max_batch_size=min(
            _MAX_ROWS, *(models[part.name].max_batch_size for part in parts if part.cut is None)
        ),
        calls=tuple(sorted(pipeline.inference_names)),
    )


def _resolve_model(access: ModelAccess, part: PipelineModel, callees: Callees) -> _PartModel:
    if part.inference is not None:
        headers = {ACCESS_HEADER: parts_target(access), PART_HEADER: part.inference}
        return _resolve_inference(access, part.inference, callees, headers)
    return _resolve_access(access, part.access or "", callees)


def _resolve_inference(
    access: ModelAccess, name: str, callees: Callees, headers: Mapping[str, str]
) -> _PartModel:
    inference = callees.inferences.get(name)
    if inference is None:
        message = describe_absence(Inference, name, access.key.namespace)
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    model = inference.status.model
    if model is None or not model.inputs:
        message = f"Inference {name} has not loaded a model yet, so its inputs and outputs are unknown"
        raise _RefusedError(Reason.TARGET_NOT_READY, message, stalled=False)
    inputs, outputs = (_to_specs(name, tensors) for tensors in (model.inputs, model.outputs))
    size = inference.spec.batching.max_batch_size
    return _PartModel(f"Inference {name}", headers, inference.served_name, inputs, outputs, size)


def _resolve_access(access: ModelAccess, name: str, callees: Callees) -> _PartModel:
    """Return the model behind a ModelAccess.

    Its targets all serve one model; the smallest of their batch sizes fits all of them.
    """
    callee = callees.accesses.get(name)
    if callee is None:
        message = f"ModelAccess {name} does not exist in namespace {access.key.namespace}"
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    if any(route.pipeline is not None for route in callee.spec.routes):
        raise _make_invalid_error(
            f"ModelAccess {name} has a pipeline itself, and a pipeline cannot be part of another: name its models instead"
        )
    if callee.spec.auth is not None:
        raise _make_invalid_error(
            f"ModelAccess {name} lets only known callers in, and a call of a pipeline is of many clients at once: "
            "name its Inferences instead, and give this object auth"
        )
    route = callee.spec.routes[-1]
    if route.match is not None:
        raise _make_invalid_error(
            f"ModelAccess {name} has no route without match, and calls of a pipeline carry no client's headers: add one"
        )
    # Include targets with weight 0: a release may raise it.
    names = [target.inference for target in route.targets]
    names += [route.fallback.inference] if route.fallback is not None else []
    models: list[_PartModel] = []
    waiting: _RefusedError | None = None
    for target in names:
        try:
            models.append(_resolve_inference(access, target, callees, {ACCESS_HEADER: str(callee.key)}))
        except _RefusedError as error:
            waiting = error
    if not models:
        raise waiting or _make_invalid_error(f"ModelAccess {name} has no target")
    first = models[0]
    smallest = min(model.max_batch_size for model in models)
    return _PartModel(
        f"ModelAccess {name}", first.headers, first.served_name, first.inputs, first.outputs, smallest
    )


def _to_specs(inference: str, tensors: Iterable[TensorMetadata]) -> tuple[TensorSpec, ...]:
    specs = tuple(TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape) for tensor in tensors)
    for spec in specs:
        if not spec.shape or spec.shape[0] != -1:
            raise _make_invalid_error(
                f"Inference {inference} does not take batches: {spec.name} has shape {list(spec.shape)}, without a free "
                "first dimension; export the model with one"
            )
        if spec.dtype not in _TYPES:
            raise _make_invalid_error(
                f"Inference {inference}: {spec.name} is {spec.dtype}, which pipelines cannot carry; use FP16 or FP32"
            )
    return specs


def _compile_part(part: PipelineModel, model: _PartModel, longest_us: int) -> PipelinePart:
    output = _select_output(part, model)
    if part.default is not None:
        _check_default(part, model, output)
    limit = part.candidates
    if limit is not None and limit.max_rows > model.max_batch_size:
        raise _make_invalid_error(
            f"{part.name} gets up to {limit.max_rows} candidates, but {model.title} takes at most {model.max_batch_size} rows "
            f"at once: set its spec.batching.maxBatchSize to {limit.max_rows} or more, or lower candidates.max"
        )
    return PipelinePart(
        name=part.name,
        call=ModelCall(
            title=model.title,
            headers=dict(model.headers),
            model=model.served_name,
            inputs=model.inputs,
            outputs=(output,),
            timeout_us=longest_us if part.timeout is None else _to_microseconds(part.timeout),
            max_rows=None if limit is None else model.max_batch_size,
        ),
        default=part.default if part.optional else None,
        cut=None
        if limit is None
        else CandidateCut(
            by=limit.by,
            max_rows=limit.max_rows,
            min_rows=limit.min_rows or limit.max_rows,
            filler=part.default or "0",
        ),
    )


def _select_output(part: PipelineModel, model: _PartModel) -> TensorSpec:
    names = ", ".join(spec.name for spec in model.outputs)
    if part.output is None:
        if len(model.outputs) == 1:
            return model.outputs[0]
        raise _make_invalid_error(f"{model.title} has outputs {names}: name one as output of {part.name}")
    output = next((spec for spec in model.outputs if spec.name == part.output), None)
    if output is None:
        raise _make_invalid_error(
            f"{model.title} has no output {part.output}, only {names}: correct output of {part.name}"
        )
    return output


def _check_cuts(parts: Iterable[PipelinePart]) -> None:
    """Raise _RefusedError if the output that selects candidates is not one number for each row."""
    outputs: dict[str, TensorSpec] = {}
    for part in parts:
        (outputs[part.name],) = part.call.outputs
        if part.cut is None:
            continue
        if part.cut.by not in outputs or part.cut.by == part.name:
            raise _make_invalid_error(
                f"the candidates of {part.name} are selected by {part.cut.by}, which must be the output (as) of a model "
                "further up in the list"
            )
        output = outputs[part.cut.by]
        if output.dtype not in _FLOAT_TYPES | {*_INTEGER_RANGES} or output.shape[1:] not in ((), (1,)):
            raise _make_invalid_error(
                f"the candidates of {part.name} cannot be selected by {part.cut.by}: its output {format_spec(output)} is not "
                "one number for each row"
            )


def _check_default(part: PipelineModel, model: _PartModel, output: TensorSpec) -> None:
    default = part.default or ""
    if output.dtype == "BYTES" or -1 in output.shape[1:]:
        raise _make_invalid_error(
            f"{part.name} cannot be optional or have candidates: output {output.name} of {model.title} is {output.dtype} of shape "
            f"{list(output.shape)}, and a default needs numbers of a known shape"
        )
    if output.dtype in _INTEGER_RANGES and "." in default:
        raise _make_invalid_error(
            f"the default of {part.name} is {default}, but output {output.name} of {model.title} is {output.dtype}: "
            "give a whole number"
        )
    if output.dtype not in _RANGES:
        return
    lowest, greatest = _RANGES[output.dtype]
    if not lowest <= Decimal(default) <= greatest:
        raise _make_invalid_error(
            f"the default of {part.name} is {default}, but output {output.name} of {model.title} is {output.dtype}: "
            f"give a value from {lowest} to {greatest}"
        )


def _merge_inputs(specs: Iterable[tuple[str, TensorSpec]]) -> dict[str, tuple[str, TensorSpec]]:
    """Return the inputs of all models by name, each with the first part that takes it.

    Inputs with the same name are the same tensor, so their specs must be compatible.
    """
    inputs: dict[str, tuple[str, TensorSpec]] = {}
    for part, spec in specs:
        first = inputs.setdefault(spec.name, (part, spec))
        if not is_compatible(first[1], spec):
            raise _make_invalid_error(
                f"input {spec.name} is {format_spec(first[1])} for {first[0]} and {format_spec(spec)} for {part}: "
                "a request can carry only one"
            )
    return inputs


def _compile_features(
    access: ModelAccess,
    pipeline: PipelineSpec,
    callees: Callees,
    needed: Mapping[str, tuple[str, TensorSpec]],
    longest_us: int,
) -> ModelCall | None:
    """Return the call that looks up the features that models take; None if the pipeline names none."""
    if pipeline.features is None:
        return None
    features = callees.features.get(pipeline.features)
    if features is None:
        message = describe_absence(FeatureCompute, pipeline.features, access.key.namespace)
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    try:
        plan = compile_plan(features)
    except InvalidSpecError as error:
        message = f"FeatureCompute {pipeline.features}: {error}"
        raise _RefusedError(Reason.TARGET_NOT_READY, message, stalled=False) from error
    used = tuple(output for output in plan.outputs if output.name in needed)
    if not used:
        raise _make_invalid_error(
            f"no model takes a feature of {pipeline.features} ({', '.join(output.name for output in plan.outputs)}); they take "
            f"{', '.join(sorted(needed))}: rename the features to match, or remove features"
        )
    for output in used:
        part, spec = needed[output.name]
        if not is_compatible(output, spec):
            raise _make_invalid_error(
                f"feature {output.name} is {format_spec(output)}, but {part} takes {format_spec(spec)}: change one of them"
            )
    return ModelCall(
        title=f"FeatureCompute {pipeline.features}",
        headers={FEATURES_HEADER: str(features.key)},
        model=features.metadata.name,
        inputs=plan.inputs,
        outputs=used,
        optional_outputs=() if NOT_CURRENT in needed else list_marks(plan, {output.name for output in used}),
        timeout_us=longest_us,
    )


def _list_client_inputs(
    needed: Mapping[str, tuple[str, TensorSpec]], features: ModelCall | None
) -> tuple[TensorSpec, ...]:
    """Return the inputs that clients send: the keys of the features, and inputs that no feature provides."""
    provided = {spec.name for spec in features.outputs} if features is not None else set[str]()
    inputs = {spec.name: spec for spec in features.inputs} if features is not None else {}
    for name, (part, spec) in needed.items():
        if name in provided:
            continue
        first = inputs.setdefault(name, spec)
        if not is_compatible(first, spec):
            raise _make_invalid_error(
                f"input {name} is {format_spec(first)} for the features and {format_spec(spec)} for {part}: "
                "a request can carry only one"
            )
    return tuple(inputs.values())


def _list_marks(parts: Sequence[PipelinePart], features: ModelCall | None) -> Iterator[TensorSpec]:
    """Yield the outputs that mark answers: with defaults of optional parts, and with features that are not current."""
    if any(part.default is not None for part in parts):
        yield TensorSpec(name=DEFAULTED, dtype="BYTES", shape=(-1, 1))
    if features is not None:
        yield from features.optional_outputs


def _rename_spec(spec: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape)


def _to_microseconds(duration: str) -> int:
    return round(parse_duration(duration).total_seconds() * 1_000_000)


def _make_invalid_error(message: str) -> _RefusedError:
    return _RefusedError(Reason.PIPELINE_INVALID, message, stalled=True)
