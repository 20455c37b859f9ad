"""Send a ramp of requests to one replica of an Inference, and report the result."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.planning.bench import Load
from tidegate.planning.calibration import Inputs, Measured, ended_by, next_concurrency
from tidegate.planning.pods import pod_views
from tidegate.reports.calibration import CalibrationReport, Replica, calibrated
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.pod import GRPC_PORT

if TYPE_CHECKING:
    from tidegate.triton.load_generator import LoadGenerator

_GRACE_S: Final = 60
_SETTLING: Final = 0.2
_MOST_ERRORS: Final = 20


@dataclass(frozen=True, slots=True)
class Ramp:
    """The limits of a ramp: concurrency, seconds per step, and seconds in all."""

    most: int = 64
    step_s: float = 5.0
    total_s: float = 90.0


async def ramp_up(
    replica: Replica, ramp: Ramp, inputs: Inputs, say: Callable[[str], None]
) -> CalibrationReport:
    """Measure one replica step by step, and write a line about each step. Raises as LoadGenerator.prepare_requests does."""
    # gRPC takes a while to import, and other commands do not need it.
    from tidegate.triton.load_generator import LoadGenerator

    deadline = time.monotonic() + ramp.total_s
    measured: list[Measured] = []
    async with LoadGenerator(replica.address, replica.model) as load:
        round_trip_s = await load.prepare_requests(inputs)
        say(
            f"{replica.inference}: replica {replica.pod}, an empty question takes {round_trip_s * 1_000:.1f} ms"
        )
        say(f"{'CONCURRENCY':>12}{'REQUESTS/S':>12}{'P50 MS':>10}{'P99 MS':>10}{'ERRORS':>8}")
        while (concurrency := next_concurrency(measured, replica.slo_s, ramp.most)) is not None:
            remaining_s = deadline - time.monotonic()
            if measured and remaining_s < ramp.step_s:
                break
            step = await _measure(load, concurrency, min(ramp.step_s, max(remaining_s, 1.0)))
            measured.append(step)
            p50, p99 = step.latency_p50_s * 1_000, step.latency_p99_s * 1_000
            say(f"{step.concurrency:>12}{step.requests_per_s:>12.1f}{p50:>10.2f}{p99:>10.2f}{step.errors:>8}")
    return calibrated(replica, measured, round_trip_s, ended_by(measured, replica.slo_s, ramp.most))


async def _measure(load: LoadGenerator, concurrency: int, seconds: float) -> Measured:
    """Keep `concurrency` requests under way for `seconds`; end early after a few errors."""
    from tidegate.triton.bench import run_bench

    # Connections, caches and batches settle first; these requests are not measured.
    settling = await run_bench(load, Load(_SETTLING * seconds, concurrency, most_errors=_MOST_ERRORS))
    measured = await run_bench(load, Load((1 - _SETTLING) * seconds, concurrency, most_errors=_MOST_ERRORS))
    return Measured(
        concurrency,
        measured.per_second,
        measured.quantile_s(0.5) or inf,
        measured.quantile_s(0.99) or inf,
        sum(settling.errors.values()) + sum(measured.errors.values()),
    )


async def calibration(
    key: ObjectKey,
    slo_s: float | None,
    pod: tuple[str | None, str | None],
    where: Where,
    ramp: Ramp,
    inputs: Inputs,
    say: Callable[[str], None],
) -> CalibrationReport:
    """Find a replica of the Inference and measure it.

    `pod` holds the replica's name and address, if the user gave them.
    """
    async with connected(where) as (client, _):
        body = await client.get(INFERENCE, key)
        if body is None:
            message = f"there is no Inference {key}: kubectl get inferences -A shows those there are"
            raise PermanentError(message)
        inference = Inference.parse(body)
        if slo_s is None and inference.spec.slo is not None:
            slo_s = parse_duration(inference.spec.slo.latency_p99).total_seconds()
        async with reached(client, key, pod, timedelta(seconds=ramp.total_s + _GRACE_S)) as (name, address):
            replica = Replica(key, inference.served_name, name, address, slo_s)
            return await ramp_up(replica, ramp, inputs, say)


@asynccontextmanager
async def reached(
    client: KubeClient, key: ObjectKey, where: tuple[str | None, str | None], lasting: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a replica; yield its name and its address."""
    pod, address = where
    if address is not None:
        yield pod or address, address
        return
    bodies = await client.list(POD, namespace=key.namespace, selector=f"{INFERENCE_LABEL}={key.name}")
    chosen = pod or _first_ready(bodies, key)
    async with client.forwarded(ObjectKey(key.namespace, chosen), GRPC_PORT, lasting) as forwarded:
        yield chosen, forwarded


def _first_ready(bodies: Sequence[Mapping[str, Any]], key: ObjectKey) -> str:
    ready = [view.key.name for view in pod_views(bodies) if view.ready and not view.terminating]
    if not ready:
        message = (
            f"none of the {len(bodies)} replicas of Inference {key} is ready: see kubectl get inference "
            f"{key.name} -n {key.namespace}"
        )
        raise PermanentError(message)
    return ready[0]
