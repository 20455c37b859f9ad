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
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.planning.diagnosis.bench import LoadSpec
from tidegate.planning.diagnosis.calibration import (
    ConcurrencyResult,
    RandomInputs,
    choose_concurrency,
    explain_end,
)
from tidegate.planning.pods import parse_pods
from tidegate.reports.calibration import CalibrationReport, ReplicaTarget, report_calibration
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.pod import GRPC_PORT

if TYPE_CHECKING:
    from tidegate.triton.load_generator import LoadGenerator

_GRACE_SECONDS: Final = 60
_WARM_UP_SHARE: Final = 0.2
_MAX_ERRORS: Final = 20


@dataclass(frozen=True, slots=True)
class RampLimits:
    """The limits of a ramp: concurrency, seconds per step, and seconds in all."""

    max_concurrency: int = 64
    step_s: float = 5.0
    total_s: float = 90.0


async def measure_replica(
    replica: ReplicaTarget, limits: RampLimits, inputs: RandomInputs, write_line: Callable[[str], None]
) -> CalibrationReport:
    """Measure one replica step by step, and write a line about each step. Raises as LoadGenerator.prepare_requests does."""
    # gRPC takes a while to import, and other commands do not need it.
    from tidegate.triton.load_generator import LoadGenerator

    deadline = time.monotonic() + limits.total_s
    measured: list[ConcurrencyResult] = []
    async with LoadGenerator(replica.address, replica.model) as load:
        round_trip_s = await load.prepare_requests(inputs)
        write_line(
            f"{replica.inference}: replica {replica.pod}, an empty question takes {round_trip_s * 1_000:.1f} ms"
        )
        write_line(f"{'CONCURRENCY':>12}{'REQUESTS/S':>12}{'P50 MS':>10}{'P99 MS':>10}{'ERRORS':>8}")
        while (
            concurrency := choose_concurrency(measured, replica.slo_s, limits.max_concurrency)
        ) is not None:
            remaining_s = deadline - time.monotonic()
            if measured and remaining_s < limits.step_s:
                break
            step = await _measure_step(load, concurrency, min(limits.step_s, max(remaining_s, 1.0)))
            measured.append(step)
            p50, p99 = step.latency_p50_s * 1_000, step.latency_p99_s * 1_000
            write_line(
                f"{step.concurrency:>12}{step.requests_per_s:>12.1f}{p50:>10.2f}{p99:>10.2f}{step.errors:>8}"
            )
    return report_calibration(
        replica, measured, round_trip_s, explain_end(measured, replica.slo_s, limits.max_concurrency)
    )


async def _measure_step(load: LoadGenerator, concurrency: int, seconds: float) -> ConcurrencyResult:
    """Keep `concurrency` requests under way for `seconds`; end early after a few errors."""
    from tidegate.triton.bench import run_bench

    # Connections, caches and batches settle first; these requests are not measured.
    settling = await run_bench(load, LoadSpec(_WARM_UP_SHARE * seconds, concurrency, max_errors=_MAX_ERRORS))
    measured = await run_bench(
        load, LoadSpec((1 - _WARM_UP_SHARE) * seconds, concurrency, max_errors=_MAX_ERRORS)
    )
    return ConcurrencyResult(
        concurrency,
        measured.per_second,
        measured.quantile_s(0.5) or inf,
        measured.quantile_s(0.99) or inf,
        sum(settling.errors.values()) + sum(measured.errors.values()),
    )


async def calibrate_inference(
    key: ObjectKey,
    slo_s: float | None,
    pod: tuple[str | None, str | None],
    options: KubeOptions,
    limits: RampLimits,
    inputs: RandomInputs,
    write_line: Callable[[str], None],
) -> CalibrationReport:
    """Find a replica of the Inference and measure it.

    `pod` holds the replica's name and address, if the user gave them.
    """
    async with open_client(options) as (client, _):
        body = await client.get(INFERENCE, key)
        if body is None:
            message = f'Inference "{key}" not found; list them with "kubectl get inferences -A"'
            raise PermanentError(message)
        inference = Inference.parse(body)
        if slo_s is None and inference.spec.slo is not None:
            slo_s = parse_duration(inference.spec.slo.latency_p99).total_seconds()
        async with connect_replica(client, key, pod, timedelta(seconds=limits.total_s + _GRACE_SECONDS)) as (
            name,
            address,
        ):
            replica = ReplicaTarget(key, inference.served_name, name, address, slo_s)
            return await measure_replica(replica, limits, inputs, write_line)


@asynccontextmanager
async def connect_replica(
    client: KubeClient, key: ObjectKey, pod_and_address: tuple[str | None, str | None], duration: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a replica; yield its name and its address."""
    pod, address = pod_and_address
    if address is not None:
        yield pod or address, address
        return
    bodies = await client.list(POD, namespace=key.namespace, selector=f"{INFERENCE_LABEL}={key.name}")
    chosen = pod or _choose_ready_pod(bodies, key)
    async with client.forward_port(ObjectKey(key.namespace, chosen), GRPC_PORT, duration) as forwarded:
        yield chosen, forwarded


def _choose_ready_pod(bodies: Sequence[Mapping[str, Any]], key: ObjectKey) -> str:
    ready = [view.key.name for view in parse_pods(bodies) if view.ready and not view.terminating]
    if not ready:
        message = (
            f"none of the {len(bodies)} replicas of Inference {key} is ready: see kubectl get inference "
            f"{key.name} -n {key.namespace}"
        )
        raise PermanentError(message)
    return ready[0]
