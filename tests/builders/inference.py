"""Builds an Inference for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.api.inference import Inference
from tidegate.planning.plan import ReconcilePlan


def inference_body(
    name: str = "ctr", namespace: str = "ads", *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """The object as the API server would hand it out, without a status.

    Keywords lay over spec in the API's spelling; nested ones merge: inference_body(model={"version": "2"}).
    A value of None removes the field.
    """
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **(metadata or {}),
        },
        "spec": overlaid({"model": {"uri": f"file:///models/{name}", "version": "1"}, "replicas": 1}, spec),
    }


def an_inference(
    name: str = "ctr",
    namespace: str = "ads",
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> Inference:
    """A parsed Inference: an_inference(replicas=2, model={"version": "3"})."""
    return Inference.parse(
        {**inference_body(name, namespace, metadata=metadata, **spec), "status": status or {}}
    )


def find_config_map(plan: ReconcilePlan) -> dict[str, Any]:
    """Return the one ConfigMap that the plan applies, as the API server would store it."""
    (found,) = (dict(manifest) for manifest in plan.apply if manifest["kind"] == "ConfigMap")
    return {**found, "metadata": {**found["metadata"], "uid": "cm"}}  # type: ignore[dict-item]
