"""Read a record of a fleet demo: its objects, and what its Prometheus and its controllers answered at one time."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tidegate.api.conditions import format_timestamp
from tidegate.errors import PermanentError
from tidegate.telemetry.prometheus_api import RangeSeries

RECORD: Final = Path(__file__).with_name("fleet.json.gz")
"""The record that the package has; tests/record_fleet.py writes it."""
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """A fleet demo at one time."""

    time: datetime
    bodies: Mapping[str, Sequence[Mapping[str, Any]]]
    """Objects by the plural of their kind, in lower case."""
    traffic: Mapping[str, tuple[float, float | None]]
    """Requests per second and p99 in milliseconds of an Inference, by its Envoy cluster."""
    series: Mapping[str, Sequence[RangeSeries]]
    """Answers of Prometheus, by what they chart: `pool`, `inference/<namespace>/<name>` or `release/<namespace>/<name>`."""
    solver_input: Mapping[str, Any]
    """What the controllers answered about their last decision."""


def read_fleet(path: Path = RECORD, *, now: datetime | None = None) -> RecordedFleet:
    """Return the recorded fleet, with `now` as if it had been recorded then. Raises PermanentError."""
    try:
        with gzip.open(path) as file:
            text = file.read(_MAX_BYTES).decode()
        delta = timedelta() if now is None else now - datetime.fromisoformat(json.loads(text)["at"])
        record = json.loads(_TIME.sub(lambda match: _shift_time(match[0], delta), text))
        return RecordedFleet(
            datetime.fromisoformat(record["at"]),
            record["objects"],
            {name: (rate, p99) for name, (rate, p99) in record["traffic"].items()},
            {
                name: [_shift_series(series, delta) for series in answer]
                for name, answer in record["series"].items()
            },
            record["solverInput"],
        )
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        message = f"{path} is no record of a fleet: {error!r}"
        raise PermanentError(message) from error


def _shift_time(text: str, delta: timedelta) -> str:
    return format_timestamp(datetime.fromisoformat(text) + delta)


def _shift_series(series: RangeSeries, delta: timedelta) -> RangeSeries:
    seconds = delta.total_seconds()
    return {
        "metric": series["metric"],
        "values": [(time + seconds, value) for time, value in series["values"]],
    }
