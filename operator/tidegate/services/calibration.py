"""Measure how many requests per second replicas of an Inference answer within its SLO: one, and several at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.planning.diagnosis.bench import LoadSpec
from tidegate.planning.diagnosis.calibration import (
    ConcurrencyResult,
    JointResult,
    RandomInputs,
    choose_concurrency,
    choose_joint_concurrency,
    explain_end,
    find_best_result,
    list_replica_counts,
)
from tidegate.reports.calibration import CalibrationReport, ReplicaTarget, add_joint, report_calibration
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, to_label_value
from tidegate.services.endpoints import list_ready_pods
from tidegate.services.load_tests import CONNECTION_GRACE, connect_replica
from tidegate.services.objects import read_inference

if TYPE_CHECKING:
    from tidegate.triton.load_generator import LoadGenerator

_WARM_UP_SHARE: Final = 0.2
_MAX_ERRORS: Final = 20
_BUSY_CLIENT: Final = 0.85
"""Above this share of a processor, the thread that sends the requests is what limits their rate."""
_EARLIER: Final = "spec.capacity.together of the Inference stays as it is: if the model or its replicas changed, measure with --together"


@dataclass(frozen=True, slots=True)
class RampLimits:
    """The limits of a ramp: concurrency, seconds per step, and seconds in all."""

    max_concurrency: int = 64
    step_s: float = 5.0
    total_s: float = 90.0


@dataclass(slots=True)
class Ramp:
    """Measures step by step until `deadline`, and writes a line about each step."""

    limits: RampLimits
    inputs: RandomInputs
    write_line: Callable[[str], None]
    deadline: float = field(init=False)
    """By time.monotonic()."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.total_s

    async def measure_replica(self, replica: ReplicaTarget) -> CalibrationReport:
        """Measure one replica. Raises as LoadGenerator.prepare_requests does."""
        measured: list[ConcurrencyResult] = []
        slo_s, limit = replica.slo_s, self.limits.max_concurrency
        async with self._open_generators(replica.model, [replica.address]) as ([load], round_trip_s):
            self.write_line(
                f"{replica.inference}: replica {replica.pod}, an empty question takes {round_trip_s * 1_000:.1f} ms"
            )
            self.write_line(f"{'CONCURRENCY':>12}{'REQUESTS/S':>12}{'P50 MS':>10}{'P99 MS':>10}{'ERRORS':>8}")
            while (concurrency := choose_concurrency(measured, slo_s, limit)) is not None:
                if measured and not self._has_time:
                    break
                measured.append(await self._measure_step([load], concurrency))
        return report_calibration(replica, measured, round_trip_s, explain_end(measured, slo_s, limit))

    async def measure_together(
        self, model: str, addresses: Sequence[str], slo_s: float | None, alone: int
    ) -> tuple[Sequence[JointResult], str]:
        """Measure 2, 4, 8, … and all replicas at the same time, beginning with `alone` requests at once to each.

        Return the best result within the SLO of each number of replicas, and why there is none of more, or an empty text.
        """
        best: list[JointResult] = []
        async with self._open_generators(model, addresses) as (loads, _):
            for count in list_replica_counts(len(addresses)):
                self.write_line(f"{count} replicas at the same time, requests at once to each:")
                measured: list[ConcurrencyResult] = []
                while (concurrency := choose_joint_concurrency(measured, slo_s, alone)) is not None:
                    if not self._has_time:
                        return best, f"the time limit was reached before {count} replicas were measured"
                    started, used = time.monotonic(), time.thread_time()
                    measured.append(await self._measure_step(loads[:count], concurrency))
                    if time.thread_time() - used > _BUSY_CLIENT * (time.monotonic() - started):
                        return best, (
                            f"this command cannot send as much as {count} replicas answer: its own processor is busy, so "
                            "the figure would be too low"
                        )
                result = find_best_result(measured, slo_s)
                if result is None:
                    return best, f"{count} replicas miss the SLO even with one request at a time to each"
                best.append(JointResult(count, result))
        return best, ""

    @property
    def _has_time(self) -> bool:
        return self.deadline - time.monotonic() >= self.limits.step_s

    @asynccontextmanager
    async def _open_generators(
        self, model: str, addresses: Sequence[str]
    ) -> AsyncGenerator[tuple[Sequence[LoadGenerator], float]]:
        """Yield a load generator for each address, and the time of an empty request to the first one."""
        # gRPC takes a while to import, and other commands do not need it.
        from tidegate.triton.load_generator import LoadGenerator

        async with AsyncExitStack() as stack:
            loads = [await stack.enter_async_context(LoadGenerator(address, model)) for address in addresses]
            round_trips_s = [await load.prepare_requests(self.inputs) for load in loads]
            yield loads, round_trips_s[0]

    async def _measure_step(self, loads: Sequence[LoadGenerator], concurrency: int) -> ConcurrencyResult:
        """Keep `concurrency` requests under way to each replica for a step."""
        seconds = min(self.limits.step_s, max(self.deadline - time.monotonic(), 1.0))
        results = await asyncio.gather(*(_measure_load(load, concurrency, seconds) for load in loads))
        step = ConcurrencyResult(
            concurrency,
            sum(result.requests_per_s for result in results),
            max(result.latency_p50_s for result in results),
            max(result.latency_p99_s for result in results),
            sum(result.errors for result in results),
        )
        p50, p99 = step.latency_p50_s * 1_000, step.latency_p99_s * 1_000
        self.write_line(
            f"{step.concurrency:>12}{step.requests_per_s:>12.1f}{p50:>10.2f}{p99:>10.2f}{step.errors:>8}"
        )
        return step


async def _measure_load(load: LoadGenerator, concurrency: int, seconds: float) -> ConcurrencyResult:
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


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """What to measure: the replica in the pod `pod` or at `address`, by default a ready one; with `together` all ready ones, too."""

    key: ObjectKey
    limits: RampLimits
    inputs: RandomInputs
    slo_s: float | None = None
    pod: str | None = None
    address: str | None = None
    together: bool = False


async def calibrate_inference(
    client: KubeClient, request: CalibrationRequest, write_line: Callable[[str], None]
) -> CalibrationReport:
    """Measure an Inference. Raises PermanentError if it has too few ready replicas."""
    key, pod, slo_s = request.key, request.pod, request.slo_s
    inference = await read_inference(client, key)
    if slo_s is None and inference.spec.slo is not None:
        slo_s = parse_duration(inference.spec.slo.latency_p99).total_seconds()
    inputs = replace(request.inputs, shared_inputs=frozenset(inference.spec.model.shared_inputs))
    if request.address is not None:
        replica = ReplicaTarget(key, inference.served_name, pod or request.address, request.address, slo_s)
        return await Ramp(request.limits, inputs, write_line).measure_replica(replica)
    pods = await _list_joint_pods(client, inference) if request.together else []
    # The ports stay open for as long as both measurements may take.
    duration = timedelta(seconds=request.limits.total_s) * (2 if pods else 1) + CONNECTION_GRACE
    async with connect_replica(client, key, pods[0] if pods else pod, duration) as (name, forwarded):
        replica = ReplicaTarget(key, inference.served_name, name, forwarded, slo_s)
        report = await Ramp(request.limits, inputs, write_line).measure_replica(replica)
        if report.concurrency is None:
            return report
        if not pods:
            has_earlier = inference.spec.capacity is not None and inference.spec.capacity.together
            return report.model_copy(update={"note": _EARLIER}) if has_earlier else report
        async with AsyncExitStack() as stack:
            other_ports = [
                await stack.enter_async_context(connect_replica(client, key, other, duration))
                for other in pods[1:]
            ]
            together = await Ramp(request.limits, inputs, write_line).measure_together(
                inference.served_name,
                [forwarded, *(address for _, address in other_ports)],
                slo_s,
                report.concurrency,
            )
    return add_joint(report, *together)


async def _list_joint_pods(client: KubeClient, inference: Inference) -> Sequence[str]:
    """Return the ready pods to measure together: those of the first pool in which a replica has the capacity of the spec.

    Raises PermanentError if there is no such pool, or if they are fewer than two.
    """
    key, placement = inference.key, inference.spec.placement
    selector, pool_words = f"{INFERENCE_LABEL}={key.name}", ""
    if placement is not None:
        pools = [share.name for share in placement.pool_shares if share.relative_capacity == 1]
        if not pools:
            message = (
                f"Inference {key} has no pool in which a replica has the capacity of the spec: set relativeCapacity of one of "
                "spec.placement.pools to 1"
            )
            raise PermanentError(message)
        pool = pools[0]
        selector, pool_words = f"{selector},{POOL_LABEL}={to_label_value(pool)}", f" in ComputePool {pool}"
    pods = await list_ready_pods(client, key.namespace, selector)
    if len(pods) < 2:
        message = (
            f"Inference {key} has 1 ready replica{pool_words}, and --together takes 2 or more: raise spec.replicas or "
            "spec.scaling.minReplicas, and lower it again afterwards"
        )
        raise PermanentError(message)
    return [pod.name for pod in pods]
