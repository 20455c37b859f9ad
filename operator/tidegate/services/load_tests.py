"""Send requests to a replica of an Inference, or through a gateway: a ramp within the SLO, or one load test."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.kube.client import KubeClient
from tidegate.planning.diagnosis.bench import LoadSpec
from tidegate.planning.diagnosis.calibration import (
    ConcurrencyResult,
    RandomInputs,
    choose_concurrency,
    explain_end,
)
from tidegate.reports.bench import BenchLimits, BenchReport, BenchTarget, report_bench
from tidegate.reports.calibration import CalibrationReport, ReplicaTarget, report_calibration
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.serving_pod import GRPC_PORT
from tidegate.routing.hosts import ACCESS_HEADER
from tidegate.services.endpoints import list_ready_pods
from tidegate.services.installation import find_release, gateway_selector
from tidegate.services.objects import read_inference

if TYPE_CHECKING:
    from tidegate.triton.load_generator import LoadGenerator

GRPC_SCHEME: Final = "grpc://"
_GATEWAY_PORT: Final = 8080
_GRACE: Final = timedelta(seconds=60)
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
    client: KubeClient,
    key: ObjectKey,
    slo_s: float | None,
    pod: str | None,
    address: str | None,
    limits: RampLimits,
    inputs: RandomInputs,
    write_line: Callable[[str], None],
) -> CalibrationReport:
    """Measure a replica of the Inference: the pod of that name, the server at `address`, or a ready one."""
    inference = await read_inference(client, key)
    if slo_s is None and inference.spec.slo is not None:
        slo_s = parse_duration(inference.spec.slo.latency_p99).total_seconds()
    inputs = replace(inputs, shared_inputs=frozenset(inference.spec.model.shared_inputs))
    if address is not None:
        replica = ReplicaTarget(key, inference.served_name, pod or address, address, slo_s)
        return await measure_replica(replica, limits, inputs, write_line)
    duration = timedelta(seconds=limits.total_s) + _GRACE
    async with _connect_replica(client, key, pod, duration) as (name, forwarded):
        replica = ReplicaTarget(key, inference.served_name, name, forwarded, slo_s)
        return await measure_replica(replica, limits, inputs, write_line)


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The arguments of one `tidegate bench`."""

    target: str
    """An Inference, or grpc://host:port."""
    load: LoadSpec
    inputs: RandomInputs
    limits: BenchLimits
    model: str | None = None
    access: str | None = None
    """The ModelAccess for requests through a gateway."""
    pod: str | None = None
    system_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _BenchEndpoint:
    address: str
    model: str
    description: str
    access: str | None = None


async def bench_address(request: BenchRequest) -> BenchReport:
    """Test the server at the target grpc://host:port. Raises TidegateError or ValueError with the way out."""
    address = request.target.removeprefix(GRPC_SCHEME).rstrip("/")
    if request.model is None:
        message = f"no model for {request.target}: name it with --model"
        raise ValueError(message)
    return await _run_bench(request, _BenchEndpoint(address, request.model, f"at {address}", request.access))


async def bench_inference(client: KubeClient, key: ObjectKey, request: BenchRequest) -> BenchReport:
    """Test a replica of an Inference, or the way to it through a gateway. Raises TidegateError with the way out."""
    inference = await read_inference(client, key)
    model = request.model or inference.served_name
    shared_inputs = frozenset(inference.spec.model.shared_inputs)
    request = replace(request, inputs=replace(request.inputs, shared_inputs=shared_inputs))
    duration = timedelta(seconds=request.load.seconds) + _GRACE
    if request.access is None:
        async with _connect_replica(client, key, request.pod, duration) as (pod, address):
            return await _run_bench(request, _BenchEndpoint(address, model, f"port forward to pod {pod}"))
    access_key = ObjectKey.parse(request.access)
    access = str(access_key if access_key.namespace else ObjectKey(key.namespace, access_key.name))
    release, namespace = await find_release(client, request.system_namespace)
    gateway = (await list_ready_pods(client, namespace, gateway_selector(release)))[0]
    async with client.forward_port(gateway, _GATEWAY_PORT, duration) as address:
        description = f"through ModelAccess {access}, port forward to gateway {gateway.name}"
        return await _run_bench(request, _BenchEndpoint(address, model, description, access))


async def _run_bench(request: BenchRequest, endpoint: _BenchEndpoint) -> BenchReport:
    # gRPC takes a while to import, and other commands do not need it.
    from tidegate.triton.bench import run_bench
    from tidegate.triton.load_generator import LoadGenerator

    headers = () if endpoint.access is None else ((ACCESS_HEADER, endpoint.access),)
    async with LoadGenerator(endpoint.address, endpoint.model, headers=headers) as load:
        round_trip_s = await load.prepare_requests(request.inputs)
        # Behind a gateway these would be the counters of one replica out of several.
        before = await load.read_counters() if endpoint.access is None else None
        result = await run_bench(load, request.load)
        after = (
            await load.read_counters(before.inferences + len(result.times_s)) if before is not None else None
        )
    counted = after.subtract(before) if after is not None and before is not None else None
    return report_bench(
        BenchTarget(endpoint.model, request.target, endpoint.description, round_trip_s),
        result,
        counted,
        request.limits,
    )


@asynccontextmanager
async def _connect_replica(
    client: KubeClient, key: ObjectKey, pod: str | None, duration: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a replica, by default a ready one; yield its name and its address."""
    if pod is None:
        pod = (await list_ready_pods(client, key.namespace, f"{INFERENCE_LABEL}={key.name}"))[0].name
    async with client.forward_port(ObjectKey(key.namespace, pod), GRPC_PORT, duration) as address:
        yield pod, address
