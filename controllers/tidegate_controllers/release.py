"""What a release is judged by: the gateways' counters, and Prometheus for the queries that are due."""

from dataclasses import dataclass
from datetime import datetime

from tidegate.api.model_access import ModelAccess
from tidegate.planning.release import Measured, queries_due, under_way
from tidegate.telemetry.gateways import GatewayStats
from tidegate.telemetry.prometheus import Prometheus


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measures releases that are under way, and asks nobody for any other."""

    gateways: GatewayStats
    prometheus: Prometheus | None = None

    async def of(self, access: ModelAccess, now: datetime) -> Measured:
        """What its release is judged by now."""
        if access.spec.release is None or not under_way(access):
            return Measured()
        stable = [target.inference for target in access.spec.stable_targets]
        read = await self.gateways.read(access.key, access.spec.release.target, stable)
        answers = {query: await self._ask(query) for query in queries_due(access, now)}
        return Measured(read.gateways, read.silent, answers)

    async def _ask(self, query: str) -> float | None:
        return None if self.prometheus is None else await self.prometheus.value(query)
