"""The compiler's settings: environment variables that start with TIDEGATE_COMPILER_."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

PREFIX = "TIDEGATE_COMPILER_"


class CompilerSettings(BaseModel):
    """Folders and limits of one compiler."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    exchange_dir: Path = Field(
        default=Path("/var/lib/tidegate/cache/compile"), description="jobs of the agent, and their results"
    )
    node_cache_dir: Path | None = Field(
        default=None, description="folder of the node that pods of one namespace share; absent: no cache"
    )
    node_cache_bytes: int = Field(default=0, ge=0, description="most bytes in that folder")
    memory_bytes: int | None = Field(
        default=None, ge=1, description="memory limit of the container; absent: no bound"
    )
    timeout_s: float = Field(default=1_800.0, gt=0, description="longest compilation of one graph")
    poll_s: float = Field(default=0.5, gt=0, description="interval at which jobs are read")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; empty variables count as absent."""
        return cls.model_validate(
            {
                name.removeprefix(PREFIX).lower(): value
                for name, value in environment.items()
                if name.startswith(PREFIX) and value
            }
        )
