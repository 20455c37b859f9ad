"""Read the rates of the last four weeks from Prometheus, from which the allocator forecasts demand."""

from __future__ import annotations

import asyncio
from array import array
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.forecast.blocks import BLOCK_S, HISTORY_S
from tidegate.planning.allocator.forecasts import RateHistory
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError
from tidegate.telemetry.rate_series import fill_steps, list_demand_queries, query_first

_BLOCK: Final = timedelta(seconds=BLOCK_S)
_WINDOW: Final = timedelta(days=1)
"""What one query asks for: 288 values of each Inference."""
_MAX_BYTES: Final = 32 << 20
"""Limit of one answer: some 4,000 Inferences."""
_TIMEOUT_S: Final = 300

_QUERIES: Final = list_demand_queries("max_over_time", "5m")


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
                    last = end - number * window
                    series = await query_first(
                        self._api, _QUERIES, last - window + _BLOCK, last, _BLOCK, max_bytes=_MAX_BYTES
                    )
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
