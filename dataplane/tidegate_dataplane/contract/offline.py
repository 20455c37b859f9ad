"""Computing features of rows in files: what the process is asked, and the lines that it prints."""

from enum import StrEnum

from pydantic import Field, model_validator

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.features import (
    Bucketize,
    Cross,
    Dwell,
    EventSequence,
    EventSession,
    Feature,
    FeaturePlan,
    Hash,
    Lookup,
    Ratio,
    TimeSince,
    Window,
)

PLAN_HASH = "tidegate.planHash"
"""Key in the metadata of a file of features: the hash of the plan that computed them."""
FEATURE_COLUMNS = "tidegate.features"
"""Key in the metadata of a file of features: its FeatureColumns as JSON."""


class FeatureColumn(ContractModel):
    """A column of a file of features."""

    name: str
    is_id: bool = Field(
        description="whether its numbers only identify something, so that their order has no meaning"
    )
    default: str | None = Field(
        default=None, description="value without facts, and the padding of lists; none for other operations"
    )


class FeatureColumns(ContractModel):
    """The features among the columns of a file, in the order of the plan."""

    columns: tuple[FeatureColumn, ...]


def describe_columns(plan: FeaturePlan) -> FeatureColumns:
    """Return the columns that the features of a plan have in files."""
    dtypes = {output.name: output.dtype for output in plan.outputs}
    columns = (
        FeatureColumn(
            name=feature.name,
            is_id=isinstance(feature, Hash | Cross | Bucketize)
            or (isinstance(feature, EventSequence) and dtypes[feature.name] == "INT64"),
            default=_find_default(feature),
        )
        for feature in plan.features
        if feature.name in dtypes
    )
    return FeatureColumns(columns=tuple(columns))


def _find_default(feature: Feature) -> str | None:
    match feature:
        case Lookup() | Window() | TimeSince():
            return str(feature.default)
        case EventSequence():
            return feature.pad
        case Ratio():
            return str(feature.prior)
        case Dwell() | EventSession():
            return "0"
        case _:
            return None


class OfflineOrder(ContractModel):
    """A plan, and the paths on this machine of what it computes from and writes to."""

    plan: FeaturePlan
    rows: str = Field(description="a Parquet file, or a folder of them")
    output: str = Field(description="a file if `rows` is one, else a folder")
    time_column: str = Field(
        default="", description="of the rows; empty for a plan without streams, which needs none"
    )
    tables: dict[str, str] = Field(default_factory=dict[str, str], description="path by name of the table")
    events: dict[str, str] = Field(default_factory=dict[str, str], description="path by name of the stream")
    shard: int = Field(default=0, ge=0)
    shards: int = Field(
        default=1,
        ge=1,
        description="number of shards: a shard computes every shards-th file of rows, from `shard` on",
    )
    dry_run: bool = Field(default=False, description="check everything and compute nothing")

    @model_validator(mode="after")
    def _check_shard(self) -> "OfflineOrder":
        if self.shard >= self.shards:
            message = f"shard {self.shard} of {self.shards}: they are counted from 0"
            raise ValueError(message)
        return self


class OfflineFilePhase(StrEnum):
    """How far the features of a file of rows are."""

    PENDING = "Pending"
    COMPUTING = "Computing"
    WRITTEN = "Written"
    SKIPPED = "Skipped"
    """An earlier run has written them, with the same plan from as many rows, events and keys."""


class OfflineFile(ContractModel):
    """A file of rows, and the file that gets them with their features."""

    rows_path: str
    output_path: str
    phase: OfflineFilePhase
    row_count: int
    computed_rows: int = 0


class OfflineSource(ContractModel):
    """A table or a stream, and how many rows or events of it are in its files."""

    name: str
    path: str
    count: int


class OfflineMessage(ContractModel):
    """One line that the process prints: one of its fields is set.

    First come the sources, then each file once with its phase before the run, and then its progress.
    """

    source: OfflineSource | None = None
    file: OfflineFile | None = None
    error: str | None = Field(default=None, description="why the process ends, and the way out")
