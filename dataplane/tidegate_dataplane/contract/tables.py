"""What a pod reports about a table that it refreshes."""

from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel


class TableProblem(StrEnum):
    """Why a pod does not serve the newest table."""

    TABLE_REFUSED = "TableRefused"
    TABLE_UNREACHABLE = "TableUnreachable"


class TableReport(ContractModel):
    """The table of one source that a pod serves from, and why it did not take a newer one."""

    source: str
    keys: int | None = Field(default=None, ge=0, description="None until the pod has counted them")
    loaded_s: float = Field(ge=0, description="when the pod fetched it, in seconds since 1970")
    problem: TableProblem | None = None
    message: str = ""
