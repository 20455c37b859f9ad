"""Build the backends of routing from objects and pods: every backend with the pods that can answer now."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, NodeLossMode
from tidegate.api.meta import CustomResource
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import list_shared_namespaces
from tidegate.planning.inference.replicas import select_serving_pods
from tidegate.planning.pods import PodView
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, PIPELINE_LABEL, to_label_value
from tidegate.resources.serving_pod import GRPC_PORT, HTTP_PORT
from tidegate.routing.fleet import FULL_WEIGHT, Backend, BackendKey, BackendKind, Endpoint
from tidegate.routing.pipelines import pipeline_key

_MAX_WEIGHT: Final = 1_000_000
"""The sum of the weights of 1,000 pods is to fit into 32 bits."""

BACKEND_LABELS: Final[Mapping[BackendKind, str]] = {
    BackendKind.INFERENCE: INFERENCE_LABEL,
    BackendKind.FEATURE_COMPUTE: FEATURE_COMPUTE_LABEL,
    BackendKind.PIPELINE: PIPELINE_LABEL,
}
"""The label of a backend's pods; its value is resources.names.label_value of the backend's name."""


def build_inference_backend(
    inference: Inference,
    pods: Iterable[PodView],
    spares: Iterable[PodView] = (),
    needed: float = 0.0,
    *,
    had_spares: bool = False,
) -> Backend:
    """Return the backend of an Inference with its pods that can answer now, without warm spares.

    `spares` are pods that Inferences share; those that serve the version and the source of this one's replicas answer for replicas
    that are gone, and for what clients send beyond those that were decided: `needed` is how many replicas' work that is in all.
    Gateways check the pods if one is to serve for them: by spec.scaling.nodeLoss, or without that if it `had_spares`
    before, since nodeLoss of its pool is then Shared.
    """
    key = BackendKey(BackendKind.INFERENCE, inference.key.namespace, inference.key.name)
    allocation = inference.status.allocation if inference.spec.scaling is not None else None
    decision = allocation.decision if allocation is not None else ""
    own = select_serving_pods(inference, pods)
    backend = _build_backend(
        key,
        inference,
        inference.served_name,
        own,
        decision=decision,
        weights=weigh_pools(inference),
    )
    mode = inference.spec.scaling.node_loss if inference.spec.scaling is not None else None
    backend = replace(
        backend,
        value=inference.spec.value.per_request,
        shared_with=list_shared_namespaces(inference),
        checked=mode is NodeLossMode.SHARED or (mode is None and had_spares),
    )
    if not inference.decided_replicas:
        return backend
    # Without a pod that is ready, no version is known to serve; the spare has the one that all replicas had. A number alone says
    # nothing: a changed spec.model.uri may have another model under the same one.
    sources = {pod.source for pod in own if pod.source}
    name, serving = inference.metadata.name, inference.status.versions.serving
    shared = [
        Endpoint(pod.address, GRPC_PORT, HTTP_PORT, decision)
        for pod in spares
        if pod.ready
        and pod.is_reachable
        and pod.address is not None
        and (model := pod.shared_models.get(name)) is not None
        and serving in (None, str(model.version))
        and (not sources or model.source in sources)
    ]
    return backend.with_spares(shared, max(inference.decided_replicas, needed))


def weigh_pools(inference: Inference) -> Mapping[str, int]:
    """Return the weight of a pod in each of the listed pools, by the pool's label; empty without a list, where all are equal."""
    placement = inference.spec.placement
    if placement is None or placement.pools is None:
        return {}
    return {
        to_label_value(share.name): min(max(round(FULL_WEIGHT * share.relative_capacity), 1), _MAX_WEIGHT)
        for share in placement.pool_shares
    }


def build_features_backend(features: FeatureCompute, pods: Iterable[PodView]) -> Backend:
    """Return the backend of a FeatureCompute with its pods that can answer now."""
    key = BackendKey(BackendKind.FEATURE_COMPUTE, features.key.namespace, features.key.name)
    return _build_backend(key, features, features.metadata.name, pods)


def map_pipeline_routes(access: ModelAccess) -> Mapping[BackendKey, str]:
    """Return the route of each pipeline backend of an access."""
    return {
        pipeline_key(access.key, route.name): route.name
        for route in access.spec.routes
        if route.pipeline is not None
    }


def build_pipeline_backend(access: ModelAccess, route: str, pods: Iterable[PodView]) -> Backend:
    """Return the backend of one route's pipeline with its pods that can answer now.

    All of its pods may call models, ready or not.
    """
    all_pods = tuple(pods)
    backend = _build_backend(pipeline_key(access.key, route), access, access.metadata.name, all_pods)
    return replace(
        backend,
        calls=tuple(sorted({name for pod in all_pods for name in pod.calls})),
        callers=tuple(sorted({address for pod in all_pods for address in pod.addresses})),
    )


def takes_traffic(resource: CustomResource | None) -> bool:
    """Return whether an object gets traffic: it exists and is not being deleted."""
    return resource is not None and resource.metadata.deletion_timestamp is None


def _build_backend(
    key: BackendKey,
    resource: CustomResource,
    served_name: str,
    pods: Iterable[PodView],
    *,
    decision: str = "",
    weights: Mapping[str, int] | None = None,
) -> Backend:
    weight_by_pool, default = weights or {}, FULL_WEIGHT if weights else 0
    endpoints = sorted(
        Endpoint(pod.address, GRPC_PORT, HTTP_PORT, decision, weight_by_pool.get(pod.pool, default))
        for pod in pods
        if pod.ready and pod.is_reachable and pod.address is not None
    )
    return Backend(key, served_name, tuple(endpoints), resource.metadata.uid)
