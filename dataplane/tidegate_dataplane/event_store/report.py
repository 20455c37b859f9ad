"""How current a pod's events are, in a file that the process that writes them leaves for the agent."""

import time
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from tidegate_dataplane.contract import EventStreamReport
from tidegate_dataplane.contract.base import ContractModel

REPORT_FILE: Final = "report.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SILENT_S: Final = 5.0
"""A report that is older counts as one of a process that has ended."""
_SILENCE_STEP_S: Final = 10
_MINUTE_S: Final = 60


class IngesterReport(ContractModel):
    """The state of each stream at `at_s`, in seconds since 1970, since the node's start that `boot_id` names."""

    at_s: float
    boot_id: str
    streams: tuple[EventStreamReport, ...] = Field(default=())


def read_boot_id() -> str:
    """Return what names the time since the node's last start: what was written before may be incomplete."""
    return _BOOT_ID.read_text().strip()


def write_report(folder: Path, report: IngesterReport) -> None:
    """Replace the report in `folder`; readers see the old one or the new one."""
    part = folder / f".{REPORT_FILE}.part"
    part.write_text(report.to_json())
    part.replace(folder / REPORT_FILE)


def read_report(folder: Path, now_s: float | None = None) -> tuple[EventStreamReport, ...]:
    """Return the state of each stream, none if there is no report since the node's start.

    An old report means that no process reads the streams: the lag grows by the age of the report.
    """
    try:
        report = IngesterReport.model_validate_json((folder / REPORT_FILE).read_bytes())
    except (OSError, ValidationError):
        return ()
    if report.boot_id != read_boot_id():
        return ()
    return list_reports(report, "the container ingester", now_s)


def list_reports(
    report: IngesterReport, ingester: str, now_s: float | None = None
) -> tuple[EventStreamReport, ...]:
    """Return the state of each stream now; `ingester` is what messages call the process that has written the report."""
    age_s = max((time.time() if now_s is None else now_s) - report.at_s, 0.0)
    if age_s <= SILENT_S:
        return report.streams
    return tuple(
        stream.model_copy(
            update={
                "lag_s": stream.lag_s + age_s,
                "message": stream.message
                or f"{ingester} has reported nothing for {_format_silence(age_s)}: see its log",
            }
        )
        for stream in report.streams
    )


def _format_silence(age_s: float) -> str:
    """Format an age in steps, so that a status with this text does not change at every look."""
    if age_s < _SILENCE_STEP_S:
        return f"{SILENT_S:.0f} s"
    if age_s < _MINUTE_S:
        return f"{age_s // _SILENCE_STEP_S * _SILENCE_STEP_S:.0f} s"
    return f"{age_s // _MINUTE_S:.0f} min"
