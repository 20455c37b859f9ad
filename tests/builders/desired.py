"""Orders for the agent."""

from __future__ import annotations

from typing import Any

from tidegate_dataplane.contract import DesiredState, ModelFormat, OwnerKind


def a_desired_state(**changes: Any) -> DesiredState:
    """An order for version 1 of an ONNX model; `changes` are fields of DesiredState."""
    fields: dict[str, Any] = {
        "owner": "ads/ctr",
        "kind": OwnerKind.INFERENCE,
        "epoch": 1,
        "generation": 1,
        "model": "ctr",
        "version": 1,
        "uri": "file:///models/ctr",
        "format": ModelFormat.ONNX,
    }
    return DesiredState.model_validate({**fields, **changes})
