"""`status.faultyNodes` of a ComputePool: nodes whose GPU sharing has a fault."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidegate.api.meta import StatusModel

MAX_FAULTY_NODES: Final = 64
"""Most nodes that the status lists; the condition SharingHealthy counts all of them."""


class SharingFault(StrEnum):
    """Faults of a node's GPU sharing, the worst first."""

    DAEMON_LOST = "DaemonLost"
    GPU_FAULT = "GpuFault"
    CLIENT_STUCK = "ClientStuck"
    ALLOCATABLE_GONE = "AllocatableGone"
    ADMISSION_ERRORS = "AdmissionErrors"


class FaultState(StrEnum):
    """State of a faulty node."""

    DETECTED = "Detected"
    WAITING = "Waiting"
    RESTARTING = "Restarting"
    QUARANTINED = "Quarantined"
    RECOVERED = "Recovered"


class FaultyNode(StatusModel):
    """A node of the pool whose GPU sharing has a fault, or had one in the last ten minutes."""

    node: Annotated[str, Field(max_length=253, description="Name of the node.")]
    fault: Annotated[SharingFault, Field(description="Fault of its GPU sharing.")]
    state: Annotated[
        FaultState,
        Field(
            description="Detected, Restarting (the MPS daemon), Quarantined (by the taint tidegate.io/sharing, while the fault "
            "lasts), Waiting (the largest number of nodes of the pool is restarting or quarantined), or Recovered."
        ),
    ]
    since: Annotated[datetime, Field(description="When the fault was first seen.")]
    restarts: Annotated[
        int, Field(ge=0, description="Restarts of its MPS daemon since it was last healthy for ten minutes.")
    ] = 0
    restarted_at: Annotated[datetime | None, Field(description="When the daemon was last restarted.")] = None
    recovered_at: Annotated[datetime | None, Field(description="When the fault disappeared.")] = None
