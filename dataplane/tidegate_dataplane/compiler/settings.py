"""The compiler's settings: environment variables that start with TIDEGATE_COMPILER_."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tidegate_dataplane.environment import read_variables

PREFIX = "TIDEGATE_COMPILER_"


class CompilerSettings(BaseModel):
    """Folders and limits of one compiler."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    exchange_dir: Path = Field(
        default=Path("/var/lib/tidegate/cache/compile"),
        description="folder through which the agent requests compilations and gets the results",
    )
    cache_dir: Path = Field(
        default=Path("/var/lib/tidegate/cache/compiled"),
        description="folder through which the agent reads and writes the object store of compiled files",
    )
    node_cache_dir: Path | None = Field(
        default=None,
        description="folder of the node that the pods of one namespace share as a cache; absent: no cache",
    )
    node_cache_bytes: int = Field(default=0, ge=0, description="limit of that folder, in bytes")
    memory_bytes: int | None = Field(
        default=None, ge=1, description="memory limit of the container, in bytes; absent: none"
    )
    timeout_s: float = Field(
        default=1_800.0, gt=0, description="seconds after which the compilation of a graph has failed"
    )
    request_wait_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds that the compilation of a graph waits for eight requests of clients, which its answers are compared on",
    )
    poll_s: float = Field(default=0.5, gt=0, description="seconds between two reads of the jobs")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; empty variables count as absent."""
        return cls.model_validate(read_variables(PREFIX, environment))
