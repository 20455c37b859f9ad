"""Measures releases: by the gateways' counters, and by the Prometheus queries that are due."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.api.model_access import ModelAccess
from tidegate.planning.release import Measured, queries_due, to_measure
from tidegate.telemetry.gateways import GatewayStats
from tidegate.telemetry.prometheus import Prometheus

_QUERY_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measures releases in progress, and makes no request for others."""

    gateways: GatewayStats
    prometheus: Prometheus | None = None

    async def of(self, access: ModelAccess, now: datetime, pods: int) -> Measured:
        """Return the measurements of an access's release; `pods` of its target are ready."""
        if access.spec.release is None or not to_measure(access):
            return Measured()
        stable = [target.inference for target in access.spec.stable_targets]
        queries = queries_due(access, now)
        stats, answers = await asyncio.gather(
            self.gateways.read(access.key, access.spec.release.target, stable),
            asyncio.gather(*(self._ask(query) for query in queries)),
        )
        return Measured(stats.gateways, stats.silent, dict(zip(queries, answers, strict=True)), pods)

    async def _ask(self, query: str) -> float | None:
        if self.prometheus is None:
            return None
        try:
            async with asyncio.timeout(_QUERY_TIMEOUT_S):
                return await self.prometheus.value(query)
        except TimeoutError:
            return None
