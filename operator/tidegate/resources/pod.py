"""Build the pod that serves a model: Triton, and beside it the agent that fetches artefacts and drives Triton."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.resources.containers import (
    build_agent,
    build_compiler,
    build_ingester,
    build_read_mounts,
    build_triton,
)
from tidegate.resources.serving_pod import (
    METRICS_PORT,
    ServingPod,
)
from tidegate.resources.settings import ServingSettings

_GRACE_S: Final = 60
"""At most 20 s for draining, at most 30 s for Triton to finish its requests, and the rest for the agent."""


def build_pod_template(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the pod template that all serving workloads share."""
    spec: dict[str, object] = {
        **_build_pod_settings(pod, settings),
        "initContainers": [build_agent(pod, settings)],
        "containers": [
            build_triton(pod, settings),
            *([build_compiler(pod, settings)] if pod.compiler_memory else []),
            *([build_ingester(pod.events, settings)] if pod.events is not None else []),
        ],
        "volumes": _build_volumes(pod, settings),
        **_build_scheduling(pod),
    }
    return {"metadata": _build_pod_metadata(pod, "triton", METRICS_PORT), "spec": spec}


def build_worker_template(
    pod: ServingPod,
    settings: ServingSettings,
    container: Mapping[str, object],
    metrics_port: int,
    volumes: Sequence[Mapping[str, object]],
) -> dict[str, Any]:
    """Build the template of a Job's pod that has one process of ours, and no server.

    Its volumes are `volumes` and those of `build_read_mounts`.
    """
    read = {mount["name"] for mount in build_read_mounts(pod)}
    return {
        "metadata": _build_pod_metadata(pod, str(container["name"]), metrics_port),
        "spec": {
            **_build_pod_settings(pod, settings),
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [
                *(volume for volume in _build_volumes(pod, settings) if volume["name"] in read),
                *volumes,
            ],
            **_build_scheduling(pod),
        },
    }


def _build_pod_metadata(pod: ServingPod, container: str, metrics_port: int) -> dict[str, object]:
    return {
        "labels": dict(pod.labels),
        "annotations": {
            "kubectl.kubernetes.io/default-container": container,
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(metrics_port),
            "prometheus.io/path": "/metrics",
            **pod.annotations,
        },
    }


def _build_pod_settings(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the fields that are before the containers in a pod's spec."""
    return {
        "serviceAccountName": pod.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": [_build_spread_constraint(pod)],
        "securityContext": build_security_context(pod, settings),
    }


def _build_scheduling(pod: ServingPod) -> dict[str, object]:
    """Build the fields that are behind the containers: where the pod runs, and what it displaces."""
    spec: dict[str, object] = {}
    if pod.priority_class is not None:
        spec["priorityClassName"] = pod.priority_class
    if pod.node_selector:
        spec["nodeSelector"] = dict(pod.node_selector)
    if pod.node:
        place = {"key": "metadata.name", "operator": "In", "values": [pod.node]}
        terms = {"nodeSelectorTerms": [{"matchFields": [place]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if pod.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pod.tolerations]
    return spec


def build_security_context(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the security context of a pod."""
    context: dict[str, object] = {
        "runAsNonRoot": True,
        **settings.security_context,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if pod.run_as_user is not None:
        context["runAsUser"] = pod.run_as_user
    if pod.sample_claim:
        # Otherwise the kubelet would go through all files of the log before every start of a pod.
        context["fsGroupChangePolicy"] = "OnRootMismatch"
    return context


def _build_spread_constraint(pod: ServingPod) -> dict[str, object]:
    """Prefer to spread over nodes, so that one node's end takes few replicas, and full nodes block none."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(pod.spread_labels)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _build_volumes(pod: ServingPod, settings: ServingSettings) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = [
        {"name": "desired", "configMap": {"name": pod.config_map}},
        {"name": "repository", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        *_build_shared_memory(pod),
        # Optional: the agent reports what is missing, and the kubelet mounts a Secret that is created later.
        {"name": "storage-secret", "secret": {"secretName": pod.storage_secret, "optional": True}},
        {"name": "agent-tmp", "emptyDir": {}},
        {"name": "triton-tmp", "emptyDir": {}},
    ]
    if pod.compiler_memory:
        volumes.append({"name": "compile", "emptyDir": {}})
        volumes.append({"name": "compiled", "emptyDir": {}})
        volumes.append({"name": "compiler-tmp", "emptyDir": {}})
    if pod.events is not None:
        # Without sizeLimit, at which the kubelet would evict the pod: the ingester bounds its file itself.
        volumes.append({"name": "events", "emptyDir": {}})
        volumes.append({"name": "ingester-tmp", "emptyDir": {}})
    if pod.host_models:
        volumes.append(
            {"name": "models", "hostPath": {"path": settings.models_host_path, "type": "Directory"}}
        )
    if pod.cache_folder:
        # Directory: the kubelet would make it for root alone.
        volumes.append(
            {"name": "node-cache", "hostPath": {"path": settings.node_cache_path, "type": "Directory"}}
        )
    for index, claim in enumerate(pod.claims):
        volumes.append(
            {"name": f"pvc-{index}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        )
    return volumes + _build_broker_volumes(pod)


def _build_shared_memory(pod: ServingPod) -> list[dict[str, object]]:
    if pod.shared_memory_of_node:
        return []
    size = max(256, 64 * pod.processes)
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Mi"}}]


def _build_broker_volumes(pod: ServingPod) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = []
    secrets = (
        ("samples-secret", pod.sample_secret),
        ("stream-secret", pod.stream_secret),
        ("results-secret", pod.results_secret),
        *(
            (name, secret)
            for name, _, secret in (pod.events.secret_volumes if pod.events is not None else ())
        ),
        ("redis-secret", pod.redis_secret),
    )
    volumes += [build_secret_volume(name, secret) for name, secret in secrets if secret]
    if pod.sample_claim:
        volumes.append({"name": "samples", "persistentVolumeClaim": {"claimName": pod.sample_claim}})
    return volumes


def build_secret_volume(name: str, secret: str) -> dict[str, object]:
    """Build a volume of a Secret, which is optional like the storage Secret: pods run without it, and report what is missing."""
    return {"name": name, "secret": {"secretName": secret, "optional": True}}
