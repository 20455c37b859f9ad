"""What the agent and the process that converts a table tell each other."""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tidegate_dataplane.contract import FeaturePlan


class DiskBound(BaseModel):
    """The disk that a conversion may take.

    The file has at most `max_bytes`, and `reserve_share` of the disk stays free. `allowed` names what `max_bytes` is, and
    `size_remedy` and `disk_remedy` say what to do about a table that exceeds it, and about a disk that is too small.
    """

    model_config = ConfigDict(frozen=True)

    max_bytes: int | None = None
    reserve_share: float = 0.0
    allowed: str = ""
    size_remedy: str = ""
    disk_remedy: str = "free space on the disk"

    def measure_room(self, folder: Path) -> int:
        """Return the bytes that may be written to the disk of a folder."""
        disk = shutil.disk_usage(folder)
        return max(disk.free - int(disk.total * self.reserve_share), 0)


class ConversionOrder(BaseModel):
    """Convert the Parquet file `parquet` with this sha256, table `table` of `plan`, to `target`."""

    model_config = ConfigDict(frozen=True)

    plan: FeaturePlan
    table: str
    parquet: Path
    sha256: str
    target: Path
    disk: DiskBound = DiskBound()


class ConversionResult(BaseModel):
    """The size of the file in bytes, or why there is none; `needed_bytes` of disk, if too few are free."""

    model_config = ConfigDict(frozen=True)

    size: int = 0
    error: str = ""
    needed_bytes: int = 0
