"""Asks a Prometheus server over its HTTP API, and reads no more than a bounded answer of the form that is documented.

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
from tidegate_dataplane.contract.answers import AnswerError, bounded_session, read_body

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
_MOST_BYTES: Final = 32 << 20
"""Four times what 30,000 pods have in one answer."""
_MOST_RANGE_BYTES: Final = 4 << 20
"""Ten times what charts have in one answer: 30 series of 240 values."""

Point = tuple[float, str]
"""A time in seconds since 1970, and a number as Prometheus writes it: NaN and +Inf included."""


class Sample(TypedDict):
    """The value of one series at one time."""

    metric: dict[str, str]
    value: Point


class Series(TypedDict):
    """The values of one series over a while, the oldest first."""

    metric: dict[str, str]
    values: list[Point]


ResultT = TypeVar("ResultT")


class _Data(BaseModel, Generic[ResultT]):
    result: list[ResultT]


class _Answer(BaseModel, Generic[ResultT]):
    data: _Data[ResultT]


_SAMPLES: Final = TypeAdapter(_Answer[Sample])
_SERIES: Final = TypeAdapter(_Answer[Series])


class PrometheusError(RetryableError):
    """Prometheus does not answer, refuses the question, or answers with something else; the same words each time."""


class PrometheusApi:
    """The API of the server at one URL. A question that fails is asked once: whoever asks looks again soon."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def query(self, expression: str) -> Sequence[Sample]:
        """Return what an instant query gives now. Raises PrometheusError."""
        return await self._ask("/api/v1/query", {"query": expression}, _SAMPLES, _MOST_BYTES)

    async def query_range(
        self, expression: str, begin: datetime, end: datetime, step: timedelta
    ) -> Sequence[Series]:
        """Return what a query gives every `step` from `begin` to `end`. Raises PrometheusError."""
        window = {
            "start": f"{begin.timestamp()}",
            "end": f"{end.timestamp()}",
            "step": f"{step.total_seconds():g}",
        }
        query = {"query": expression, **window}
        return await self._ask("/api/v1/query_range", query, _SERIES, _MOST_RANGE_BYTES)

    async def _ask(
        self, path: str, query: Mapping[str, str], form: TypeAdapter[_Answer[ResultT]], most_bytes: int
    ) -> Sequence[ResultT]:
        try:
            async with (
                bounded_session(_TIMEOUT) as session,
                session.get(self._url + path, params=query) as response,
            ):
                body = await read_body(response, most_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) if isinstance(error, AnswerError) else type(error).__name__
            message = f"it cannot be asked ({why})"
            raise PrometheusError(message) from error
        if response.status != 200:
            message = f"it answered HTTP {response.status}: {body[:200].decode(errors='replace')}"
            raise PrometheusError(message)
        try:
            # Tens of thousands of samples take longer than the event loop has to spare.
            return (await asyncio.to_thread(form.validate_json, body)).data.result
        except ValidationError as error:
            message = "it answered with something that is no answer of a Prometheus"
            raise PrometheusError(message) from error
