"""Builds what pipelines call, as the API server would hand it out once it serves."""

from __future__ import annotations

from typing import Any

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.planning.access.pipeline_plan import Callees
from tidegate.routing.pipelines import parts_target


def a_tensor(name: str, dtype: str = "FP32", *shape: int) -> dict[str, Any]:
    """A tensor of a model's status, [-1, 1] unless told otherwise."""
    return {"name": name, "dtype": dtype, "shape": list(shape or (-1, 1))}


def a_loaded_inference(
    name: str,
    inputs: list[dict[str, Any]] | None = None,
    outputs: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> Inference:
    """An Inference that has said what goes in and out."""
    tensors = {
        "inputs": inputs or [a_tensor("age", "INT64"), a_tensor("price")],
        "outputs": outputs or [a_tensor("score")],
    }
    return an_inference(name, status={"model": {"name": name, **tensors}}, **spec)


def some_callees(*inferences: Inference) -> Callees:
    """ctr and cvr (or other ones), features that give their `age`, and an access `cvr` before both."""
    found = inferences or (
        a_loaded_inference("ctr"),
        a_loaded_inference("cvr", batching={"maxBatchSize": 64}),
    )
    return Callees(
        inferences={one.metadata.name: one for one in found},
        features={"user-features": a_feature_compute()},
        accesses={"cvr": a_model_access("cvr", routes=[a_route("default", "cvr")])},
    )


def part_headers(access: ModelAccess) -> dict[str, str]:
    """Return the headers of a call of the part `ctr` of the access's pipeline."""
    return {"x-tidegate-access": parts_target(access), "x-tidegate-part": "ctr"}
