"""Query a Prometheus server over its HTTP API, with bounded and validated responses.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from tidegate.errors import RetryableError
from tidegate_dataplane.contract.answers import AnswerError, make_bounded_session, read_body

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
_NO_POST: Final = frozenset({301, 302, 303, 307, 308, 403, 405, 501})
"""Answers of proxies that redirect, or take no POST."""
_MOST_BYTES: Final = 32 << 20
"""Four times the size of a response about 30,000 pods."""
_MOST_RANGE_BYTES: Final = 4 << 20
"""Ten times the size of the response for a chart: 30 series of 240 values."""

SamplePoint = tuple[float, str]
"""A time in seconds since 1970, and a number as Prometheus writes it, including NaN and +Inf."""


class InstantSample(TypedDict):
    """The value of one series at one time."""

    metric: dict[str, str]
    value: SamplePoint


class RangeSeries(TypedDict):
    """The values of one series over a window, the oldest first."""

    metric: dict[str, str]
    values: list[SamplePoint]


ResultT = TypeVar("ResultT")


class _Data(BaseModel, Generic[ResultT]):
    result: list[ResultT]


class _Answer(BaseModel, Generic[ResultT]):
    data: _Data[ResultT]


_SAMPLES: Final = TypeAdapter(_Answer[InstantSample])
_SERIES: Final = TypeAdapter(_Answer[RangeSeries])


class PrometheusError(RetryableError):
    """Prometheus does not respond, rejects the query, or sends an invalid response."""


class PrometheusApi:
    """The API of the server at one URL. A failed query is not retried, because all callers query periodically."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def query(self, expression: str) -> Sequence[InstantSample]:
        """Return the result of an instant query. Raises PrometheusError."""
        return await self._send_query("/api/v1/query", {"query": expression}, _SAMPLES, _MOST_BYTES)

    async def query_range(
        self,
        expression: str,
        begin: datetime,
        end: datetime,
        step: timedelta,
        *,
        max_bytes: int = _MOST_RANGE_BYTES,
    ) -> Sequence[RangeSeries]:
        """Return the result of a query at every `step` from `begin` to `end`. Raises PrometheusError."""
        window = {
            "start": f"{begin.timestamp()}",
            "end": f"{end.timestamp()}",
            "step": f"{step.total_seconds():g}",
        }
        query = {"query": expression, **window}
        return await self._send_query("/api/v1/query_range", query, _SERIES, max_bytes)

    async def _send_query(
        self, path: str, query: Mapping[str, str], form: TypeAdapter[_Answer[ResultT]], most_bytes: int
    ) -> Sequence[ResultT]:
        try:
            async with make_bounded_session(_TIMEOUT) as session:
                # By POST: proxies limit the length of URLs, often to 8 KiB.
                async with session.post(self._url + path, data=query, allow_redirects=False) as response:
                    body = await read_body(response, most_bytes)
                if response.status in _NO_POST:
                    # A redirect may turn a POST into a GET without its query.
                    async with session.get(self._url + path, params=query) as response:
                        body = await read_body(response, most_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            reason = str(error) if isinstance(error, AnswerError) else type(error).__name__
            message = f"it cannot be asked ({reason})"
            raise PrometheusError(message) from error
        if response.status != 200:
            message = f"it answered HTTP {response.status}: {body[:200].decode(errors='replace')}"
            raise PrometheusError(message)
        try:
            # In a thread: tens of thousands of samples would block the event loop for too long.
            return (await asyncio.to_thread(form.validate_json, body)).data.result
        except ValidationError as error:
            message = "it answered with something that is no answer of a Prometheus"
            raise PrometheusError(message) from error
