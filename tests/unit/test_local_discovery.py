"""What the local cluster's Prometheus is told to scrape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from builders.batch import batch_spec
from builders.inference import an_inference
from tidegate.api.inference import Inference
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.resources.settings import ServingSettings
from tidegate_localcluster.discovery import find_pod_targets

SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")


def a_pod_of(inference: Inference, kind: str) -> dict[str, Any]:
    """As the API server has a pod of what we make for an Inference."""
    plan = plan_inference(InferenceObserved(inference, datetime(2026, 1, 1, tzinfo=UTC), epoch=1), SETTINGS)
    made: Any = next(each for each in plan.apply if each["kind"] == kind)
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "namespace": "ads", "name": "inf-ctr-1"}
    return {
        "metadata": metadata,
        "spec": {**template["spec"], "nodeName": "node-0"},
        "status": {"podIP": "10.0.0.7"},
    }


def scraped(pod: dict[str, Any]) -> set[str]:
    return {
        f"{address}{target['labels']['__metrics_path__']}"  # type: ignore[index]
        for target in find_pod_targets([pod])
        for address in target["targets"]  # type: ignore[attr-defined]
    }


def test_a_model_has_the_pages_of_triton_and_of_its_agent() -> None:
    assert scraped(a_pod_of(an_inference(), "Deployment")) == {
        "10.0.0.7:8002/metrics",
        "10.0.0.7:8081/metrics",
    }


def test_a_batch_has_the_page_of_its_shard_as_well() -> None:
    batch = an_inference(tier="offline", batch=batch_spec())
    assert scraped(a_pod_of(batch, "Job")) == {
        "10.0.0.7:8002/metrics",
        "10.0.0.7:8081/metrics",
        "10.0.0.7:8083/metrics",
    }
