"""The plan of a FeatureCompute for what its pods report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from builders.pods import a_pod
from tidegate.api.feature_compute import FeatureCompute
from tidegate.planning.access.proxies import ProxyView
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.resources.names import SOURCE_LABEL, TEMPLATE_ANNOTATION
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SETTINGS = ServingSettings(
    dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models"
)


def plan_for_reports(features: FeatureCompute, *reports: AgentReport) -> ReconcilePlan:
    """The plan of a FeatureCompute whose pods are ready if they serve, and report these."""
    deployment: Any = next(item for item in _plan(features, [], {}).apply if item["kind"] == "Deployment")
    metadata = deployment["spec"]["template"]["metadata"]
    pods = [
        a_pod(
            f"p{number}",
            source=metadata["labels"][SOURCE_LABEL],
            template=metadata["annotations"][TEMPLATE_ANNOTATION],
            ready=report.serving is not None,
        )
        for number, report in enumerate(reports)
    ]
    return _plan(features, pods, {pod.uid: report for pod, report in zip(pods, reports, strict=True)})


def _plan(features: FeatureCompute, pods: list[PodView], reports: dict[str, AgentReport]) -> ReconcilePlan:
    proxies = (ProxyView("gateway-1", 0),)
    observed = FeaturesObserved(features, NOW, pods=pods, reports=reports, proxies=proxies)
    return plan_features(observed, _SETTINGS)
