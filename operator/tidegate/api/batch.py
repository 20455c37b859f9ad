"""`spec.batch` of an Inference: which table its Job scores, and where the results go."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import DurationText, ObjectName, TableUri, between
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.sample_log import SampleUri
from tidegate.api.schema import ListMap, ListSet, Rule, Rules, lacks, matches

MAX_SHARDS: Final = 1_000

ColumnName = Annotated[
    str,
    Field(min_length=1, max_length=256),
    Rules(matches(r"[^\x00-\x1f\x7f]+", "must have no control characters")),
]


class BatchColumn(ApiModel):
    """An input of the model that is read from a column of another name."""

    input: Annotated[ColumnName, Field(description="Name of the model's input.")]
    column: Annotated[ColumnName, Field(description="Name of the table's column.")]


class BatchInput(ApiModel):
    """The table: Parquet files, whose rows are scored in the order of the files' names."""

    uri: Annotated[
        Annotated[
            TableUri, Rules(lacks("^https://", "a folder cannot be listed over https: use s3, gs or pvc"))
        ],
        Field(
            description="The folder of the files, and of those below it: s3://<bucket>/<prefix>, gs://<bucket>/<prefix>, "
            "pvc://<claim>/<path>, or file:///<path> (where the operator allows it, as the local cluster does). Read are "
            "files that end in .parquet, at most 10000; not those below names that begin with a dot or an underscore. The "
            "list is made once a run: files that come later are of the next one, and one that changes fails its shard."
        ),
    ]
    columns: Annotated[
        tuple[BatchColumn, ...],
        Field(
            max_length=1_024,
            description="Columns whose name is not that of the input. Absent: every input is read from the column of its "
            "name.",
        ),
        ListMap("input"),
    ] = ()


class BatchOutput(ApiModel):
    """Where the results go, and what stands beside them."""

    uri: Annotated[
        SampleUri,
        Field(
            description="A folder, in which each run makes one of its own (status.batch.output): s3://<bucket>/<prefix>, "
            "gs://<bucket>/<prefix>, or pvc://<claim>/<path> (a claim that every pod may write to)."
        ),
    ]
    keep: Annotated[
        tuple[ColumnName, ...],
        Field(
            min_length=1,
            max_length=64,
            description="Columns of the table that are copied beside the model's outputs: what tells whose row it is.",
        ),
        ListSet(),
    ]
    rows_per_file: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=10_000_000,
            description="Rows of one file of results, 1 to 10000000. A pod that ends loses what it has scored since its last "
            "file, and holds the rows of one in memory.",
        ),
    ] = 65_536


class Batch(ApiModel):
    """A table to score instead of requests, by a Job: sharded, resumable, each row in the results once."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(self.output.uri + '/').startsWith(self.input.uri.endsWith('/') ? self.input.uri : self.input.uri + '/')",
            message="output.uri must not be within input.uri, or results would be scored by the next run",
            check=lambda batch: not f"{batch.output.uri}/".startswith(batch.input.uri.rstrip("/") + "/"),
            field="output",
        ),
    )

    input: Annotated[BatchInput, Field(description=BatchInput.__doc__)]
    output: Annotated[BatchOutput, Field(description=BatchOutput.__doc__)]
    shards: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_SHARDS,
            description=f"Number of equal shares that the rows are cut into, 1 to {MAX_SHARDS}. Each is one pod's work, so "
            "no more pods than that work at once, and each pod loads the model once.",
        ),
    ] = 8
    run: Annotated[
        str,
        Field(
            max_length=63,
            description="Any text, such as a date: changing it scores the table anew. So does changing the model's place, "
            "version or format, input, output, shards or batching.maxBatchSize; nothing else does.",
        ),
    ] = ""
    max_refused_rows: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=1_000_000_000,
            description="Rows of one shard that the model may refuse, or that have a null or a list of the wrong length. They "
            "stand with the reason in the run's folder _refused; one more fails the shard.",
        ),
    ] = 0
    deadline: Annotated[
        Annotated[DurationText, between("1m", "720h")] | None,
        Field(
            description="Longest time from the run's beginning, from 1m to 720h, paused or not: then its pods are ended and it "
            "has failed. With spec.scaling, a run that falls behind the pace that would end it in time is worth more, up "
            "to ten times. Absent: none."
        ),
    ] = None
    queue_name: Annotated[
        ObjectName | None,
        Field(
            description="LocalQueue of Kueue in the same namespace: the Job is made suspended, and its pods begin when Kueue "
            "admits it. A change of spec.replicas sends it back to the queue, and so does an eviction; both lose what was "
            "scored since the last file. The deadline then counts from the last admission. Absent: Kueue is not asked."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with the AWS_… or GOOGLE_… keys that may read input and write output. "
            "Absent: the Secret that the model is read with."
        ),
    ] = None


class BatchProgress(StatusModel):
    """How far the run is."""

    run: Annotated[str, Field(max_length=64, description="Name of the run, and of its folder of results.")]
    output: Annotated[str, Field(max_length=1_200, description="The run's folder of results.")]
    shards: Annotated[int, Field(ge=0, description="Shards of the run.")] = 0
    done: Annotated[
        int,
        Field(
            ge=0,
            description="Shards that are done; of more than 20, rounded down to a twentieth of them until all are.",
        ),
    ] = 0
    failed: Annotated[int, Field(ge=0, description="Shards that have failed for good.")] = 0
    started_at: Annotated[datetime | None, Field(description="When its Job began.")] = None
    ended_at: Annotated[
        datetime | None,
        Field(
            description="When its Job ended, done or given up; from then on the run takes no slices. Absent again where "
            "another Job goes on with it."
        ),
    ] = None
    completed_at: Annotated[
        datetime | None, Field(description="When its last shard was done; absent until then.")
    ] = None
