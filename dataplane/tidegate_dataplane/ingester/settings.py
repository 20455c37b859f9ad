"""The ingester's settings: environment variables that start with TIDEGATE_INGESTER_, and the pod's name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_dataplane.environment import read_variables

PREFIX = "TIDEGATE_INGESTER_"


class IngesterSettings(BaseModel):
    """Folders and limits of one ingester."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pod_name: str = Field(default="unknown", description="name of the pod, from the downward API")
    config_dir: Path = Field(
        default=Path("/etc/tidegate"), description="folder with the files of the pod's ConfigMap"
    )
    events_dir: Path = Field(
        default=Path("/var/lib/tidegate/events"), description="folder of the event store, shared with Triton"
    )
    secrets_dir: Path = Field(
        default=Path("/etc/tidegate-events"),
        description="folder below which the Secret of each source is mounted by the source's name",
    )
    store_secret_dir: Path = Field(
        default=Path("/etc/tidegate-store"), description="folder where the Secret of a Redis is mounted"
    )
    store_bytes: int = Field(default=4 << 30, ge=1 << 20, description="limit of the event store, in bytes")
    report_s: float = Field(default=0.5, gt=0, description="seconds between two reports to the agent")
    sweep_s: float = Field(
        default=60.0, gt=0, description="seconds between two searches for keys whose events have all expired"
    )
    dead_letter_hold_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds for which a stream waits for dead letters that their target does not take",
    )
    watch_s: float = Field(
        default=0.2, gt=0, description="seconds between two looks at the process that reads"
    )
    allow_loopback: bool = Field(
        default=False, description="whether brokers may be loopback addresses; for tests only"
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; POD_NAME comes without the prefix, and empty variables count as absent."""
        return cls.model_validate(read_variables(PREFIX, environment, "POD_NAME"))
