"""`spec.batch` of an Inference: the table that its Job scores, and where the results go; a backfill shares its parts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import (
    DurationText,
    Identifier,
    ObjectName,
    TableFolderUri,
    WritableUri,
    duration_between,
)
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.schema import ListMap, ListSet, ValidationRule, ValidationRules, must_match

MAX_SHARDS: Final = 1_000
MAX_FEATURE_SOURCES: Final = 32

ColumnName = Annotated[
    str,
    Field(min_length=1, max_length=256),
    ValidationRules(must_match(r"[^\x00-\x1f\x7f]+", "must have no control characters")),
]

RefusedRowsLimit = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
RunDeadline = Annotated[DurationText, duration_between("1m", "720h")]


class BatchColumn(ApiModel):
    """An input of the model, or of the FeatureCompute, that is read from a column with another name."""

    input: Annotated[ColumnName, Field(description="Name of the input.")]
    column: Annotated[ColumnName, Field(description="Name of the table's column.")]


class BatchInput(ApiModel):
    """The table: Parquet files, read in the order of their names."""

    uri: Annotated[
        TableFolderUri,
        Field(
            description="Folder of the files; subfolders are included: s3://<bucket>/<prefix>, gs://<bucket>/<prefix>, "
            "pvc://<claim>/<path>, or file:///<path> (where the operator allows it). It reads "
            "at most 10000 files that end in .parquet, and skips names that begin with a dot or an underscore. The "
            "files are listed once per run: later files belong to the next run, and a changed file fails its shard."
        ),
    ]
    columns: Annotated[
        tuple[BatchColumn, ...],
        Field(
            max_length=1_024,
            description="Columns whose name differs from the input's. Absent: every input is read from the column with its "
            "name.",
        ),
        ListMap("input"),
    ] = ()


class BatchOutput(ApiModel):
    """Where the results go, and which columns are copied to them."""

    uri: Annotated[
        WritableUri,
        Field(
            description="Folder, in which each run creates its own (status.batch.output): s3://<bucket>/<prefix>, "
            "gs://<bucket>/<prefix>, or pvc://<claim>/<path> (a claim that every pod may write to)."
        ),
    ]
    keep: Annotated[
        tuple[ColumnName, ...],
        Field(
            min_length=1,
            max_length=64,
            description="Columns of the table that are copied to the results, to identify each row. With spec.batch.features, "
            "a name may also be that of a feature; a backfill writes all features beside them.",
        ),
        ListSet(),
    ]
    rows_per_file: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=10_000_000,
            description="Rows per file of results, 1 to 10000000. A pod keeps the rows of one file in memory, and loses them if it "
            "ends before the file is written.",
        ),
    ] = 65_536


class BatchFeatureSource(ApiModel):
    """A table or a stream of the FeatureCompute, and where its facts are in files."""

    name: Annotated[Identifier, Field(description="Name of the source in the FeatureCompute.")]
    uri: Annotated[
        TableFolderUri,
        Field(
            description="Of a stream, the Parquet file or the folder of files with its events; the columns are the key, eventTime "
            "and all fields, without nulls. Of a table, a copy of its file as it was when the rows were made."
        ),
    ]


class BatchFeaturesSpec(ApiModel):
    """Computes the features of a FeatureCompute for each row, as it would have answered at the row's time, before the row is scored."""

    name: Annotated[ObjectName, Field(description="Name of the FeatureCompute, in the same namespace.")]
    event_time: Annotated[
        ColumnName | None,
        Field(
            description="Column with the time of each row: timestamps (UTC if they have no time zone), integers in milliseconds "
            "since 1970, or texts in RFC 3339. Required if features read events, and not allowed otherwise."
        ),
    ] = None
    sources: Annotated[
        tuple[BatchFeatureSource, ...],
        Field(
            max_length=MAX_FEATURE_SOURCES,
            description="Files of sources: one for each stream that features read, and for tables that are not read from their own "
            "URI. They are listed once per run, as the table's files are.",
        ),
        ListMap("name"),
    ] = ()


OUTPUT_OUTSIDE_INPUT: Final = ValidationRule(
    cel="!(self.output.uri + '/').startsWith(self.input.uri.endsWith('/') ? self.input.uri : self.input.uri + '/')",
    message="output.uri must not be within input.uri, or the next run would read results",
    check=lambda batch: not f"{batch.output.uri}/".startswith(batch.input.uri.rstrip("/") + "/"),
    field="output",
)


class BatchSpec(ApiModel):
    """Scores a table by a Job, instead of answering requests: sharded, resumable, each row exactly once."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (OUTPUT_OUTSIDE_INPUT,)

    input: Annotated[BatchInput, Field(description=BatchInput.__doc__)]
    output: Annotated[BatchOutput, Field(description=BatchOutput.__doc__)]
    features: Annotated[BatchFeaturesSpec | None, Field(description=BatchFeaturesSpec.__doc__)] = None
    shards: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_SHARDS,
            description=f"Number of equal shards of the table, 1 to {MAX_SHARDS}. Each is the work of one pod, so no more pods "
            "than that run at once, and each pod loads the model once.",
        ),
    ] = 8
    run: Annotated[
        str,
        Field(
            max_length=63,
            description="Any text, such as a date: changing it starts a new run. So does a change of the model's URI, version or "
            "format, of input, output, features, shards or batching.maxBatchSize, and another plan of the FeatureCompute unless the "
            "run is complete; no other change does.",
        ),
    ] = ""
    max_refused_rows: Annotated[
        RefusedRowsLimit,
        Field(
            description="Rows of one shard that the model may refuse, or that have a null or a list of the wrong length. They "
            "are in the run's folder _refused, with the reason; one more fails the shard.",
        ),
    ] = 0
    deadline: Annotated[
        RunDeadline | None,
        Field(
            description="Longest duration of the run, pauses included, from 1m to 720h: after it the pods are deleted and the run "
            "has failed. With spec.scaling, the value of a run that is behind schedule rises, up to ten times. "
            "Absent: none."
        ),
    ] = None
    queue_name: Annotated[
        ObjectName | None,
        Field(
            description="LocalQueue of Kueue in the same namespace: the Job is created suspended, and its pods start when Kueue "
            "admits it. A change of spec.replicas or an eviction puts it back into the queue; rows scored since the last "
            "file are lost. The deadline counts from the last admission. Absent: Kueue is not used."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with the AWS_… or GOOGLE_… keys that may read input and the sources of "
            "features, and write output. "
            "Absent: the Secret of the model."
        ),
    ] = None


class BatchProgress(StatusModel):
    """Progress of the run."""

    run: Annotated[str, Field(max_length=64, description="Name of the run, and of its folder of results.")]
    output: Annotated[str, Field(max_length=1_200, description="The run's folder of results.")]
    plan_hash: Annotated[
        str | None,
        Field(
            max_length=64,
            description="The status.planHash of the FeatureCompute that the run's features are of; absent for a batch without features.",
        ),
    ] = None
    shards: Annotated[int, Field(ge=0, description="Shards of the run.")] = 0
    done: Annotated[
        int,
        Field(
            ge=0,
            description="Completed shards; with more than 20 shards, rounded down to a twentieth of them until all are.",
        ),
    ] = 0
    failed: Annotated[int, Field(ge=0, description="Shards that have failed permanently.")] = 0
    started_at: Annotated[datetime | None, Field(description="When its Job started.")] = None
    ended_at: Annotated[
        datetime | None,
        Field(
            description="When its Job completed or failed; from then on the run has no slices. Absent again while "
            "another Job continues it."
        ),
    ] = None
    completed_at: Annotated[
        datetime | None, Field(description="When its last shard was completed; absent until then.")
    ] = None
