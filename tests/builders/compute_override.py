"""A ComputeOverride, valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.api.compute_override import ComputeOverride


def compute_override_body(
    name: str = "sale", *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """About Inference ads/ctr, with `spec` laid over it; None removes a field. Give it one of pin, floor and hold."""
    base = {
        "target": {"kind": "Inference", "namespace": "ads", "name": "ctr"},
        "reason": "the sale",
        "expiresAt": "2026-01-02T00:00:00Z",
    }
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "ComputeOverride",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **(metadata or {}),
        },
        "spec": overlaid(base, spec),
    }


def a_compute_override(
    name: str = "sale", *, metadata: dict[str, Any] | None = None, **spec: Any
) -> ComputeOverride:
    """A parsed ComputeOverride."""
    return ComputeOverride.parse(compute_override_body(name, metadata=metadata, **spec))
