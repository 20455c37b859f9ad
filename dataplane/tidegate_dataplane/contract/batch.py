"""The order of a sharded run: the table that a Job's pods score or compute features of, and the folder for the results."""

from typing import Final

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.features import FeaturePlan

BATCH_PATH: Final = "spec.batch"


class InputColumn(ContractModel):
    """The column that an input of the model is read from."""

    input: str
    column: str


class BatchFeatures(ContractModel):
    """The features that are computed for each row, as of the time in its column `event_time`, before it is scored.

    `compute` is the name of the FeatureCompute. `sources` has the URI of each table and each stream of the plan, by name: a
    Parquet file, or for a stream a folder of them.
    """

    compute: str
    plan: FeaturePlan
    event_time: str = Field(default="", description="empty for a plan without streams, which needs none")
    sources: dict[str, str] = Field(default_factory=dict[str, str])


class BatchOrder(ContractModel):
    """One run: the rows of `source`, divided into `shards`, one for each pod; the results go to `<sink>/<run>`.

    `columns` has the inputs whose column has another name, of the model or of `features`; the columns and features `keep` are
    copied to the results. Without a model, the pods compute features alone: the order of a DesiredState of a FeatureCompute.
    `secret` names the Secret that is mounted for the tables; if empty, it is the storage Secret.
    """

    run: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="name of the folder of results")
    source: str = Field(description="URI of a Parquet file, or of a folder of them")
    sink: str = Field(description="URI of the folder that the run's own folder is made in")
    columns: tuple[InputColumn, ...] = ()
    keep: tuple[str, ...] = ()
    shards: int = Field(ge=1)
    rows_per_file: int = Field(
        ge=1, description="rows of one file of results, the unit that is not done twice"
    )
    max_refused_rows: int = Field(default=0, ge=0, description="of one shard, before it fails")
    secret: str = ""
    features: BatchFeatures | None = Field(default=None, exclude_if=lambda features: features is None)
    spec_path: str = Field(
        default=BATCH_PATH,
        exclude_if=lambda path: path == BATCH_PATH,
        description="the field of the spec that errors name",
    )
