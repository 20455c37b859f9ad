"""The node agent's settings: environment variables that start with TIDEGATE_NODE_, and the pod's own names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

PREFIX = "TIDEGATE_NODE_"


class Settings(BaseModel):
    """Paths, ports and times of one node agent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_name: str = Field(default="unknown", description="from the downward API")
    pod_ip: str = Field(default="127.0.0.1", description="likewise; where the controllers reach the agent")

    address: str = Field(default="0.0.0.0", description="where both servers listen")  # noqa: S104 - a pod's address
    control_port: int = Field(default=8444, description="orders, by the controllers' certificate alone")
    http_port: int = Field(default=8081, description="probes and metrics")
    client_authority: Path = Field(
        default=Path("/etc/tidegate/client-ca.crt"), description="who vouches for the controllers"
    )

    program: str = Field(
        default="nvidia-cuda-mps-control", description="the control program, a path or a name on PATH"
    )
    pipe_directory: Path = Field(
        default=Path("/mps/nvidia.com/gpu.shared/pipe"),
        description="CUDA_MPS_PIPE_DIRECTORY, where NVIDIA's device plugin has its daemon listen",
    )
    proc: Path = Field(default=Path("/proc"), description="the node's process table")

    look_every_s: float = Field(default=2.0, gt=0)
    command_timeout_s: float = Field(
        default=5.0, gt=0, description="a command that takes longer means a daemon that hangs"
    )
    confirm_s: float = Field(default=5.0, ge=0, description="how long an order is given to show effect")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; NODE_NAME and POD_IP come without the prefix."""
        values = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(PREFIX) and value
        }
        for name in ("NODE_NAME", "POD_IP"):
            if environment.get(name):
                values[name.lower()] = environment[name]
        return cls.model_validate(values)
