"""Read the demand of a past time from Prometheus, step by step; a step that was not recorded is a gap and no zero."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import isfinite, nan
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.reports.redaction import Redactor
from tidegate.resources.names import make_child_name
from tidegate.telemetry import expressions
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError
from tidegate.telemetry.rate_series import fill_steps, list_demand_queries, query_first

_STEPS_PER_QUERY: Final = 360
_MIN_WINDOW: Final = timedelta(minutes=1)
"""The recording rules run every half minute, or as often as their Prometheus is set to."""
_MAX_BYTES: Final = 32 << 20


class PrometheusRecording:
    """The mean demand of Inferences in each step of a time, in requests per second."""

    def __init__(self, url: str) -> None:
        self._api = PrometheusApi(url)
        self.name = f"Prometheus {Redactor().redact_text(url)}"
        """In messages, without a password."""

    async def read_rates(
        self, keys: frozenset[ObjectKey], begin: datetime, count: int, step: timedelta
    ) -> Mapping[ObjectKey, Sequence[float | None]]:
        """Return `count` rates of each Inference from `begin` on, None where there is none. Raises PrometheusError."""
        rates = {key: [nan] * count for key in keys}
        # Messages are counted by pod, whose name has the Deployment's.
        children = {_find_child_key(key): steps for key, steps in rates.items()}
        window = f"{max(step, _MIN_WINDOW).total_seconds():.0f}s"
        try:
            for first in range(0, count, _STEPS_PER_QUERY):
                last = min(first + _STEPS_PER_QUERY, count)
                for queries, names in (
                    (list_demand_queries("avg_over_time", window), rates),
                    (_list_stream_queries(window), children),
                ):
                    # The value at a time is the mean of the step before it.
                    series = await query_first(
                        self._api,
                        queries,
                        begin + (first + 1) * step,
                        begin + last * step,
                        step,
                        max_bytes=_MAX_BYTES,
                    )
                    # In a thread: tens of thousands of values would block the event loop for too long.
                    await asyncio.to_thread(fill_steps, names, begin, step, series)
        except (PrometheusError, ValueError) as error:
            message = f"cannot read rates from {self.name}: {error}"
            raise PrometheusError(message) from error
        return {key: [rate if isfinite(rate) else None for rate in steps] for key, steps in rates.items()}


def _list_stream_queries(window: str) -> Sequence[str]:
    return (f"avg_over_time(({expressions.DELIVERED})[{window}:1m])",)


def _find_child_key(key: ObjectKey) -> ObjectKey:
    """Return the name of an Inference as its pods' names have it."""
    return ObjectKey(key.namespace, make_child_name("inf", key.name).removeprefix("inf-"))
