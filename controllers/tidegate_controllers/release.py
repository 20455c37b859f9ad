"""Measures releases: by the gateways' counters, and by the Prometheus queries that are due."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.api.model_access import ModelAccess
from tidegate.planning.access.release import ReleaseMeasurements, list_due_queries, needs_measurements
from tidegate.telemetry.gateways import GatewayStats
from tidegate.telemetry.prometheus import Prometheus

_QUERY_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class ReleaseMeasurer:
    """Measures releases in progress, and makes no request for others."""

    gateways: GatewayStats
    prometheus: Prometheus | None = None

    async def measure_release(
        self, access: ModelAccess, now: datetime, ready_pods: int
    ) -> ReleaseMeasurements:
        """Return the measurements of a ModelAccess's release; `ready_pods` is the number of its target's ready pods."""
        if access.spec.release is None or not needs_measurements(access):
            return ReleaseMeasurements()
        stable = [target.inference for target in access.spec.stable_targets]
        queries = list_due_queries(access, now)
        stats, answers = await asyncio.gather(
            self.gateways.read_release(access.key, access.spec.release.target, stable),
            asyncio.gather(*(self._run_query(query) for query in queries)),
        )
        return ReleaseMeasurements(
            stats.gateways, stats.silent, dict(zip(queries, answers, strict=True)), ready_pods
        )

    async def _run_query(self, query: str) -> float | None:
        if self.prometheus is None:
            return None
        try:
            async with asyncio.timeout(_QUERY_TIMEOUT_S):
                return await self.prometheus.query_value(query)
        except TimeoutError:
            return None
