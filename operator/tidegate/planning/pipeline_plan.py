"""Compiles a route's pipeline into the plan that its pods run, from what the models and features say of themselves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tensor
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import Pipeline, PipelineModel
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning.feature_plan import compile_plan
from tidegate.planning.serving_status import Refusal
from tidegate.resources.pipeline import CompiledPipeline
from tidegate.routing.envoy.routes import ACCESS_HEADER, FEATURES_HEADER
from tidegate.routing.pipelines import PART_HEADER, parts_target
from tidegate_dataplane.contract import DEFAULTED, Call, Part, PipelinePlan, TensorSpec

_WHOLE: Final[Mapping[str, tuple[int, int]]] = {
    "BOOL": (0, 1),
    **{f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""Whole numbers by type, with the least and the greatest that it holds."""
_DECIMAL: Final = frozenset({"FP16", "FP32", "FP64"})
_TYPES: Final = _DECIMAL | {*_WHOLE, "BYTES"}
# A default has at most 15 digits before its point, so that only these are too narrow for some.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {**_WHOLE, "FP16": (-65_504, 65_504)}
_MOST_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Callees:
    """What the pipelines of one ModelAccess may call, by name; what is not there, or on its way out, is absent."""

    inferences: Mapping[str, Inference] = field(default_factory=dict[str, Inference])
    features: Mapping[str, FeatureCompute] = field(default_factory=dict[str, FeatureCompute])
    accesses: Mapping[str, ModelAccess] = field(default_factory=dict[str, ModelAccess])


class _RefusedError(Exception):
    """Carries a Refusal out of the depths of this module, and no further."""

    def __init__(self, reason: Reason, message: str, *, stalled: bool) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message, stalled=stalled)


def compile_pipeline(
    access: ModelAccess, route: Route, pipeline: Pipeline, callees: Callees, gateway: str
) -> CompiledPipeline | Refusal:
    """The plan of a route's pipeline, or why there is none yet; its calls go to `gateway`, host:port."""
    try:
        return _compile(access, route, pipeline, callees, gateway)
    except _RefusedError as error:
        refusal = error.refusal
        return Refusal(
            refusal.reason, f"pipeline of route {route.name}: {refusal.message}", stalled=refusal.stalled
        )


@dataclass(frozen=True, slots=True)
class _Model:
    """What answers for a part: how it is called, and what goes in and out."""

    title: str
    headers: Mapping[str, str]
    served_name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int


def _compile(
    access: ModelAccess, route: Route, pipeline: Pipeline, callees: Callees, gateway: str
) -> CompiledPipeline:
    longest_us = _microseconds(route.timeout) * 9 // 10
    models = {part.name: _model(access, part, callees) for part in pipeline.models}
    parts = tuple(_part(part, models[part.name], longest_us) for part in pipeline.models)
    needed = _agreed((part.name, spec) for part in parts for spec in part.call.inputs)
    features = _features(access, pipeline, callees, needed, longest_us)
    from_clients = _client_inputs(needed, features)
    marks = (TensorSpec(name=DEFAULTED, dtype="BYTES", shape=(-1, 1)),)
    plan = PipelinePlan(
        gateway=gateway,
        features=features,
        parts=parts,
        inputs=from_clients,
        outputs=(
            *(_renamed(part.call.outputs[0], part.name) for part in parts),
            *(marks if any(part.default is not None for part in parts) else ()),
        ),
    )
    return CompiledPipeline(
        plan=plan.model_copy(update={"hash": plan.digest()}),
        max_batch_size=min(_MOST_ROWS, *(model.max_batch_size for model in models.values())),
        calls=tuple(sorted(pipeline.inferences)),
    )


def _model(access: ModelAccess, part: PipelineModel, callees: Callees) -> _Model:
    if part.inference is not None:
        headers = {ACCESS_HEADER: parts_target(access), PART_HEADER: part.inference}
        return _of_inference(access, part.inference, callees, headers)
    return _of_access(access, part.access or "", callees)


def _of_inference(access: ModelAccess, name: str, callees: Callees, headers: Mapping[str, str]) -> _Model:
    inference = callees.inferences.get(name)
    if inference is None:
        message = f"Inference {name} does not exist in namespace {access.key.namespace}"
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    known = inference.status.model
    if known is None or not known.inputs:
        message = f"Inference {name} has not loaded a model yet, so what goes in and out is not known"
        raise _RefusedError(Reason.TARGET_NOT_READY, message, stalled=False)
    inputs, outputs = (_specs(name, tensors) for tensors in (known.inputs, known.outputs))
    size = inference.spec.batching.max_batch_size
    return _Model(f"Inference {name}", headers, inference.served_name, inputs, outputs, size)


def _of_access(access: ModelAccess, name: str, callees: Callees) -> _Model:
    """A ModelAccess answers as its targets do, who all serve one model; the smallest of their batches fits them all."""
    called = callees.accesses.get(name)
    if called is None:
        message = f"ModelAccess {name} does not exist in namespace {access.key.namespace}"
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    if any(route.pipeline is not None for route in called.spec.routes):
        raise _invalid(
            f"ModelAccess {name} has a pipeline itself, and a pipeline cannot be part of another: name its models instead"
        )
    if called.spec.auth is not None:
        raise _invalid(
            f"ModelAccess {name} lets only known callers in, and a call of a pipeline is of many clients at once: "
            "name its Inferences instead, and give this object auth"
        )
    last = called.spec.routes[-1]
    if last.match is not None:
        raise _invalid(
            f"ModelAccess {name} has no route without match, and calls of a pipeline carry no client's headers: add one"
        )
    # Those at weight 0 too: a release may give them some.
    names = [target.inference for target in last.targets]
    names += [last.fallback.inference] if last.fallback is not None else []
    models: list[_Model] = []
    waiting: _RefusedError | None = None
    for target in names:
        try:
            models.append(_of_inference(access, target, callees, {ACCESS_HEADER: str(called.key)}))
        except _RefusedError as error:
            waiting = error
    if not models:
        raise waiting or _invalid(f"ModelAccess {name} has no target")
    first = models[0]
    smallest = min(model.max_batch_size for model in models)
    return _Model(
        f"ModelAccess {name}", first.headers, first.served_name, first.inputs, first.outputs, smallest
    )


def _specs(inference: str, tensors: Iterable[Tensor]) -> tuple[TensorSpec, ...]:
    specs = tuple(TensorSpec(name=one.name, dtype=one.dtype, shape=one.shape) for one in tensors)
    for spec in specs:
        if not spec.shape or spec.shape[0] != -1:
            raise _invalid(
                f"Inference {inference} does not take batches: {spec.name} has shape {list(spec.shape)}, without a free "
                "first dimension; export the model so"
            )
        if spec.dtype not in _TYPES:
            raise _invalid(
                f"Inference {inference}: {spec.name} is {spec.dtype}, which pipelines cannot carry; use FP16 or FP32"
            )
    return specs


def _part(part: PipelineModel, model: _Model, longest_us: int) -> Part:
    output = _output(part, model)
    if part.default is not None:
        _check_default(part, model, output)
    return Part(
        name=part.name,
        call=Call(
            title=model.title,
            headers=dict(model.headers),
            model=model.served_name,
            inputs=model.inputs,
            outputs=(output,),
            timeout_us=longest_us if part.timeout is None else _microseconds(part.timeout),
        ),
        default=part.default,
    )


def _output(part: PipelineModel, model: _Model) -> TensorSpec:
    there = ", ".join(spec.name for spec in model.outputs)
    if part.output is None:
        if len(model.outputs) == 1:
            return model.outputs[0]
        raise _invalid(f"{model.title} has outputs {there}: name one as output of {part.name}")
    found = next((spec for spec in model.outputs if spec.name == part.output), None)
    if found is None:
        raise _invalid(
            f"{model.title} has no output {part.output}, only {there}: correct output of {part.name}"
        )
    return found


def _check_default(part: PipelineModel, model: _Model, output: TensorSpec) -> None:
    default = part.default or ""
    if output.dtype == "BYTES" or -1 in output.shape[1:]:
        raise _invalid(
            f"{part.name} cannot be optional: output {output.name} of {model.title} is {output.dtype} of shape "
            f"{list(output.shape)}, and a default needs numbers of a known shape"
        )
    if output.dtype in _WHOLE and "." in default:
        raise _invalid(
            f"the default of {part.name} is {default}, but output {output.name} of {model.title} is {output.dtype}: "
            "give a whole number"
        )
    if output.dtype not in _RANGES:
        return
    least, greatest = _RANGES[output.dtype]
    if not least <= Decimal(default) <= greatest:
        raise _invalid(
            f"the default of {part.name} is {default}, but output {output.name} of {model.title} is {output.dtype}: "
            f"give a value from {least} to {greatest}"
        )


def _agreed(specs: Iterable[tuple[str, TensorSpec]]) -> dict[str, tuple[str, TensorSpec]]:
    """What the models take, by name, with the part that it is for. One name is one tensor."""
    found: dict[str, tuple[str, TensorSpec]] = {}
    for part, spec in specs:
        before = found.setdefault(spec.name, (part, spec))
        if not _fits(before[1], spec):
            raise _invalid(
                f"input {spec.name} is {_words(before[1])} for {before[0]} and {_words(spec)} for {part}: "
                "a request can carry only one"
            )
    return found


def _features(
    access: ModelAccess,
    pipeline: Pipeline,
    callees: Callees,
    needed: Mapping[str, tuple[str, TensorSpec]],
    longest_us: int,
) -> Call | None:
    """The call that looks up what the models take of the features; None where no features are asked for."""
    if pipeline.features is None:
        return None
    features = callees.features.get(pipeline.features)
    if features is None:
        message = f"FeatureCompute {pipeline.features} does not exist in namespace {access.key.namespace}"
        raise _RefusedError(Reason.TARGET_NOT_FOUND, message, stalled=False)
    try:
        plan = compile_plan(features)
    except InvalidSpecError as error:
        message = f"FeatureCompute {pipeline.features}: {error}"
        raise _RefusedError(Reason.TARGET_NOT_READY, message, stalled=False) from error
    taken = tuple(output for output in plan.outputs if output.name in needed)
    if not taken:
        raise _invalid(
            f"no model takes a feature of {pipeline.features} ({', '.join(one.name for one in plan.outputs)}); they take "
            f"{', '.join(sorted(needed))}: call the features so, or remove features"
        )
    for output in taken:
        part, spec = needed[output.name]
        if not _fits(output, spec):
            raise _invalid(
                f"feature {output.name} is {_words(output)}, but {part} takes {_words(spec)}: change one of them"
            )
    return Call(
        title=f"FeatureCompute {pipeline.features}",
        headers={FEATURES_HEADER: str(features.key)},
        model=features.metadata.name,
        inputs=plan.inputs,
        outputs=taken,
        timeout_us=longest_us,
    )


def _client_inputs(
    needed: Mapping[str, tuple[str, TensorSpec]], features: Call | None
) -> tuple[TensorSpec, ...]:
    """What clients send: the keys of the features, and what models take that no feature gives."""
    given = {spec.name for spec in features.outputs} if features is not None else set[str]()
    inputs = {spec.name: spec for spec in features.inputs} if features is not None else {}
    for name, (part, spec) in needed.items():
        if name in given:
            continue
        before = inputs.setdefault(name, spec)
        if not _fits(before, spec):
            raise _invalid(
                f"input {name} is {_words(before)} for the features and {_words(spec)} for {part}: "
                "a request can carry only one"
            )
    return tuple(inputs.values())


def _fits(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether a tensor of `one` can be handed over as `other`; a free dimension takes any length."""
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return False
    return all(
        length == wanted or -1 in (length, wanted)
        for length, wanted in zip(one.shape, other.shape, strict=True)
    )


def _words(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _renamed(spec: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape)


def _microseconds(duration: str) -> int:
    return round(parse_duration(duration).total_seconds() * 1_000_000)


def _invalid(message: str) -> _RefusedError:
    return _RefusedError(Reason.PIPELINE_INVALID, message, stalled=True)
