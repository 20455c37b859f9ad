"""The spares that Inferences share, as decisions and the status of a ComputePool show them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tidegate.api.meta import StatusModel
from tidegate.api.schema import ListAtomic, ListMap

MAX_SHARED_SPARES: Final = 100
"""Most entries in a status or a decision: with 64 models each they have half of what etcd takes."""
MAX_SHARED_MODELS: Final = 64
"""Most models of one spare, whatever the pool allows."""


class DecidedSharedSpare(StatusModel):
    """One spare that Inferences of a namespace share."""

    namespace: Annotated[str, Field(max_length=63, description="Namespace of its Inferences.")]
    node: Annotated[str, Field(max_length=253, description="Its node.")]
    slices: Annotated[int, Field(ge=1, description="Number of its slices.")]
    models: Annotated[
        tuple[Annotated[str, Field(max_length=63)], ...],
        Field(max_length=MAX_SHARED_MODELS, description="Names of the Inferences whose models it loads."),
        ListAtomic(),
    ] = ()
    reason: Annotated[
        str, Field(max_length=1024, description="Which node's loss needs the most of it, in one sentence.")
    ] = ""


class SharedModel(StatusModel):
    """A model on a shared spare."""

    inference: Annotated[
        str, Field(max_length=63, description="Name of the Inference, in the spare's namespace.")
    ]
    version: Annotated[
        str,
        Field(
            max_length=9,
            description="Version that the spare serves. Absent: none that the Inference serves too.",
        ),
    ] = ""


class SharedSpareStatus(StatusModel):
    """A pod that has the models of several Inferences loaded and serves for replicas that do not answer."""

    name: Annotated[str, Field(max_length=63, description="Name of its Deployment.")]
    namespace: Annotated[str, Field(max_length=63, description="Namespace of its Inferences.")]
    node: Annotated[str, Field(max_length=253, description="Its node.")]
    slices: Annotated[int, Field(ge=1, description="Number of its slices.")]
    models: Annotated[
        tuple[SharedModel, ...],
        Field(max_length=MAX_SHARED_MODELS, description="Models that are loaded, or about to be."),
        ListMap("inference"),
    ] = ()
    reason: Annotated[
        str, Field(max_length=1024, description="Which node's loss needs the most of it, in one sentence.")
    ] = ""
    problem: Annotated[
        str,
        Field(
            max_length=1024, description="Why it does not serve some of its models. Absent: it serves all."
        ),
    ] = ""


class UncoveredInference(StatusModel):
    """An Inference with nodeLoss Shared that no shared spare serves for; the loss of a node is Priced for it."""

    inference: Annotated[str, Field(max_length=127, description="Inference, as <namespace>/<name>.")]
    reason: Annotated[str, Field(max_length=512, description="Why not, and the way out.")]


class SharedSparesStatus(StatusModel):
    """Spares that Inferences share. Absent without an Inference with nodeLoss Shared."""

    slices: Annotated[int, Field(ge=0, description="Number of slices that are reserved for them.")] = 0
    spares: Annotated[
        tuple[SharedSpareStatus, ...],
        Field(max_length=MAX_SHARED_SPARES, description="The spares, by namespace and name, at most 100."),
        ListAtomic(),
    ] = ()
    uncovered: Annotated[
        tuple[UncoveredInference, ...],
        Field(
            max_length=MAX_SHARED_SPARES,
            description="Inferences that no spare serves for, by name, at most 100.",
        ),
        ListAtomic(),
    ] = ()
