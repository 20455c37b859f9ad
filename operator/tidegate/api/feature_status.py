"""The status of a FeatureCompute: its compiled plan, and what its replicas report."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from tidegate.api.batch import BatchProgress
from tidegate.api.conditions import ObservedCondition
from tidegate.api.inference import TensorMetadata
from tidegate.api.meta import NOT_OBSERVED, ObservedGeneration, StatusModel
from tidegate.api.schema import ListAtomic, ListMap

MAX_SOURCES: Final = 32
MAX_FEATURES: Final = 256
MAX_DEFINITION_CHARS: Final = 1 << 16
"""Characters of all definitions in one status, which is read and written often: those of some 300 features."""


class SourceWatermark(StatusModel):
    """How current the events of one source are in the replicas."""

    source: Annotated[str, Field(max_length=63, description="Name of the source.")]
    lag_seconds: Annotated[
        int,
        Field(
            ge=0,
            description="How long ago every serving replica had all events of the stream, at most: 1, 5, 15, 60, 300, 900, "
            "3600, 86400 or, if it is longer, 604800 seconds.",
        ),
    ]
    refused_events: Annotated[
        int,
        Field(
            ge=0,
            description="Number of events that the replica with the most has refused, rounded down to one digit.",
        ),
    ] = 0
    dead_letters: Annotated[
        int | None,
        Field(
            ge=0,
            description="Number of refused events that the replica with the most has written to the dead letters, rounded down "
            "to one digit; absent without deadLetters.",
        ),
    ] = None
    failed_dead_letters: Annotated[
        int | None,
        Field(
            ge=0,
            description="Number of refused events that the dead letters did not take, in the replica with the most, rounded "
            "down to one digit; absent without deadLetters.",
        ),
    ] = None


class LoadedTable(StatusModel):
    """The oldest table of a source with refresh that a replica serves from."""

    source: Annotated[str, Field(max_length=63, description="Name of the source.")]
    keys: Annotated[
        int | None, Field(ge=0, description="Number of its keys; absent until a replica has counted them.")
    ] = None
    loaded_at: Annotated[datetime, Field(description="When the replica fetched it.")]


class SharedDefinition(StatusModel):
    """What the shared features of one other FeatureCompute were made of when they could be used last."""

    feature_compute: Annotated[
        str, Field(max_length=127, description="The FeatureCompute that declares them, namespace/name.")
    ]
    features: Annotated[
        tuple[Annotated[str, Field(max_length=63)], ...],
        Field(
            max_length=MAX_FEATURES,
            description="Names that they have there. What these read is in the definition too, and cannot be used by name.",
        ),
        ListAtomic(),
    ] = ()
    definition: Annotated[
        str,
        Field(
            max_length=MAX_DEFINITION_CHARS,
            description="Its entities, sources, request and features, as far as they are used, in JSON.",
        ),
    ]


class FeatureComputeStatus(StatusModel):
    """The compiled plan, and the state that the replicas report."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    plan_hash: Annotated[
        str | None,
        Field(max_length=64, description="SHA-256 of the compiled plan, which also runs offline."),
    ] = None
    outputs: Annotated[
        tuple[TensorMetadata, ...],
        Field(max_length=MAX_FEATURES, description="Tensors of a response."),
        ListAtomic(),
    ] = ()
    replicas: Annotated[int, Field(ge=0, description="Number of pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Number of ready pods.")] = 0
    selector: Annotated[str, Field(max_length=512, description="Label selector of the pods, for /scale.")] = (
        ""
    )
    watermarks: Annotated[
        tuple[SourceWatermark, ...],
        Field(max_length=MAX_SOURCES, description="How current the events of each stream are."),
        ListMap("source"),
    ] = ()
    tables: Annotated[
        tuple[LoadedTable, ...],
        Field(
            max_length=MAX_SOURCES, description="Tables of the sources with refresh that replicas serve from."
        ),
        ListMap("source"),
    ] = ()
    shared_definitions: Annotated[
        tuple[SharedDefinition, ...],
        Field(
            max_length=MAX_FEATURES,
            description="What shared features are made of; used while their FeatureCompute does not exist, does not share any "
            "more, or has changed such that they cannot be used. All of them have at most 65536 characters.",
        ),
        ListMap("featureCompute", "feature_compute"),
    ] = ()
    backfill: Annotated[
        BatchProgress | None, Field(description="Progress of the run that spec.backfill asks for.")
    ] = None
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(
            max_length=32,
            description="Ready, Reconciling, Stalled, PlanCompiled, SourcesReady, EndpointsPublished; with streams or "
            "refreshed tables Fresh, and with spec.backfill Backfilled.",
        ),
        ListMap("type"),
    ] = ()
