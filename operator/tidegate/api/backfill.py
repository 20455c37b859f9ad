"""`spec.backfill` of a FeatureCompute: rows of the past that its Job computes the features of, and where they go."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.batch import (
    MAX_FEATURE_SOURCES,
    MAX_SHARDS,
    OUTPUT_OUTSIDE_INPUT,
    BatchFeatureSource,
    BatchInput,
    BatchOutput,
    ColumnName,
    RefusedRowsLimit,
    RunDeadline,
)
from tidegate.api.fields import ObjectName
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListMap, ValidationRule


class BackfillSpec(ApiModel):
    """Computes the features of rows of the past by a Job, each row as a request at its time would have been answered: sharded, resumable, each row exactly once."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (OUTPUT_OUTSIDE_INPUT,)

    input: Annotated[
        BatchInput,
        Field(
            description="The rows, such as labels: Parquet files with the keys of the entities and the fields of the request."
        ),
    ]
    output: Annotated[BatchOutput, Field(description=BatchOutput.__doc__)]
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
            "URI. They are listed once per run, as the rows' files are.",
        ),
        ListMap("name"),
    ] = ()
    shards: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_SHARDS,
            description=f"Number of equal shards of the rows, 1 to {MAX_SHARDS}. Each is the work of one pod, which reads all tables "
            "and archives, and stores the events that its rows see.",
        ),
    ] = 8
    parallelism: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=MAX_SHARDS,
            description=f"Number of pods that run at once, 0 to {MAX_SHARDS}; 0 pauses the run. Each requests "
            "spec.resources and 128Mi more memory, and may use 2Gi beyond that, in addition to the replicas.",
        ),
    ] = 2
    run: Annotated[
        str,
        Field(
            max_length=63,
            description="Any text, such as a date: changing it starts a new run. So does a change of input, output, eventTime, sources "
            "or shards, and another plan of the features; no other change does.",
        ),
    ] = ""
    max_refused_rows: Annotated[
        RefusedRowsLimit,
        Field(
            description="Rows of one shard that may have a null in place of a key, a time or a field. They are in the run's folder "
            "_refused, with the reason; one more fails the shard.",
        ),
    ] = 0
    deadline: Annotated[
        RunDeadline | None,
        Field(
            description="Longest duration of the run, pauses included, from 1m to 720h: after it the pods are deleted and the run "
            "has failed. Absent: none."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with the AWS_… or GOOGLE_… keys that may read input and sources, and write "
            "output. Absent: the Secret that tables are fetched with."
        ),
    ] = None
