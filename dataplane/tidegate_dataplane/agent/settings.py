"""The agent's settings: environment variables that start with TIDEGATE_AGENT_, and the pod's own names."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_dataplane.contract import LOAD_TIMEOUT_S

PREFIX = "TIDEGATE_AGENT_"


class OnnxBackend(StrEnum):
    """What runs ONNX models: Triton's own backend, our Python-hosted runner, or the first of them that works."""

    AUTO = "auto"
    NATIVE = "native"
    HOSTED = "hosted"


class AgentSettings(BaseModel):
    """Paths, ports and limits of one agent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pod_name: str = Field(default="unknown", description="from the downward API")
    pod_namespace: str = Field(default="default", description="from the downward API")
    pod_ip: str = Field(
        default="127.0.0.1", description="from the downward API; the controllers call the agent at it"
    )

    address: str = Field(default="0.0.0.0", description="where both servers listen")  # noqa: S104 - a pod's address
    control_port: int = Field(default=8443, description="orders, by the controllers' certificate alone")
    http_port: int = Field(default=8081, description="probes and metrics")
    triton_grpc: str = Field(default="127.0.0.1:8001", description="model control and statistics of Triton")
    triton_metrics: str = Field(default="127.0.0.1:8002", description="counters of Triton, for draining")

    config_dir: Path = Field(default=Path("/etc/tidegate"), description="the pod's ConfigMap")
    repository_dir: Path = Field(
        default=Path("/var/lib/tidegate/repository"), description="the folder from which Triton loads models"
    )
    cache_dir: Path = Field(
        default=Path("/var/lib/tidegate/cache"), description="the orders and records that survive a restart"
    )
    run_dir: Path = Field(
        default=Path("/run/tidegate"),
        description="shared with Triton: the key of its model control, and the end of draining",
    )
    file_root: Path = Field(default=Path("/models"), description="the only folder that file: URIs may name")
    pvc_root: Path = Field(default=Path("/mnt/pvc"), description="claims are mounted below it by name")
    secret_dir: Path = Field(
        default=Path("/etc/tidegate-storage"), description="the namespace's storage Secret, one file per key"
    )
    secret_name: str = Field(default="tidegate-storage", description="how messages name that Secret")
    sample_secret_dir: Path = Field(
        default=Path("/etc/tidegate-samples"), description="the Secret that spec.logging names"
    )
    sample_pvc_root: Path = Field(
        default=Path("/mnt/samples"), description="the claim that samples go to is mounted below it by name"
    )
    sample_buffer_bytes: int = Field(default=32 << 20, ge=1, description="samples that wait for the sink")
    sample_file_bytes: int = Field(
        default=8 << 20, ge=1, description="samples of one file, before they are JSON and compressed"
    )
    sample_file_age_s: float = Field(default=60.0, gt=0, description="how long a sample waits for its file")
    sample_finish_s: float = Field(default=6.0, ge=0, description="time for the sink when the agent ends")
    stream_secret_dir: Path = Field(
        default=Path("/etc/tidegate-stream"), description="the Secret that spec.nearline names for its stream"
    )
    results_secret_dir: Path = Field(
        default=Path("/etc/tidegate-results"),
        description="the Secret that spec.nearline names for the results of a stream of Kafka",
    )
    batch_secret_dir: Path = Field(
        default=Path("/etc/tidegate-batch"), description="the Secret that spec.batch names"
    )
    batch_pvc_root: Path = Field(
        default=Path("/mnt/batch"), description="the claim that results go to is mounted below it by name"
    )
    batch_http_port: int = Field(default=8083, description="where the process of a shard shows its metrics")
    node_cache_dir: Path | None = Field(
        default=None, description="folder of the node that pods of one namespace share; absent: no cache"
    )
    node_cache_bytes: int = Field(default=0, ge=0, description="most bytes in that folder")

    allow_loopback: bool = Field(default=False, description="tests only: sources may be loopback addresses")
    ca_file: Path | None = Field(
        default=None, description="certificate authorities for https: besides the system's"
    )
    onnx_backend: OnnxBackend = Field(default=OnnxBackend.AUTO, description="what runs ONNX models")
    intra_op_threads: int | None = Field(
        default=None, ge=1, description="threads of one ONNX execution; absent: the runner's own choice"
    )

    poll_s: float = Field(default=1.0, gt=0, description="interval at which an idle agent observes Triton")
    load_timeout_s: float = Field(default=LOAD_TIMEOUT_S, gt=0)
    stall_timeout_s: float = Field(
        default=30.0, gt=0, description="longest pause between bytes of a download"
    )
    drain_quiet_s: float = Field(
        default=2.0, ge=0, description="time without requests after which draining ends"
    )
    drain_least_s: float = Field(
        default=5.0,
        ge=0,
        description="shortest draining of a terminating pod: gateways must learn of it first",
    )
    drain_limit_s: float = Field(default=18.0, ge=0, description="longest draining of a terminating pod")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; POD_NAME, POD_NAMESPACE and POD_IP come without the prefix."""
        values = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(PREFIX) and value
        }
        for name in ("POD_NAME", "POD_NAMESPACE", "POD_IP"):
            if environment.get(name):
                values[name.lower()] = environment[name]
        return cls.model_validate(values)
