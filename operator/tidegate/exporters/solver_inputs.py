"""Remembers the last input of each pool's solver, and serves it for what-if plans."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from aiohttp import web

from tidegate.allocation import codec
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.latency import LatencyMeasurement
from tidegate.planning.allocator.value_mix import ValueRates

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class SolverInput:
    """One input of the solver: when it was solved, the pool's mode, the snapshot, and what was measured before."""

    observed_at: datetime
    mode: PolicyMode
    snapshot: AllocationSnapshot
    values: Mapping[str, ValueRates] = field(default_factory=dict[str, ValueRates])
    """By Inference, as namespace/name."""
    latencies: Mapping[str, LatencyMeasurement] = field(default_factory=dict[str, LatencyMeasurement])
    """Latencies of Inferences with an SLO and a capacity, likewise."""


class SolverInputs:
    """Remembers each pool's last solver input while this process leads, and serves it over HTTP."""

    def __init__(self) -> None:
        self._inputs: dict[ObjectKey, SolverInput] = {}

    def solved_pools(self) -> Set[ObjectKey]:
        """Return the pools that have been solved."""
        return self._inputs.keys()

    def get(self, pool: ObjectKey) -> SolverInput | None:
        """Return the last input of a pool; None if this process has not solved it."""
        return self._inputs.get(pool)

    def put(self, pool: ObjectKey, solver_input: SolverInput) -> None:
        """Take the input of a solve."""
        self._inputs[pool] = solver_input

    def forget(self, pool: ObjectKey) -> None:
        """Forget a pool that was deleted, or that has no Inferences to decide about."""
        self._inputs.pop(pool, None)

    def clear(self) -> None:
        """Forget everything at the end of a term: another process decides."""
        self._inputs.clear()

    def make_routes(self) -> tuple[web.RouteDef, ...]:
        """Return the route GET /allocation/{pool}."""
        return (web.get("/allocation/{pool}", self._serve_input),)

    async def _serve_input(self, request: web.Request) -> web.Response:
        pool = request.match_info["pool"]
        if request.remote not in _LOOPBACK:
            # It reveals the value of requests. A port forward, which needs a right, comes from the pod itself.
            message = "only the pod itself is told, and who has a port forward to it"
            return web.json_response({"error": message}, status=_FORBIDDEN)
        solver_input = self._inputs.get(ObjectKey("", pool))
        if solver_input is None:
            message = (
                f"the allocator of this process has not looked at a ComputePool {pool}: the one that leads does, where an "
                "Inference has spec.scaling and a node takes pods"
            )
            return web.json_response({"error": message}, status=_NOT_FOUND)
        return web.json_response(
            {
                "pool": pool,
                "at": format_timestamp(solver_input.observed_at),
                "mode": solver_input.mode.value,
                "snapshot": codec.encode_snapshot(solver_input.snapshot),
                "values": {
                    name: {"offered": rates.offered, **rates.by_outcome}
                    for name, rates in solver_input.values.items()
                },
                "latencies": {
                    name: {
                        "sloSeconds": latency.slo_s,
                        "p99Seconds": latency.p99_s,
                        "utilization": latency.utilization,
                    }
                    for name, latency in solver_input.latencies.items()
                },
            }
        )
