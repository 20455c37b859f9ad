"""How GPUs are shared on one node (NodeReport), and what the node's agent may be asked to do about it (NodeOrder)."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel


class DaemonState(StrEnum):
    """Whether the MPS control daemon of the node answers its control program."""

    ANSWERS = "Answers"
    GONE = "Gone"
    HANGS = "Hangs"
    UNKNOWN = "Unknown"
    """The control program itself cannot be started, which says nothing about the daemon."""


class ServerStatus(StrEnum):
    """What `get_server_status` says of an MPS server; UNKNOWN is for any other word."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    UNKNOWN = "UNKNOWN"


class MpsServer(ContractModel):
    """One MPS server; there is one for the user of the pool's pods, for all GPUs of the node."""

    pid: int
    status: ServerStatus


class MpsClient(ContractModel):
    """One process that is connected to an MPS server. `pod` is the uid of its pod, empty where that cannot be told."""

    pid: int
    server: int
    pod: str = ""
    since: datetime = Field(description="when the agent first saw it")


class OrderOutcome(StrEnum):
    """How an order ended; the agent has looked again before it says Done."""

    DONE = "Done"
    FAILED = "Failed"


class OrderReport(ContractModel):
    """What became of one order."""

    id: str
    outcome: OrderOutcome
    message: str = ""


class NodeReport(ContractModel):
    """What the control program of MPS says on one node, now. `message` has its words where the daemon does not answer.

    `revision` is another one whenever anything else in the report is.
    """

    node: str
    revision: str = ""
    daemon: DaemonState
    message: str = ""
    servers: tuple[MpsServer, ...] = ()
    clients: tuple[MpsClient, ...] = ()
    orders: tuple[OrderReport, ...] = Field(default=(), description="the last ones, oldest first")


class NodeAction(StrEnum):
    """What an agent may be asked to do: nothing else."""

    TERMINATE_CLIENT = "TerminateClient"


class NodeOrder(ContractModel):
    """One order; an agent carries each `id` out once, and refuses an `epoch` older than the newest that it has seen."""

    id: str = Field(min_length=1, max_length=200)
    epoch: int = Field(ge=0)
    action: NodeAction
    server: int = Field(default=0, ge=0, description="pid of the MPS server")
    client: int = Field(default=0, ge=0, description="pid of the client")
