"""Builds a ModelAccess for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.api.model_access import ModelAccess


def a_route(name: str = "default", *inferences: str, **fields: Any) -> dict[str, Any]:
    """A route to those Inferences (`ctr` when none is named) with a weight of 100 each, as the API spells it.

    Its timeout is longer than a busy machine ever keeps a request waiting: a test of timeouts names its own.
    """
    targets = [{"inference": inference, "weight": 100} for inference in inferences or ("ctr",)]
    return overlaid({"name": name, "targets": targets, "timeout": "20s"}, fields)


def model_access_body(
    name: str = "ctr", namespace: str = "ads", *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """The object as the API server would hand it out, without a status; keywords lay over spec."""
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "ModelAccess",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **(metadata or {}),
        },
        "spec": overlaid({"routes": [a_route()]}, spec),
    }


def a_model_access(
    name: str = "ctr",
    namespace: str = "ads",
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> ModelAccess:
    """A parsed ModelAccess: a_model_access(routes=[a_route("default", "v3", "v4")])."""
    return ModelAccess.parse(
        {**model_access_body(name, namespace, metadata=metadata, **spec), "status": status or {}}
    )
