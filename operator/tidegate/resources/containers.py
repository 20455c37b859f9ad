"""Build the containers of a pod that serves a model: Triton, the agent that drives it, the compiler and the ingester."""

from collections.abc import Mapping
from typing import Final

from tidegate.resources.serving_pod import (
    AGENT_CPU,
    AGENT_MEMORY,
    AGENT_PORT,
    COMPILER_CONTAINER,
    CONTROL_PORT,
    GRPC_PORT,
    HTTP_PORT,
    INGESTER_CPU,
    INGESTER_MEMORY,
    METRICS_PORT,
    EventStore,
    ServingPod,
)
from tidegate.resources.settings import ServingSettings

_CONTROL_KEY: Final = "/run/tidegate/control-key"
_RESTRICTED: Final = "model-repository,shared-memory,trace,logging"
_NODE_CACHE: Final = "/var/cache/tidegate"
_COMPILE_FOLDER: Final = "/var/lib/tidegate/cache/compile"
_COMPILED_MOUNT: Final = {"name": "compiled", "mountPath": "/var/lib/tidegate/cache/compiled"}
_SAMPLES_SECRET: Final = "/etc/tidegate-samples"  # noqa: S105 - a folder
_STREAM_SECRET: Final = "/etc/tidegate-stream"  # noqa: S105 - a folder
_RESULTS_SECRET: Final = "/etc/tidegate-results"  # noqa: S105 - a folder
_EVENTS_SECRETS: Final = "/etc/tidegate-events"
_EVENTS_MOUNT: Final[Mapping[str, object]] = {"name": "events", "mountPath": "/var/lib/tidegate/events"}
"""Writable for readers too: they take their place in the lock file beside the store."""
_REDIS_MOUNT: Final[Mapping[str, object]] = {
    "name": "redis-secret",
    "mountPath": "/etc/tidegate-store",
    "readOnly": True,
}
_SAMPLES_CLAIMS: Final = "/mnt/samples"
_TELL_AGENT: Final = "kill -USR1 1"
"""Runs in the agent's container when the pod is deleted: sidecars get SIGTERM last, but this at once."""
_AWAIT_DRAINED: Final = (
    "cd /run/tidegate; n=0; while [ ! -e drained ] && [ $n -lt 100 ]; do "
    "n=$((n+1)); [ -e leaving ] || [ $n -lt 15 ] || exit 0; sleep 0.2; done"
)
"""Runs in Triton's container before SIGTERM: until the agent reports that no more requests come, and at most 20 s.

If only Triton failed its probe, the pod stays and the agent gets no signal; 3 s are enough to know.
"""
_TRITON_COMMAND: Final = " ".join(
    [
        "exec tritonserver",
        "--model-repository=/var/lib/tidegate/repository",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        "--exit-timeout-secs={exit_timeout_s}",
        f"--http-port={HTTP_PORT} --grpc-port={GRPC_PORT} --metrics-port={METRICS_PORT}",
        f'--grpc-restricted-protocol={_RESTRICTED}:tidegate-control="$(cat {_CONTROL_KEY})"',
        f'--http-restricted-api={_RESTRICTED}:tidegate-control="$(cat {_CONTROL_KEY})"',
    ]
)
_ONE_DEVICE: Final = (
    'case "$NVIDIA_VISIBLE_DEVICES" in GPU-*) export CUDA_VISIBLE_DEVICES="$NVIDIA_VISIBLE_DEVICES";; esac; '
)
"""On a node with several GPUs under MPS a process would otherwise open all of them, and be counted on each."""
_OWN_REGIONS: Final = '--backend-config=python,shm-region-prefix-name="$POD_UID"'
"""Where pods of one node share /dev/shm, their regions must not have the same names."""
CONTAINER_SECURITY: Final[Mapping[str, object]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def build_read_mounts(pod: ServingPod) -> list[dict[str, object]]:
    """Return the mounts that a second process of ours reads.

    They are its order, the storage Secret, claims and the node's models.
    """
    mounts: list[dict[str, object]] = [
        {"name": "desired", "mountPath": "/etc/tidegate", "readOnly": True},
        {"name": "storage-secret", "mountPath": "/etc/tidegate-storage", "readOnly": True},
    ]
    if pod.host_models:
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    return mounts + _build_claim_mounts(pod)


def _build_claim_mounts(pod: ServingPod) -> list[dict[str, object]]:
    return [
        {"name": f"pvc-{index}", "mountPath": f"/mnt/pvc/{claim}", "readOnly": True}
        for index, claim in enumerate(pod.claims)
    ]


def _build_event_mounts(pod: ServingPod) -> list[Mapping[str, object]]:
    """Build the mounts of the store of events: on the pod's disk, or the Secret of its Redis."""
    return [
        *([_EVENTS_MOUNT] if pod.events is not None else []),
        *([_REDIS_MOUNT] if pod.redis_secret else []),
    ]


def build_agent(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the agent as a native sidecar: it runs, with Triton's control key written, before Triton starts."""
    mounts: list[Mapping[str, object]] = [
        {"name": "desired", "mountPath": "/etc/tidegate", "readOnly": True},
        {"name": "repository", "mountPath": "/var/lib/tidegate/repository"},
        {"name": "cache", "mountPath": "/var/lib/tidegate/cache"},
        {"name": "run", "mountPath": "/run/tidegate"},
        {"name": "storage-secret", "mountPath": "/etc/tidegate-storage", "readOnly": True},
        {"name": "agent-tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
    ]
    if pod.host_models:
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    if pod.cache_folder:
        mounts.append({"name": "node-cache", "mountPath": _NODE_CACHE, "subPath": pod.cache_folder})
    mounts += _build_claim_mounts(pod)
    if pod.sample_secret:
        mounts.append({"name": "samples-secret", "mountPath": _SAMPLES_SECRET, "readOnly": True})
    if pod.stream_secret:
        mounts.append({"name": "stream-secret", "mountPath": _STREAM_SECRET, "readOnly": True})
    if pod.results_secret:
        mounts.append({"name": "results-secret", "mountPath": _RESULTS_SECRET, "readOnly": True})
    if pod.compiler_memory:
        mounts += [{"name": "compile", "mountPath": _COMPILE_FOLDER}, _COMPILED_MOUNT]
    if pod.sample_claim:
        mounts.append({"name": "samples", "mountPath": f"{_SAMPLES_CLAIMS}/{pod.sample_claim}"})
    mounts += _build_event_mounts(pod)
    return {
        "name": "agent",
        "image": settings.dataplane_image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "tidegate_dataplane.agent"],
        "env": [
            make_field_env("POD_NAME", "metadata.name"),
            make_field_env("POD_NAMESPACE", "metadata.namespace"),
            make_field_env("POD_IP", "status.podIP"),
            {"name": "TIDEGATE_AGENT_SECRET_NAME", "value": pod.storage_secret},
            *_build_cache_env(pod, settings),
            *({"name": name, "value": value} for name, value in pod.agent_env.items()),
        ],
        "ports": [
            {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
            {"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _build_probe("/startedz", "agent", period_s=1, failures=120),
        "livenessProbe": _build_probe("/healthz", "agent", period_s=10, failures=6),
        "readinessProbe": _build_probe("/readyz", "agent", period_s=1, failures=2),
        "lifecycle": _build_pre_stop(_TELL_AGENT),
        "resources": {
            "requests": {
                "cpu": AGENT_CPU,
                "memory": AGENT_MEMORY,
                **({"ephemeral-storage": pod.disk} if pod.disk else {}),
            },
            "limits": {"memory": "1Gi"},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def build_triton(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the server, which loads what the agent tells it to."""
    mounts: list[Mapping[str, object]] = [
        {"name": "repository", "mountPath": "/var/lib/tidegate/repository", "readOnly": True},
        {"name": "run", "mountPath": "/run/tidegate", "readOnly": True},
        {"name": "triton-tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
    ]
    if not pod.shared_memory_of_node:
        # Triton's Python backend needs it. Another place in the list would replace every running pod.
        mounts.insert(2, {"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if pod.compiler_memory:
        # Its processes keep requests for the compiler, and load engines.
        mounts.append({"name": "compile", "mountPath": _COMPILE_FOLDER})
    mounts += _build_event_mounts(pod)
    return {
        "name": "triton",
        "image": settings.triton_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/bin/sh", "-c", _format_triton_command(pod)],
        "env": _build_triton_env(pod),
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _build_probe("/v2/health/live", "http", period_s=1, failures=120),
        "livenessProbe": _build_probe("/v2/health/live", "http", period_s=10, failures=6),
        "lifecycle": _build_pre_stop(_AWAIT_DRAINED),
        "resources": _build_resources(pod),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def build_compiler(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the compiler of graphs, which requests nothing: under pressure it gets no processor, and is killed first."""
    mounts: list[dict[str, object]] = [
        {"name": "repository", "mountPath": "/var/lib/tidegate/repository", "readOnly": True},
        {"name": "compile", "mountPath": _COMPILE_FOLDER},
        {**_COMPILED_MOUNT},
        {"name": "compiler-tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
    ]
    memory = {"resourceFieldRef": {"containerName": COMPILER_CONTAINER, "resource": "limits.memory"}}
    env: list[dict[str, object]] = [{"name": "TIDEGATE_COMPILER_MEMORY_BYTES", "valueFrom": memory}]
    if pod.cache_folder:
        mounts.append({"name": "node-cache", "mountPath": _NODE_CACHE, "subPath": pod.cache_folder})
        env.append({"name": "TIDEGATE_COMPILER_NODE_CACHE_DIR", "value": _NODE_CACHE})
        env.append({"name": "TIDEGATE_COMPILER_NODE_CACHE_BYTES", "value": str(settings.node_cache_bytes)})
    return {
        "name": COMPILER_CONTAINER,
        "image": settings.dataplane_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "tidegate_dataplane.compiler"],
        "env": env,
        "resources": {
            "requests": {"cpu": "0", "memory": "0"},
            "limits": {"memory": pod.compiler_memory},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def build_ingester(store: EventStore, settings: ServingSettings) -> dict[str, object]:
    """Build the process that writes the events of all streams into the store that Triton reads, on the pod's disk or in a Redis."""
    mounts: list[Mapping[str, object]] = [
        {"name": "desired", "mountPath": "/etc/tidegate", "readOnly": True},
        *([_EVENTS_MOUNT] if store.max_bytes else []),
        {"name": "ingester-tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        *(
            {"name": name, "mountPath": f"{_EVENTS_SECRETS}/{source}", "readOnly": True}
            for name, source, _ in store.secret_volumes
        ),
        *([_REDIS_MOUNT] if store.redis_secret else []),
    ]
    return {
        "name": "ingester",
        "image": settings.dataplane_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "tidegate_dataplane.ingester"],
        "env": [
            make_field_env("POD_NAME", "metadata.name"),
            make_field_env("POD_NAMESPACE", "metadata.namespace"),
            *(
                [{"name": "TIDEGATE_INGESTER_STORE_BYTES", "value": str(store.max_bytes)}]
                if store.max_bytes
                else []
            ),
        ],
        "resources": {
            "requests": {"cpu": INGESTER_CPU, "memory": INGESTER_MEMORY},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def _build_resources(pod: ServingPod) -> dict[str, object]:
    return {
        "requests": {"cpu": pod.cpu, "memory": pod.memory, **pod.devices},
        "limits": {"memory": pod.memory, **pod.devices},
    }


def _format_triton_command(pod: ServingPod) -> str:
    command = _TRITON_COMMAND.format(exit_timeout_s=pod.exit_timeout_s)
    if pod.forwarded_header:
        pattern = f"'^{pod.forwarded_header}$'"
        command += f" --http-header-forward-pattern={pattern} --grpc-header-forward-pattern={pattern}"
    if not pod.shared_memory_of_node:
        return command
    return f"{_ONE_DEVICE}{command} {_OWN_REGIONS}"


def _build_triton_env(pod: ServingPod) -> list[dict[str, object]]:
    variables = {"TIDEGATE_CPU": pod.cpu, **pod.env}
    env: list[dict[str, object]] = [{"name": name, "value": value} for name, value in variables.items()]
    if pod.shared_memory_of_node:
        env.append(make_field_env("POD_UID", "metadata.uid"))
    return env


def _build_cache_env(pod: ServingPod, settings: ServingSettings) -> list[dict[str, object]]:
    if not pod.cache_folder:
        return []
    return [
        {"name": "TIDEGATE_AGENT_NODE_CACHE_DIR", "value": _NODE_CACHE},
        {"name": "TIDEGATE_AGENT_NODE_CACHE_BYTES", "value": str(settings.node_cache_bytes)},
    ]


def _build_pre_stop(script: str) -> dict[str, object]:
    return {"preStop": {"exec": {"command": ["/bin/sh", "-c", script]}}}


def make_field_env(name: str, path: str) -> dict[str, object]:
    """Build a variable with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _build_probe(path: str, port: str, *, period_s: int, failures: int) -> dict[str, object]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }
