"""How current a pod's events are, in a file that the process that writes them leaves for the agent."""

import time
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from tidegate_dataplane.contract import EventStreamReport
from tidegate_dataplane.contract.base import ContractModel

REPORT_FILE: Final = "report.json"
SILENT_S: Final = 5.0
"""A report that is older counts as one of a process that has ended."""


class IngesterReport(ContractModel):
    """The state of each stream at `at_s`, in seconds since 1970."""

    at_s: float
    streams: tuple[EventStreamReport, ...] = Field(default=())


def write_report(folder: Path, report: IngesterReport) -> None:
    """Replace the report in `folder`; readers see the old one or the new one."""
    part = folder / f".{REPORT_FILE}.part"
    part.write_text(report.to_json())
    part.replace(folder / REPORT_FILE)


def read_report(folder: Path, now_s: float | None = None) -> tuple[EventStreamReport, ...]:
    """Return the state of each stream, none if there is no report.

    While nobody writes reports, pods fall behind: the lag grows by the age of the report.
    """
    try:
        report = IngesterReport.model_validate_json((folder / REPORT_FILE).read_bytes())
    except (OSError, ValidationError):
        return ()
    age_s = max((time.time() if now_s is None else now_s) - report.at_s, 0.0)
    if age_s <= SILENT_S:
        return report.streams
    return tuple(
        stream.model_copy(
            update={
                "lag_s": stream.lag_s + age_s,
                "message": stream.message
                or f"the container ingester has reported nothing for {age_s:.0f} s: see its log",
            }
        )
        for stream in report.streams
    )
