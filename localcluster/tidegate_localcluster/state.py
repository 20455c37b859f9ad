"""What is written down about a cluster: the plan made by `up`, and the state kept by its supervisor."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_localcluster.errors import LocalClusterError

FLEET_PROCESSES = ("controllers",)
"""Processes of Tidegate that a fleet demo runs, and that answer probes."""


class Phase(StrEnum):
    """How far a cluster is."""

    STARTING = "Starting"
    READY = "Ready"
    DEGRADED = "Degraded"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


class Forward(StrEnum):
    """What is reachable from the machine on 127.0.0.1."""

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
        """The document at `path`; None when there is none. Raises LocalClusterError when it is damaged."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LocalClusterError(f"{path} is damaged ({error}); remove it and start again") from error


class Image(_Document):
    """One image to bring into every node."""

    ref: str
    archive: Path


class Fleet(_Document):
    """A fleet demo: simulated GPU nodes, Inferences on them, and a day's load."""

    nodes: int = 500
    inferences: int = 1000
    speed: float = 200.0
    """Times as fast as the clock; 0: the day stands still."""
    seed: int = 1
    fresh: bool = False
    """Fill the pool anew, and do not begin where an earlier fleet was filled."""


class Plan(_Document):
    """Everything the supervisor needs to know; written before anything is started."""

    name: str
    nodes: int = 1
    simulated_gpu_nodes: int = 0
    control_plane_only: bool = False
    cgroup: str
    ports: Mapping[Forward, int] = Field(default_factory=dict[Forward, int])
    binaries: Mapping[str, Path] = Field(default_factory=dict[str, Path])
    images: Mapping[str, Image] = Field(default_factory=dict[str, Image])
    image_store: Path | None = None
    """Where unpacked images are kept between clusters."""
    fleet: Fleet | None = None
    """The fleet demo that runs on a control plane alone."""
    audit_policy: str | None = None
    """By which the API server writes an audit log; None: it writes none."""
    home: Path | None = None
    """Where filled fleets are kept."""
    probes: Mapping[str, int] = Field(default_factory=dict[str, int])
    """Ports of the probes of a fleet demo's processes."""


class Part(_Document):
    """One supervised program, `pid` as the processes inside see it."""

    pid: int | None
    restarts: int = 0
    last_ending: str | None = None


class State(_Document):
    """What the supervisor saw last."""

    phase: Phase
    message: str = ""
    parts: Mapping[str, Part] = Field(default_factory=dict[str, Part])
    steps_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Seconds from the start to the end of each step."""


class StateDir:
    """Where the files of one cluster lie."""

    def __init__(self, path: Path) -> None:
        """Name the files below `path`; nothing is made yet."""
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

    def node(self, name: str) -> Path:
        """Where node `name` keeps its containers and volumes."""
        return self.data / "nodes" / name
