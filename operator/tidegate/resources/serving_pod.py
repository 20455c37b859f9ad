"""What a pod that serves a model is made from, and the names and ports that others know it by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
