"""P2: the time from a changed weight to the last request on the old side, against the time of a request while nothing changes.

    python bench/weight_flip.py [--runs 5] [--flips 40] [--clients 4]

A real Envoy, our xDS server and two upstreams on one machine; each flip gives one upstream all the weight that the other had.
A flip's time is that to the last request which reached the side that lost its weight, 0 when there was none.
Prints one JSON document; exits 1 when a request failed or the median ratio of the p99s misses the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.model_access import a_model_access, a_route
from fixtures.envoy import Client, Gateway, Load, Upstream
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend, BackendKey, BackendKind

RATIO_LIMIT = 10.0

_ACCESS = (("x-tidegate-access", "ads/ctr"),)
_SIDES = ("left", "right")
_AFTERWARDS = 40
"""Requests after each flip: a request by the old weight does not come later."""


class RecordingUpstream(Upstream):
    """An upstream that records the time of its last request."""

    last_request_at = 0.0

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802  the name is gRPC's
        """Answer as every upstream."""
        self.last_request_at = time.perf_counter()
        return await super().ModelInfer(request, context)


def make_access(heavy: str) -> ModelAccess:
    """Return an access with all weight on one side."""
    targets = [{"inference": side, "weight": 100 if side == heavy else 0} for side in _SIDES]
    return a_model_access(routes=[a_route("default", targets=targets)])


def p99_ms(seconds: list[float]) -> float:
    """Return the 99th percentile, in milliseconds."""
    return float(np.quantile(seconds, 0.99)) * 1000


async def time_idle_requests(client: Client, count: int) -> list[float]:
    """Return the times of requests one after the other."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await client.infer(metadata=_ACCESS)
        times.append(time.perf_counter() - started)
    return times


async def run_gateway(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one gateway: requests while nothing changes, then flips under load."""
    async with Gateway(folder) as gateway:
        sides = [RecordingUpstream(name, f"127.0.0.{number}") for number, name in enumerate(_SIDES, 2)]
        for side in sides:
            await side.start()
        backends = [
            Backend(BackendKey(BackendKind.INFERENCE, "ads", side.label), "ctr", (side.endpoint,))
            for side in sides
        ]
        client = await gateway.start(make_access(_SIDES[0]), *backends)
        await time_idle_requests(client, 50)
        idle_seconds = await time_idle_requests(client, 500)
        load = Load(client, _ACCESS)
        flips: list[float] = []
        async with load.running(options.clients):
            for number in range(options.flips):
                old, new = sides[number % 2], sides[(number + 1) % 2]
                await load.answered(_AFTERWARDS)
                set_at = time.perf_counter()
                await gateway.control_plane.push(make_access(new.label), *backends)
                await load.answered(_AFTERWARDS)
                flips.append(max(old.last_request_at - set_at, 0.0))
        for side in sides:
            await side.stop()
    return {
        "failed": len(load.errors),
        "idle_p99_ms": p99_ms(idle_seconds),
        "flip_p99_ms": p99_ms(flips),
        "flip_p50_ms": statistics.median(flips) * 1000,
        "ratio": p99_ms(flips) / p99_ms(idle_seconds),
        "flips_ms": [round(seconds * 1000, 3) for seconds in flips],
    }


def main() -> int:
    """Measure `--runs` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--flips", type=int, default=40)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs: list[dict[str, Any]] = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(asyncio.run(run_gateway(Path(folder), options)))
    ratio = statistics.median(result["ratio"] for result in runs)
    failed = sum(result["failed"] for result in runs)
    met = ratio <= RATIO_LIMIT and not failed
    document = {"met": met, "failed": failed, "ratio": ratio, "limit": RATIO_LIMIT, "runs": runs}
    print(json.dumps(document, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
