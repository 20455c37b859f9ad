"""Read the rates of the last four weeks from Prometheus, from which the allocator forecasts demand."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.forecast.blocks import BLOCK_S, HISTORY_S
from tidegate.planning.allocator.forecasts import RateHistory
from tidegate.telemetry import expressions
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError, RangeSeries
from tidegate.telemetry.rate_series import fill_steps
from tidegate.telemetry.recording_rules import SIGNAL_DEMAND, SIGNAL_OFFERED

_BLOCK: Final = timedelta(seconds=BLOCK_S)
_WINDOW: Final = timedelta(days=1)
"""What one query asks for: 288 values of each Inference."""
_MAX_BYTES: Final = 32 << 20
"""Limit of one answer: some 4,000 Inferences."""
_TIMEOUT_S: Final = 300

# The recorded rates cost Prometheus least; before an upgrade, the chart's rules recorded what was offered alone. Where it lacks
# the rules, it evaluates their expression.
_QUERIES: Final = (
    f"max_over_time({SIGNAL_DEMAND}[5m]) or max_over_time({SIGNAL_OFFERED}[5m])",
    f"max_over_time(({expressions.DEMAND})[5m:1m])",
)


class PrometheusRateHistory:
    """The highest demand of each five minutes in requests per second, without requests that were refused because no target had a pod."""

    def __init__(self, url: str) -> None:
        self._api = PrometheusApi(url)
        self._source = f"Prometheus {url}"

    async def read_history(
        self, keys: frozenset[ObjectKey], now: datetime, length: timedelta = timedelta(seconds=HISTORY_S)
    ) -> RateHistory:
        """Return the rates of some Inferences for `length` until `now`; never raises, failures are part of the result.

        `length` is some blocks, and beyond a day whole days. Reads the newest day first, so that a failure leaves a gap at
        the beginning.
        """
        end = datetime.fromtimestamp(now.timestamp() // BLOCK_S * BLOCK_S, UTC)
        begin, window = end - length, min(_WINDOW, length)
        count = (end - begin) // _BLOCK
        rates = {key: array("d", [nan]) * count for key in keys}
        problem = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                for number in range(length // window):
                    series = await self._query_window(end - number * window, window)
                    # In a thread: hundreds of thousands of values would block the event loop for too long.
                    await asyncio.to_thread(fill_steps, rates, begin, _BLOCK, series)
        except PrometheusError as error:
            problem = str(error)
        except ValueError:
            problem = "its answer cannot be read"
        except TimeoutError:
            problem = f"no answer within {_TIMEOUT_S} s"
        if problem:
            problem = f"earlier rates cannot be read from {self._source}: {problem}"
        return RateHistory(begin, rates, problem)

    async def _query_window(self, end: datetime, window: timedelta) -> Sequence[RangeSeries]:
        for query in _QUERIES:
            series = await self._api.query_range(
                query, end - window + _BLOCK, end, _BLOCK, max_bytes=_MAX_BYTES
            )
            if series:
                return series
        return ()
