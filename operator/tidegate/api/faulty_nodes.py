"""Nodes of a ComputePool whose GPU sharing has a fault. Part of its status."""

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
    """What is done about a faulty node."""

    DETECTED = "Detected"
    WAITING = "Waiting"
    RESTARTING = "Restarting"
    QUARANTINED = "Quarantined"
    RECOVERED = "Recovered"


class FaultyNode(StatusModel):
    """A node of the pool whose GPU sharing has a fault, or had one in the last ten minutes."""

    node: Annotated[str, Field(max_length=253, description="The node.")]
    fault: Annotated[SharingFault, Field(description="What is wrong with its GPU sharing.")]
    state: Annotated[
        FaultState,
        Field(
            description="Detected, Restarting (the MPS daemon), Quarantined (by the taint tidegate.io/sharing, while the fault "
            "lasts), Waiting (as many nodes of the pool are restarting or quarantined as may be), or Recovered."
        ),
    ]
    since: Annotated[datetime, Field(description="When the fault was first seen.")]
    restarts: Annotated[
        int, Field(ge=0, description="Restarts of its MPS daemon, until it has been well for ten minutes.")
    ] = 0
    restarted_at: Annotated[datetime | None, Field(description="When it was last restarted.")] = None
    recovered_at: Annotated[datetime | None, Field(description="When the fault had gone.")] = None
