"""The files of a cluster: the plan that `up` writes, and the state that its supervisor writes."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_localcluster.errors import LocalClusterError

FLEET_PROCESSES = ("controllers",)
"""Processes of Tidegate that a fleet demo runs, and that answer probes."""


class ClusterPhase(StrEnum):
    """The phase of a cluster's life."""

    STARTING = "Starting"
    READY = "Ready"
    DEGRADED = "Degraded"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


class Forward(StrEnum):
    """A service that is reachable from the machine on 127.0.0.1."""

    APISERVER = "apiserver"
    GATEWAY = "gateway"
    DASHBOARD = "dashboard"
    PROMETHEUS = "prometheus"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    def write(self, path: Path) -> None:
        """Replace `path` (0600) in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the document at `path`, None if it does not exist; raises LocalClusterError if it is damaged."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LocalClusterError(f"{path} is damaged ({error}); remove it and start again") from error


class Image(_Document):
    """One image to load into every node."""

    ref: str
    archive: Path


class FleetSettings(_Document):
    """A fleet demo: simulated GPU nodes, Inferences on them, and a day's load."""

    nodes: int = 500
    inferences: int = 1000
    speed: float = 200.0
    """The speed of the day relative to the clock; 0: it stands still."""
    seed: int = 1
    fresh: bool = False
    """Fill the pool again, and do not begin with an earlier filled fleet."""


class ClusterPlan(_Document):
    """Everything that the supervisor needs to know; written before anything is started."""

    name: str
    nodes: int = 1
    simulated_gpu_nodes: int = 0
    control_plane_only: bool = False
    cgroup: str
    ports: Mapping[Forward, int] = Field(default_factory=dict[Forward, int])
    binaries: Mapping[str, Path] = Field(default_factory=dict[str, Path])
    images: Mapping[str, Image] = Field(default_factory=dict[str, Image])
    image_store: Path | None = None
    """The store of unpacked images, which outlives clusters."""
    fleet: FleetSettings | None = None
    """The fleet demo that runs on a control plane alone."""
    audit_policy: str | None = None
    """The policy of the API server's audit log; None: no log."""
    home: Path | None = None
    """The cache folder of filled fleets."""
    probes: Mapping[str, int] = Field(default_factory=dict[str, int])
    """Ports of the probes of a fleet demo's processes."""


class PartState(_Document):
    """The state of one supervised program; `pid` is the one inside the cluster's namespaces."""

    pid: int | None
    restarts: int = 0
    last_ending: str | None = None


class ClusterState(_Document):
    """The state of the cluster that the supervisor observed last."""

    phase: ClusterPhase
    message: str = ""
    parts: Mapping[str, PartState] = Field(default_factory=dict[str, PartState])
    steps_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Seconds from the start to the end of each step."""


class StateDir:
    """The paths of the files of one cluster."""

    def __init__(self, path: Path) -> None:
        """Name the files below `path`; create none."""
        self.path = path.resolve()
        self.plan = self.path / "plan.json"
        self.state = self.path / "state.json"
        self.lock = self.path / "lock"
        self.kubeconfig = self.path / "kubeconfig"
        self.pki = self.path / "pki"
        self.logs = self.path / "logs"
        self.audit_log = self.logs / "audit.log"
        self.models = self.path / "models"
        self.data = self.path / "data"
        self.control_plane = self.data / "control-plane"
        self.scratch = self.data / "scratch"
        self.volumes = self.data / "volumes"
        self.model_cache = self.volumes / "model-cache"

    def node_folder(self, name: str) -> Path:
        """Return the folder of the containers and volumes of node `name`."""
        return self.data / "nodes" / name
