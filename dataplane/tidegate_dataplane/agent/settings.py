"""The agent's settings: environment variables that start with TIDEGATE_AGENT_, and the pod's own names."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_dataplane.contract import LOAD_TIMEOUT_S
from tidegate_dataplane.environment import read_variables

PREFIX = "TIDEGATE_AGENT_"


class OnnxBackend(StrEnum):
    """What runs ONNX models: Triton's own backend, our Python-hosted runner, or the first of them that works."""

    AUTO = "auto"
    NATIVE = "native"
    HOSTED = "hosted"


class AgentSettings(BaseModel):
    """Paths, ports and limits of one agent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pod_name: str = Field(default="unknown", description="name of the pod, from the downward API")
    pod_namespace: str = Field(default="default", description="namespace of the pod, from the downward API")
    pod_ip: str = Field(
        default="127.0.0.1",
        description="address at which the controllers call the agent, from the downward API",
    )

    address: str = Field(default="0.0.0.0", description="address at which both servers listen")  # noqa: S104 - a pod's address
    control_port: int = Field(
        default=8443, description="port for desired states; only the controllers' certificate is accepted"
    )
    http_port: int = Field(default=8081, description="port of probes and metrics")
    triton_grpc: str = Field(
        default="127.0.0.1:8001", description="address of Triton's model control and statistics"
    )
    triton_metrics: str = Field(
        default="127.0.0.1:8002",
        description="address of Triton's metrics, which show when draining is complete",
    )

    config_dir: Path = Field(
        default=Path("/etc/tidegate"), description="folder with the files of the pod's ConfigMap"
    )
    repository_dir: Path = Field(
        default=Path("/var/lib/tidegate/repository"), description="folder from which Triton loads models"
    )
    cache_dir: Path = Field(
        default=Path("/var/lib/tidegate/cache"),
        description="folder for desired states and records, which survive a restart of the container",
    )
    run_dir: Path = Field(
        default=Path("/run/tidegate"),
        description="folder shared with Triton, for the key of its model control and the signal that draining is complete",
    )
    file_root: Path = Field(default=Path("/models"), description="only folder that file: URIs may name")
    pvc_root: Path = Field(
        default=Path("/mnt/pvc"), description="folder below which claims are mounted by name"
    )
    secret_dir: Path = Field(
        default=Path("/etc/tidegate-storage"),
        description="folder of the namespace's storage Secret, with one file per key",
    )
    secret_name: str = Field(default="tidegate-storage", description="name of that Secret in messages")
    sample_secret_dir: Path = Field(
        default=Path("/etc/tidegate-samples"), description="folder of the Secret that spec.logging names"
    )
    sample_pvc_root: Path = Field(
        default=Path("/mnt/samples"),
        description="folder below which the claim for samples is mounted by name",
    )
    sample_buffer_bytes: int = Field(
        default=32 << 20, ge=1, description="limit of the samples that wait for the sink, in bytes"
    )
    sample_file_bytes: int = Field(
        default=8 << 20,
        ge=1,
        description="limit of the samples in one file, in bytes before they become compressed JSON",
    )
    sample_file_age_s: float = Field(
        default=60.0, gt=0, description="seconds after which a file is written even if it is not full"
    )
    sample_finish_s: float = Field(
        default=6.0, ge=0, description="seconds for writing the last samples when the agent ends"
    )
    stream_secret_dir: Path = Field(
        default=Path("/etc/tidegate-stream"),
        description="folder of the Secret that spec.nearline names for its stream",
    )
    results_secret_dir: Path = Field(
        default=Path("/etc/tidegate-results"),
        description="folder of the Secret that spec.nearline names for the results of a Kafka stream",
    )
    batch_secret_dir: Path = Field(
        default=Path("/etc/tidegate-batch"), description="folder of the Secret that spec.batch names"
    )
    batch_pvc_root: Path = Field(
        default=Path("/mnt/batch"), description="folder below which the claim for results is mounted by name"
    )
    batch_http_port: int = Field(default=8083, description="port of the metrics of a shard's process")
    node_cache_dir: Path | None = Field(
        default=None,
        description="folder of the node that the pods of one namespace share as a cache; absent: no cache",
    )
    node_cache_bytes: int = Field(default=0, ge=0, description="limit of that folder, in bytes")

    store_secret_dir: Path = Field(
        default=Path("/etc/tidegate-store"), description="folder of the Secret of a Redis that stores events"
    )

    allow_loopback: bool = Field(
        default=False, description="whether sources may be loopback addresses; for tests only"
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities for https:, in addition to the system's",
    )
    onnx_backend: OnnxBackend = Field(
        default=OnnxBackend.AUTO,
        description="runner of ONNX models: Triton's onnxruntime backend (native), ours in Triton's Python backend (hosted), or the first of them that works (auto)",
    )
    intra_op_threads: int | None = Field(
        default=None, ge=1, description="threads of one ONNX execution; absent: the runner's default"
    )

    shared_models: int | None = Field(
        default=None,
        ge=1,
        description="limit of the Inferences that share the pod, each with one model; absent: the pod serves one Inference",
    )

    poll_s: float = Field(
        default=1.0, gt=0, description="seconds between two observations of Triton while nothing changes"
    )
    load_timeout_s: float = Field(
        default=LOAD_TIMEOUT_S, gt=0, description="seconds after which the load of a version has failed"
    )
    stall_timeout_s: float = Field(
        default=30.0, gt=0, description="seconds without a byte after which a download is interrupted"
    )
    drain_quiet_s: float = Field(
        default=2.0, ge=0, description="seconds without requests after which draining is complete"
    )
    drain_least_s: float = Field(
        default=5.0,
        ge=0,
        description="minimum seconds of draining, in which the gateways learn that the pod terminates",
    )
    drain_limit_s: float = Field(default=18.0, ge=0, description="maximum seconds of draining")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; POD_NAME, POD_NAMESPACE and POD_IP come without the prefix."""
        return cls.model_validate(read_variables(PREFIX, environment, "POD_NAME", "POD_NAMESPACE", "POD_IP"))
