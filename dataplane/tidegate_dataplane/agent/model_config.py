"""Triton's model configuration, derived from the artefact's own signature and the desired state. Pure."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.config_text import ModelConfig, parse_config_text
from tidegate_dataplane.agent.formats import COMPILED_FORMATS, MODEL_FILES, NATIVE_BACKENDS, SERVED_GRAPH
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.agent.warm_up import with_warm_up, without_warm_up, zero_row_request
from tidegate_dataplane.contract import (
    AS_OF,
    NOT_CURRENT,
    BatchingMode,
    DesiredState,
    FailureReason,
    ModelFormat,
    TensorSpec,
)
from tidegate_dataplane.runner_interface import ENGINE_PARAMETER

CONFIG_DIGEST = "tidegate_config_digest"
RELOAD_MARK = "tidegate_loaded_anew"
INTRA_OP_THREADS = "intra_op_thread_count"
CHECKED_JOINS = "tidegate_checked_joins"
SHARED_INPUTS = "tidegate_shared_inputs"
MAX_ROWS = "tidegate_max_rows"
OWN_PARAMETERS = "tidegate_"
ON_CPU = [{"kind": "KIND_CPU", "count": 1}]
# Batches that a pipeline has under way: an instance only waits for answers. More would cut what waits into more calls.
PIPELINE_INSTANCES = [{"kind": "KIND_CPU", "count": 4}]

# What the config.pbtxt beside an artefact that is not code may set.
ALLOWED_FIELDS = frozenset(
    {
        "instance_group",
        "metric_tags",
        "model_metrics",
        "model_transaction_policy",
        "model_warmup",
        "optimization",
        "parameters",
        "response_cache",
    }
)
# What it may contain but the artefact's signature or the desired state decides; any other field is refused,
# because it names code or other models.
DECIDED_FIELDS = frozenset(
    {
        "backend",
        "default_model_filename",
        "dynamic_batching",
        "input",
        "max_batch_size",
        "name",
        "output",
        "platform",
        "version_policy",
    }
)
# The parameter through which a configuration would bring a Python environment of its own into the server.
CODE_PARAMETER = "EXECUTION_ENV_PATH"


def render_config(
    order: DesiredState, facts: ArtefactFacts, *, backend: OnnxBackend, intra_op_threads: int | None
) -> ModelConfig | VersionRefusal:
    """Return the configuration for `order` without a version policy, or why there cannot be one."""
    try:
        artefact = parse_config_text(facts.config_text or "")
    except ValueError as error:
        return _invalid_config(f"config.pbtxt beside the versions cannot be read: {error}")
    if order.format is ModelFormat.PYTHON:
        config = _python_config(order, artefact)
    elif order.format in COMPILED_FORMATS:
        config = _compiled_config(order, artefact)
    else:
        config = _derive_config(order, facts, artefact, backend=backend, intra_op_threads=intra_op_threads)
    if isinstance(config, VersionRefusal):
        return config
    if order.format is ModelFormat.ONNX and config["backend"] == "python":
        config = with_warm_up(config, order.warmup_requests)
        config = _with_engine(order, config)
    return _with_batching(order, config, artefact)


def _with_engine(order: DesiredState, config: ModelConfig) -> ModelConfig:
    """Return `config` with what our runner has to know to use engines."""
    if order.engine is None:
        return config
    parameter = {ENGINE_PARAMETER: {"string_value": order.engine.model_dump_json()}}
    return {**config, "parameters": {**config.get("parameters", {}), **parameter}}


def config_digest(config: ModelConfig) -> str:
    """Return a digest of everything but the version policy, so that versions of one signature share it.

    It excludes our own warm-up as well: more warm-up requests must not unload the kept versions.
    """
    bare = {name: value for name, value in without_warm_up(config).items() if name != "version_policy"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()[:32]


def with_versions(config: ModelConfig, versions: Sequence[int], *, mark: str = "") -> ModelConfig:
    """Return the configuration that serves exactly `versions`; requests without a version get the highest.

    A `mark` changes the configuration for the server, which then reloads it, and leaves our digest as it is.
    """
    ours = {CONFIG_DIGEST: {"string_value": config_digest(config)}}
    if mark:
        ours[RELOAD_MARK] = {"string_value": mark}
    return {
        **config,
        "parameters": {**config.get("parameters", {}), **ours},
        "version_policy": {"specific": {"versions": sorted(versions)}},
    }


def _invalid_config(message: str) -> VersionRefusal:
    return VersionRefusal(FailureReason.ARTEFACT_INVALID, message)


def _derive_config(
    order: DesiredState,
    facts: ArtefactFacts,
    artefact: ModelConfig,
    *,
    backend: OnnxBackend,
    intra_op_threads: int | None,
) -> ModelConfig | VersionRefusal:
    config = _keep_allowed_fields(order, artefact)
    if isinstance(config, VersionRefusal):
        return config
    if order.format is ModelFormat.ONNX and intra_op_threads is not None:
        threads = {INTRA_OP_THREADS: {"string_value": str(max(intra_op_threads // order.instances, 1))}}
        config["parameters"] = {**threads, **config.get("parameters", {})}
    # Where it is not known yet what the server has, only our runner shares inputs.
    foreign = (OnnxBackend.NATIVE,) if order.shared_inputs else (OnnxBackend.NATIVE, OnnxBackend.AUTO)
    native = order.format is ModelFormat.ONNX and backend in foreign
    if native:
        config |= _native_fields(order.format)
    else:
        instances = PIPELINE_INSTANCES if order.format is ModelFormat.PIPELINE else ON_CPU
        config = {"instance_group": instances, **config, "backend": "python"}
    if order.instances > 1:
        groups: Any = config.get("instance_group", [{}])
        if len(groups) > 1:
            return _invalid_config(
                f"spec.instances is {order.instances}, and config.pbtxt beside the versions has {len(groups)} instance groups: "
                "remove one of them"
            )
        config["instance_group"] = [{**groups[0], "count": order.instances}]
    if order.shared_inputs:
        return _with_shared_inputs(order, facts, config, native=native)
    config["max_batch_size"] = order.max_batch_size if facts.batched else 0
    config["input"] = [_declare_tensor(spec, batched=facts.batched) for spec in facts.inputs]
    config["output"] = [_declare_tensor(spec, batched=facts.batched) for spec in facts.outputs]
    if order.plan is not None and order.plan.streams:
        config["input"].append({"name": AS_OF, "data_type": "TYPE_INT64", "dims": [1], "optional": True})
        # Without a store no answer has it, but a pipeline may ask for it while a change of the store rolls out.
        config["output"].append({"name": NOT_CURRENT, "data_type": "TYPE_STRING", "dims": [1]})
    if native:  # Our own runners warm up by themselves, and Triton counts its warm-up as a request.
        config.setdefault("model_warmup", zero_row_request(config))
    return config


def _with_shared_inputs(
    order: DesiredState, facts: ArtefactFacts, config: ModelConfig, *, native: bool
) -> ModelConfig | VersionRefusal:
    """Return the configuration with which requests may have one row of some inputs and more of the others.

    Without a batch dimension, Triton leaves the rows to our runner.
    """
    if problem := _find_sharing_problem(order, facts, config, native=native):
        return _invalid_config(f"spec.model.sharedInputs: {problem}")
    parameters = {
        SHARED_INPUTS: {"string_value": json.dumps(order.shared_inputs)},
        MAX_ROWS: {"string_value": str(order.max_batch_size)},
    }
    return {
        **config,
        "max_batch_size": 0,
        "input": [_declare_rows(spec) for spec in facts.inputs],
        "output": [_declare_rows(spec) for spec in facts.outputs],
        "parameters": {**config.get("parameters", {}), **parameters},
    }


def _find_sharing_problem(
    order: DesiredState, facts: ArtefactFacts, config: ModelConfig, *, native: bool
) -> str:
    names = {spec.name for spec in facts.inputs}
    if native:
        return (
            "only Tidegate's runner repeats rows, and this server has an ONNX backend of its own: remove it"
        )
    if unknown := sorted(set(order.shared_inputs) - names):
        return f"the model has no input {', '.join(unknown)}; it has {', '.join(sorted(names))}"
    if not facts.batched:
        return (
            "the first dimension of every input and output must be free, and inputs that name it must agree on the name: "
            "export the model so, or remove it"
        )
    if names == set(order.shared_inputs):
        return "it names all inputs, so that none has the rows of the request: leave out those of the items"
    if "model_warmup" in config:
        return "config.pbtxt beside the versions sets model_warmup, whose requests have no rows: use rollout.warmup"
    return ""


def _declare_rows(spec: TensorSpec) -> dict[str, Any]:
    """Return a tensor with its rows as a dimension like others, in the form that it has with a batch dimension."""
    tensor = _declare_tensor(spec, batched=True)
    reshape = {"reshape": {"shape": [-1]}} if "reshape" in tensor else {}
    return {**tensor, "dims": [-1, *tensor["dims"]], **reshape}


def _keep_allowed_fields(order: DesiredState, artefact: ModelConfig) -> ModelConfig | VersionRefusal:
    """Return the allowed fields of the artefact's own configuration, under our model name."""
    foreign = sorted(set(artefact) - ALLOWED_FIELDS - DECIDED_FIELDS)
    if foreign:
        allowed = ", ".join(sorted(ALLOWED_FIELDS))
        return _invalid_config(
            f"config.pbtxt sets {', '.join(foreign)}; beside an artefact of format {order.format} it may set {allowed}"
        )
    if CODE_PARAMETER in artefact.get("parameters", {}):
        return _invalid_config(
            f"config.pbtxt sets the parameter {CODE_PARAMETER}, which brings code; use format Python"
        )
    fields = {name: value for name, value in artefact.items() if name in ALLOWED_FIELDS}
    if "parameters" in fields:
        # Ours are decided by the order.
        fields["parameters"] = {
            name: value for name, value in fields["parameters"].items() if not name.startswith(OWN_PARAMETERS)
        }
    return {**fields, "name": order.model}


def _native_fields(model_format: ModelFormat) -> ModelConfig:
    """Return the fields that select Triton's own backend for the format."""
    native = NATIVE_BACKENDS[model_format]
    return {
        "backend": native.backend,
        "platform": native.platform,
        "default_model_filename": SERVED_GRAPH
        if model_format is ModelFormat.ONNX
        else MODEL_FILES[model_format],
    }


def _compiled_config(order: DesiredState, artefact: ModelConfig) -> ModelConfig | VersionRefusal:
    """Return the configuration of a compiled model, with batches no larger than it was compiled for."""
    if not artefact.get("input") or not artefact.get("output"):
        return _invalid_config(
            f"an artefact of format {order.format} needs {order.uri}/config.pbtxt with its inputs and outputs: they "
            "cannot be read from a compiled model"
        )
    config = _keep_allowed_fields(order, artefact)
    if isinstance(config, VersionRefusal):
        return config
    max_batch_size = min(order.max_batch_size, artefact.get("max_batch_size", 0))
    signature = {"input": artefact["input"], "output": artefact["output"]}
    return {**config, **_native_fields(order.format), **signature, "max_batch_size": max_batch_size}


def _python_config(order: DesiredState, artefact: ModelConfig) -> ModelConfig | VersionRefusal:
    if not artefact.get("input") and not artefact.get("output"):
        return _invalid_config(
            f"a Python artefact needs {order.uri}/config.pbtxt with its inputs and outputs: they cannot be "
            "read from code"
        )
    config: ModelConfig = {"instance_group": ON_CPU, **artefact, "name": order.model, "backend": "python"}
    config.pop("platform", None)
    config.pop("version_policy", None)
    config["max_batch_size"] = order.max_batch_size if artefact.get("max_batch_size", 0) > 0 else 0
    return config


def _with_batching(
    order: DesiredState, config: ModelConfig, artefact: ModelConfig
) -> ModelConfig | VersionRefusal:
    if order.batching is BatchingMode.ADAPTIVE and _joins_requests(order, config):
        return _with_checked_joins(config)
    if order.batching is not BatchingMode.FIXED:
        return {name: value for name, value in config.items() if name != "dynamic_batching"}
    if config["max_batch_size"] == 0:
        tensors = [*config.get("input", []), *config.get("output", [])]
        shapes = ", ".join(f"{tensor['name']} {tensor.get('dims', [])}" for tensor in tensors)
        return _invalid_config(
            "batching.mode Fixed needs a free first dimension on every input and output, and this artefact has "
            f"{shapes}; export it so, or set batching.mode to Disabled"
        )
    delay = {"max_queue_delay_microseconds": order.max_queue_delay_us}
    return {**config, "dynamic_batching": {**artefact.get("dynamic_batching", {}), **delay}}


def _joins_requests(order: DesiredState, config: ModelConfig) -> bool:
    """Return whether our ONNX runner gets the requests, and their rows can be joined."""
    return order.format is ModelFormat.ONNX and config["backend"] == "python" and config["max_batch_size"] > 0


def _with_checked_joins(config: ModelConfig) -> ModelConfig:
    """Return `config` with which Triton passes on all that has arrived as soon as the runner is free.

    Waiting for more requests did not pay, and Triton 2.51 stalls for up to 0.5 s with priorities or time limits in its
    queue (ADR 62). Requests of different shapes arrive together, since the runner pads them.
    """
    parameters = {**config.get("parameters", {}), CHECKED_JOINS: {"string_value": "true"}}
    inputs = [
        {**tensor, "allow_ragged_batch": True} if -1 in tensor["dims"] else tensor
        for tensor in config["input"]
    ]
    return {**config, "parameters": parameters, "input": inputs, "dynamic_batching": {}}


def _declare_tensor(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    dims = list(spec.shape[1:] if batched else spec.shape)
    data_type = "TYPE_STRING" if spec.dtype == "BYTES" else f"TYPE_{spec.dtype}"
    if dims:
        return {"name": spec.name, "data_type": data_type, "dims": dims}
    # Triton wants a dimension where the model has none: offer [1] and hand over [].
    return {"name": spec.name, "data_type": data_type, "dims": [1], "reshape": {"shape": []}}
