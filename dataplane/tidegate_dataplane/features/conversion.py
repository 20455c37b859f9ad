"""What the agent and the process that converts a table tell each other."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tidegate_dataplane.contract import FeaturePlan


class ConversionOrder(BaseModel):
    """Convert the Parquet file `parquet` with this sha256, table `table` of `plan`, to `target`."""

    model_config = ConfigDict(frozen=True)

    plan: FeaturePlan
    table: str
    parquet: Path
    sha256: str
    target: Path


class ConversionResult(BaseModel):
    """The size of the file in bytes, or why there is none."""

    model_config = ConfigDict(frozen=True)

    size: int = 0
    error: str = ""
    is_disk_full: bool = False
