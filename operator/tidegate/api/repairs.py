"""Repairs of nodes that share their GPUs out: what failed there, and how far its repair is. Part of a ComputePool's status."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidegate.api.meta import StatusModel

MAX_REPAIRS: Final = 64
"""More nodes than that are not repaired together; the condition SharingHealthy counts them all."""


class SharingFault(StrEnum):
    """What can be wrong with the sharing of a node's GPUs, the worst first."""

    DAEMON_LOST = "DaemonLost"
    GPU_FAULT = "GpuFault"
    CLIENT_STUCK = "ClientStuck"
    ALLOCATABLE_GONE = "AllocatableGone"
    ADMISSION_ERRORS = "AdmissionErrors"


class RepairState(StrEnum):
    """How far a repair is."""

    WAITING = "Waiting"
    REPAIRING = "Repairing"
    RECOVERED = "Recovered"
    QUARANTINING = "Quarantining"
    QUARANTINED = "Quarantined"


class NodeRepair(StatusModel):
    """One node of the pool whose sharing failed. What has recovered is kept for ten minutes, so that a node that fails again and again is found out."""

    node: Annotated[str, Field(max_length=253, description="The node.")]
    fault: Annotated[SharingFault, Field(description="What failed.")]
    state: Annotated[
        RepairState,
        Field(
            description="Waiting for other nodes' repairs, Repairing, Recovered, or Quarantined (before it, for a moment, "
            "Quarantining): kept out of use until a person removes the taint tidegate.io/sharing."
        ),
    ]
    since: Annotated[datetime, Field(description="When it was first seen.")]
    attempts: Annotated[int, Field(ge=0, description="How often its repair has been tried.")] = 0
    attempted_at: Annotated[datetime | None, Field(description="When it was last tried.")] = None
    recovered_at: Annotated[datetime | None, Field(description="When the node was well again.")] = None
    replaces: Annotated[
        str, Field(max_length=64, description="Uid of the pod of the device plugin that is made anew for it.")
    ] = ""
