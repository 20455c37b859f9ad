"""The report of a node's agent: how MPS shares the GPUs of the node."""

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
    """The control program cannot be started, which shows nothing about the daemon."""


class ServerStatus(StrEnum):
    """The answer to `get_server_status`; UNKNOWN is any other word."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    UNKNOWN = "UNKNOWN"


class MpsServer(ContractModel):
    """One MPS server; there is one for the user of the pool's pods, for all GPUs of the node."""

    pid: int
    status: ServerStatus


class MpsClient(ContractModel):
    """A process that is connected to an MPS server. `pod` is the uid of its pod, empty if it is unknown."""

    pid: int
    server: int
    pod: str = ""
    since: datetime = Field(description="when the agent first saw it")


class NodeReport(ContractModel):
    """What the control program of MPS reports on one node. `message` is its output where the daemon does not answer.

    `revision` changes whenever anything else in the report does.
    """

    node: str
    revision: str = ""
    daemon: DaemonState
    message: str = ""
    servers: tuple[MpsServer, ...] = ()
    clients: tuple[MpsClient, ...] = ()
