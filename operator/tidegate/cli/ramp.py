"""A ramp of requests against one replica of an Inference, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import typer

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.servers import usual_kubeconfig
from tidegate.errors import PermanentError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.planning.calibration import Inputs, Measured, ended_by, next_concurrency, throughput
from tidegate.planning.pods import pod_views
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.pod import GRPC_PORT

_PATIENCE: Final = timedelta(seconds=30)
_GRACE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Ramp:
    """Its bounds: the most requests at once, seconds at each number of them, and seconds in all."""

    most: int = 64
    step_s: float = 5.0
    total_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Replica:
    """What is measured: which model, where it answers, and within what time it should."""

    inference: str
    model: str
    pod: str
    address: str
    slo_s: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of it. `way_s`: an empty question there and back, which is part of every latency."""

    replica: Replica
    measured: tuple[Measured, ...]
    way_s: float
    ended_by: str

    @property
    def best(self) -> Measured | None:
        """The most within the SLO."""
        return throughput(self.measured, self.replica.slo_s)

    def serialised(self) -> dict[str, Any]:
        """As it is written to a file. Times are in milliseconds."""
        best = self.best
        return {
            "inference": self.replica.inference,
            "model": self.replica.model,
            "replica": self.replica.pod,
            "sloMs": None if self.replica.slo_s is None else self.replica.slo_s * 1_000,
            "requestsPerSecond": None if best is None else round(best.requests_per_s, 1),
            "concurrency": None if best is None else best.concurrency,
            "endedBy": self.ended_by,
            "wayMs": round(self.way_s * 1_000, 3),
            "measured": [
                {
                    "concurrency": one.concurrency,
                    "requestsPerSecond": round(one.requests_per_s, 1),
                    "latencyP50Ms": round(one.latency_p50_s * 1_000, 3),
                    "latencyP99Ms": round(one.latency_p99_s * 1_000, 3),
                    "errors": one.errors,
                }
                for one in self.measured
            ],
        }


async def ramp_up(
    replica: Replica, ramp: Ramp, inputs: Inputs, say: Callable[[str], None] = typer.echo
) -> Calibration:
    """Measures one replica, step by step; says each as it is done. Raises as ModelLoad.prepare does."""
    # gRPC takes a while to import, for which nobody waits who asks something else.
    from tidegate.triton.load import ModelLoad

    ends = time.monotonic() + ramp.total_s
    measured: list[Measured] = []
    async with ModelLoad(replica.address, replica.model) as load:
        way_s = await load.prepare(inputs)
        say(f"{replica.inference}: replica {replica.pod}, an empty question takes {way_s * 1_000:.1f} ms")
        say(f"{'CONCURRENCY':>12}{'REQUESTS/S':>12}{'P50 MS':>10}{'P99 MS':>10}{'ERRORS':>8}")
        while (concurrency := next_concurrency(measured, replica.slo_s, ramp.most)) is not None:
            left_s = ends - time.monotonic()
            if measured and left_s < ramp.step_s:
                break
            one = await load.measure(concurrency, min(ramp.step_s, max(left_s, 1.0)))
            measured.append(one)
            p50, p99 = one.latency_p50_s * 1_000, one.latency_p99_s * 1_000
            say(f"{one.concurrency:>12}{one.requests_per_s:>12.1f}{p50:>10.2f}{p99:>10.2f}{one.errors:>8}")
    return Calibration(replica, tuple(measured), way_s, ended_by(measured, replica.slo_s, ramp.most))


def closing_lines(found: Calibration, key: ObjectKey) -> list[str]:
    """What it comes to, and how it gets into the Inference."""
    slo_s, best = found.replica.slo_s, found.best
    within = "" if slo_s is None else f" within {slo_s * 1_000:g} ms"
    lines = [f"ended: {found.ended_by}"]
    if best is None:
        return [
            *lines,
            f"no request was answered{within}, even one at a time: raise the SLO, or give the replica more",
        ]
    lines.append(
        f"one replica answers {best.requests_per_s:.1f} requests/s{within}, {best.concurrency} at once"
    )
    if slo_s is None:
        lines.append("no SLO is given: set spec.slo.latencyP99 or --slo to measure within one")
    patch = json.dumps({"spec": {"capacity": {"requestsPerSecond": f"{best.requests_per_s:.1f}"}}})
    lines.append(f"kubectl patch inference {key.name} -n {key.namespace} --type=merge -p '{patch}'")
    return lines


async def calibration(
    key: ObjectKey,
    slo_s: float | None,
    where: tuple[str | None, str | None],
    cluster: tuple[Path | None, str | None],
    ramp: Ramp,
    inputs: Inputs,
) -> Calibration:
    """Finds a replica of the Inference, and measures it. `where`: its pod and address; `cluster`: kubeconfig and context."""
    settings = ClientSettings(
        field_manager="tidegate-cli", user_agent="tidegate-cli", request_timeout=_PATIENCE
    )
    kubeconfig = cluster[0] or usual_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=cluster[1]) as client:
        body = await client.get(INFERENCE, key)
        if body is None:
            message = f"there is no Inference {key}: kubectl get inferences -A shows those there are"
            raise PermanentError(message)
        inference = Inference.parse(body)
        if slo_s is None and inference.spec.slo is not None:
            slo_s = parse_duration(inference.spec.slo.latency_p99).total_seconds()
        async with reached(client, key, where, timedelta(seconds=ramp.total_s + _GRACE_S)) as (pod, address):
            replica = Replica(str(key), inference.served_name, pod, address, slo_s)
            return await ramp_up(replica, ramp, inputs)


@asynccontextmanager
async def reached(
    client: KubeClient, key: ObjectKey, where: tuple[str | None, str | None], lasting: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """The replica's name and where to call it."""
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
