"""What the gateways see of each endpoint, asked of Prometheus now and then and shown until the next answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from tidegate.telemetry.prometheus import Traffic
from tidegate.web.rows import Row

EVERY_S: Final = 5.0

Source: TypeAlias = Callable[[], Awaitable[Mapping[str, Traffic]]]


class TrafficBoard:
    """The last answer of `source`, by Envoy cluster; empty where there is none."""

    def __init__(self, source: Source | None) -> None:
        self._source = source
        self._last: Mapping[str, Traffic] = {}

    @property
    def known(self) -> bool:
        """Whether anybody is asked at all."""
        return self._source is not None

    async def keep(self, told: Callable[[], None]) -> None:
        """Asks again and again, and calls `told` for each answer; a task of the process."""
        while True:
            if await self.ask():
                told()
            await asyncio.sleep(EVERY_S)

    async def ask(self) -> bool:
        """Asks once; whether the answer is another than the last."""
        before = self._last
        self._last = await self._source() if self._source is not None else {}
        return self._last != before

    def of(self, endpoint: str) -> Traffic | None:
        """gRPC and REST of `inference/<namespace>/<name>` together; the slower one's latency."""
        found = [self._last[name] for name in (f"{endpoint}/grpc", f"{endpoint}/http") if name in self._last]
        if not found:
            return None
        return Traffic(
            sum(one.requests_per_s for one in found),
            max((one.latency_p99_ms for one in found if one.latency_p99_ms is not None), default=None),
            max((one.latency_p50_ms for one in found if one.latency_p50_ms is not None), default=None),
        )

    def on(self, row: Row, endpoint: str) -> Row:
        """A row with what is known of its traffic."""
        traffic = self.of(f"{endpoint}/{row.namespace}/{row.name}")
        if traffic is None:
            return row
        return row.model_copy(
            update={"requests_per_second": traffic.requests_per_s, "latency_p99_ms": traffic.latency_p99_ms}
        )
