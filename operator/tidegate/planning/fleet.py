"""From objects and pods to what routing starts from: every backend with the pods that can answer now."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.planning.pods import PodView
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.resources.pod import GRPC_PORT, HTTP_PORT
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint, FleetState

_LABELS: Mapping[BackendKind, str] = {
    BackendKind.INFERENCE: INFERENCE_LABEL,
    BackendKind.FEATURE_COMPUTE: FEATURE_COMPUTE_LABEL,
}


def backend_of_pod(namespace: str, labels: Mapping[str, str]) -> BackendKey | None:
    """The backend that a pod with these labels belongs to, if it is one of ours."""
    for kind, label in _LABELS.items():
        if (name := labels.get(label)) is not None:
            return BackendKey(kind, namespace, name)
    return None


def fleet_state(
    accesses: Iterable[ModelAccess],
    inferences: Iterable[Inference],
    features: Iterable[FeatureCompute],
    pods: Iterable[tuple[BackendKey, PodView]],
) -> FleetState:
    """The state at one moment. An object that is being deleted takes no traffic any more."""
    endpoints: dict[BackendKey, list[Endpoint]] = defaultdict(list)
    for key, pod in pods:
        if pod.ready and pod.reachable and pod.address is not None:
            endpoints[key].append(Endpoint(pod.address, GRPC_PORT, HTTP_PORT))
    served: dict[BackendKey, tuple[str, str]] = {}
    for inference in inferences:
        if inference.metadata.deletion_timestamp is None:
            served[_key(BackendKind.INFERENCE, inference.key)] = (
                inference.served_name,
                inference.metadata.uid,
            )
    for one in features:
        if one.metadata.deletion_timestamp is None:
            served[_key(BackendKind.FEATURE_COMPUTE, one.key)] = one.metadata.name, one.metadata.uid
    return FleetState(
        accesses=tuple(one for one in accesses if one.metadata.deletion_timestamp is None),
        backends={
            key: Backend(key, name, tuple(sorted(endpoints.get(key, ()))), uid)
            for key, (name, uid) in served.items()
        },
    )


def _key(kind: BackendKind, key: ObjectKey) -> BackendKey:
    return BackendKey(kind, key.namespace, key.name)
