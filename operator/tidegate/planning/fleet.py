"""From objects and pods to what routing starts from: every backend with the pods that can answer now."""

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import Resource
from tidegate.planning.pods import PodView
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.resources.pod import GRPC_PORT, HTTP_PORT
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

BACKEND_LABELS: Final[Mapping[BackendKind, str]] = {
    BackendKind.INFERENCE: INFERENCE_LABEL,
    BackendKind.FEATURE_COMPUTE: FEATURE_COMPUTE_LABEL,
}
"""The label of a backend's pods; its value is resources.names.label_value of the backend's name."""


def inference_backend(inference: Inference, pods: Iterable[PodView]) -> Backend:
    """An Inference and those of its pods that can answer now."""
    return _backend(BackendKind.INFERENCE, inference, inference.served_name, pods)


def features_backend(features: FeatureCompute, pods: Iterable[PodView]) -> Backend:
    """A FeatureCompute and those of its pods that can answer now."""
    return _backend(BackendKind.FEATURE_COMPUTE, features, features.metadata.name, pods)


def takes_traffic(resource: Resource | None) -> bool:
    """An object that is being deleted takes no traffic any more, nor does one that is not there."""
    return resource is not None and resource.metadata.deletion_timestamp is None


def _backend(kind: BackendKind, resource: Resource, served_name: str, pods: Iterable[PodView]) -> Backend:
    endpoints = sorted(
        Endpoint(pod.address, GRPC_PORT, HTTP_PORT)
        for pod in pods
        if pod.ready and pod.reachable and pod.address is not None
    )
    key = BackendKey(kind, resource.key.namespace, resource.key.name)
    return Backend(key, served_name, tuple(endpoints), resource.metadata.uid)
