"""The node agent's settings: environment variables that start with TIDEGATE_NODE_, and the pod's own names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_dataplane.environment import read_variables

PREFIX = "TIDEGATE_NODE_"


class NodeAgentSettings(BaseModel):
    """Paths, ports and times of one node agent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_name: str = Field(default="unknown", description="name of the node, from the downward API")
    pod_ip: str = Field(
        default="127.0.0.1",
        description="address at which the controllers call the agent, from the downward API",
    )

    address: str = Field(default="0.0.0.0", description="address at which both servers listen")  # noqa: S104 - a pod's address
    control_port: int = Field(
        default=8444, description="port of reports; only the controllers' certificate is accepted"
    )
    http_port: int = Field(default=8081, description="port of probes and metrics")
    client_authority: Path = Field(
        default=Path("/etc/tidegate/client-ca.crt"),
        description="PEM file of the authority of the controllers' certificate",
    )

    program: str = Field(
        default="nvidia-cuda-mps-control", description="control program of MPS, as a path or a name on PATH"
    )
    pipe_directory: Path = Field(
        default=Path("/mps/nvidia.com/gpu.shared/pipe"),
        description="folder CUDA_MPS_PIPE_DIRECTORY of the daemon that NVIDIA's device plugin starts",
    )
    proc: Path = Field(default=Path("/proc"), description="folder of the node's process table")

    interval_s: float = Field(default=2.0, gt=0, description="seconds between two queries of MPS")
    command_timeout_s: float = Field(
        default=5.0,
        gt=0,
        description="seconds without an answer to a command after which the daemon counts as hanging",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; NODE_NAME and POD_IP come without the prefix."""
        return cls.model_validate(read_variables(PREFIX, environment, "NODE_NAME", "POD_IP"))
