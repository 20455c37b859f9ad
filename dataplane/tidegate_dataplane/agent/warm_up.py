"""Warm-up: executions of zeros that a version must answer before it counts as ready. Pure.

Zeros are a row that every embedding table has, and what pads a sequence; random numbers are neither.
Our own runner makes them while it starts. Triton's model_warmup would do it for every backend, but of a sample that
fails Triton 2.51 dies now and then with signal 11, and the version that serves dies with it.
"""

from typing import Any

from tidegate_dataplane.agent.config_text import ModelConfig

WARM_UP_PARAMETER = "tidegate_warmup_requests"


def with_warm_up(config: ModelConfig, requests: int) -> ModelConfig:
    """Return `config` with the number of requests that our runner answers while it starts."""
    if not requests:
        return config
    parameter = {WARM_UP_PARAMETER: {"string_value": str(requests)}}
    return {**config, "parameters": {**config.get("parameters", {}), **parameter}}


def without_warm_up(config: ModelConfig) -> ModelConfig:
    """Return `config` as it was before `with_warm_up`."""
    parameters = {
        name: value for name, value in config.get("parameters", {}).items() if name != WARM_UP_PARAMETER
    }
    return {**config, "parameters": parameters}


def zero_row_request(config: ModelConfig) -> list[dict[str, Any]]:
    """Return one warm-up execution for Triton's own backends; none if the shapes do not define a row."""
    tensors = config["input"]
    if not tensors or any(size < 1 for tensor in tensors for size in tensor["dims"]):
        return []
    zeros = {
        tensor["name"]: {"data_type": tensor["data_type"], "dims": tensor["dims"], "zero_data": True}
        for tensor in tensors
    }
    return [{"name": "zeros", "batch_size": 1, "inputs": zeros}]
