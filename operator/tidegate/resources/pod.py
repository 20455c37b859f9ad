"""Build the pod that serves a model: Triton, and beside it the agent that fetches artefacts and drives Triton."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.resources.settings import ServingSettings

DEFAULT_ACCOUNT: Final = "default"
"""The ServiceAccount that every namespace has."""
CONTROL_PORT: Final = 8443
AGENT_PORT: Final = 8081
HTTP_PORT: Final = 8000
GRPC_PORT: Final = 8001
METRICS_PORT: Final = 8002
AGENT_CPU: Final = "50m"
AGENT_MEMORY: Final = "128Mi"
"""The agent's requests, beside the server's."""
INGESTER_CPU: Final = "100m"
INGESTER_MEMORY: Final = "128Mi"
"""The requests of the ingester of events."""
COMPILER_CONTAINER: Final = "compiler"
"""The container that compiles graphs, without which a pod serves."""
DESIRED_FILE: Final = "desired.json"
CLIENT_CA_FILE: Final = "client-ca.crt"

_CONTROL_KEY: Final = "/run/tidegate/control-key"
_RESTRICTED: Final = "model-repository,shared-memory,trace,logging"
_NODE_CACHE: Final = "/var/cache/tidegate"
_COMPILE_FOLDER: Final = "/var/lib/tidegate/cache/compile"
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
_GRACE_S: Final = 60
"""At most 20 s for draining, at most 30 s for Triton to finish its requests, and the rest for the agent."""

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


@dataclass(frozen=True, slots=True)
class EventStore:
    """The store that an ingester writes, and the Secrets of the brokers that it reads from."""

    secrets: Mapping[str, str]
    """Names of Secrets by source, of those sources that have one."""
    max_bytes: int = 0
    """Limit of a store on the disk of the pod; 0 for a Redis."""
    redis_secret: str = ""
    """Secret of the Redis; empty mounts none."""

    @property
    def secret_volumes(self) -> tuple[tuple[str, str, str], ...]:
        """Return name, source and Secret of each volume."""
        return tuple(
            (f"events-secret-{index}", source, secret)
            for index, (source, secret) in enumerate(self.secrets.items())
        )


@dataclass(frozen=True, slots=True)
class ServingPod:
    """The differences between the serving pods of the kinds."""

    labels: Mapping[str, str]
    spread_labels: Mapping[str, str]
    """Labels of the pods among which it is spread over the nodes."""
    config_map: str
    cpu: str
    memory: str
    storage_secret: str
    """Secret of the namespace with which artefacts are fetched; it need not exist."""
    forwarded_header: str = ""
    """Header of requests that Triton passes to the model as a parameter; empty passes none."""
    service_account: str = DEFAULT_ACCOUNT
    """ServiceAccount of the namespace. Its token is never mounted."""
    priority_class: str | None = None
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that artefacts come from, mounted read-only at /mnt/pvc/<claim>."""
    disk: str = ""
    """Disk that the agent requests for what it fetches; empty requests none. A limit would let the kubelet evict the pod."""
    cache_folder: str = ""
    """Sub-folder of the node's cache of artefacts that is mounted, that of the namespace; empty mounts none."""
    sample_secret: str = ""
    """Secret of the sample log's sink; empty mounts none."""
    sample_claim: str = ""
    """PersistentVolumeClaim that samples are written to, mounted at /mnt/samples/<claim>; empty mounts none."""
    stream_secret: str = ""
    """Secret of the near-line stream's broker; empty mounts none."""
    results_secret: str = ""
    """Secret of the broker that the stream's results go to; empty mounts none."""
    agent_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the agent, besides what every agent has."""
    exit_timeout_s: int = 30
    """How long the server finishes requests once it gets SIGTERM."""
    compiler_memory: str = ""
    """Memory limit of the compiler of graphs; empty runs none."""
    events: EventStore | None = None
    """Store of the events that features read, on the pod's disk; None for a plan without streams, or with a Redis."""
    redis_secret: str = ""
    """Secret of the Redis that has the events; empty mounts none."""
    host_models: bool = False
    """Whether an artefact has a `file:` URI, so that the node's models folder is mounted."""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that its node must have."""
    node: str = ""
    """The only node that it may run on; empty for any."""
    tolerations: tuple[Mapping[str, object], ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Devices of the server, by the resource's name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the server, besides what every server has."""
    run_as_user: int | None = None
    """User of the pod; None is that of the settings."""
    processes: int = 1
    """Processes of the server that answer requests, each through shared memory of its own."""
    shared_memory_of_node: bool = False
    """Whether the node mounts a /dev/shm into the server that all of its pods share."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Besides those that every pod has."""


def build_pod_template(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the pod template that all serving workloads share."""
    spec: dict[str, object] = {
        **_build_pod_settings(pod, settings),
        "initContainers": [_build_agent(pod, settings)],
        "containers": [
            _build_triton(pod, settings),
            *([_build_compiler(pod, settings)] if pod.compiler_memory else []),
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
    mounts.extend(
        {"name": f"pvc-{index}", "mountPath": f"/mnt/pvc/{claim}", "readOnly": True}
        for index, claim in enumerate(pod.claims)
    )
    return mounts


def _build_agent(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
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
    mounts += [
        {"name": f"pvc-{index}", "mountPath": f"/mnt/pvc/{claim}", "readOnly": True}
        for index, claim in enumerate(pod.claims)
    ]
    if pod.sample_secret:
        mounts.append({"name": "samples-secret", "mountPath": _SAMPLES_SECRET, "readOnly": True})
    if pod.stream_secret:
        mounts.append({"name": "stream-secret", "mountPath": _STREAM_SECRET, "readOnly": True})
    if pod.results_secret:
        mounts.append({"name": "results-secret", "mountPath": _RESULTS_SECRET, "readOnly": True})
    if pod.compiler_memory:
        mounts.append({"name": "compile", "mountPath": _COMPILE_FOLDER})
    if pod.sample_claim:
        mounts.append({"name": "samples", "mountPath": f"{_SAMPLES_CLAIMS}/{pod.sample_claim}"})
    if pod.events is not None:
        mounts.append(_EVENTS_MOUNT)
    if pod.redis_secret:
        mounts.append(_REDIS_MOUNT)
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


def _build_triton(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
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
    if pod.events is not None:
        mounts.append(_EVENTS_MOUNT)
    if pod.redis_secret:
        mounts.append(_REDIS_MOUNT)
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


def _build_compiler(pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    """Build the compiler of graphs, which requests nothing: under pressure it gets no processor, and is killed first."""
    mounts: list[dict[str, object]] = [
        {"name": "repository", "mountPath": "/var/lib/tidegate/repository", "readOnly": True},
        {"name": "compile", "mountPath": _COMPILE_FOLDER},
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


CONTAINER_SECURITY: Final[Mapping[str, object]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


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
