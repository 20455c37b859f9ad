"""Find the server that `tidegate bench` tests, by one of three ways, and run the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.naming import find_object
from tidegate.cli.options import Where
from tidegate.cli.ramp import reached
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.operations.installation import INSTANCE, OURS, release_of
from tidegate.planning.bench import Load
from tidegate.planning.calibration import Inputs
from tidegate.planning.pods import pod_views
from tidegate.reports.bench import Asked, BenchReport, Limits, bench
from tidegate.routing.envoy.routes import ACCESS_HEADER

_GRPC: Final = "grpc://"
_GATEWAY_PORT: Final = 8080
_GRACE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Bench:
    """The arguments of one `tidegate bench`."""

    target: str
    """An Inference, or grpc://host:port."""
    load: Load
    inputs: Inputs
    limits: Limits
    model: str | None = None
    access: str | None = None
    """The ModelAccess for requests through a gateway."""
    pod: str | None = None
    system: str | None = None


@dataclass(frozen=True, slots=True)
class _Way:
    address: str
    model: str
    said: str
    access: str | None = None


async def tested(wanted: Bench, where: Where) -> BenchReport:
    """Run one load test and return its report. Raises TidegateError or ValueError with the way out."""
    if wanted.target.startswith(_GRPC):
        address = wanted.target.removeprefix(_GRPC).rstrip("/")
        if wanted.model is None:
            message = f"no model for {wanted.target}: name it with --model"
            raise ValueError(message)
        return await _run(wanted, _Way(address, wanted.model, f"at {address}", wanted.access))
    async with connected(where) as (client, default_namespace):
        match = await find_object(client, wanted.target, where, default_namespace)
        body = await client.get(match.kind, match.key)
        if match.kind != INFERENCE or body is None:
            message = f"{match.kind} {match.key} is no Inference: name one, and --access for the way through a gateway"
            raise PermanentError(message)
        model = wanted.model or Inference.parse(body).served_name
        duration = timedelta(seconds=wanted.load.seconds) + _GRACE
        if wanted.access is None:
            async with reached(client, match.key, (wanted.pod, None), duration) as (pod, address):
                return await _run(wanted, _Way(address, model, f"port forward to pod {pod}"))
        key = ObjectKey.parse(wanted.access)
        access = str(key if key.namespace else ObjectKey(match.key.namespace, key.name))
        async with _gateway(client, wanted.system, duration) as (pod, address):
            description = f"through ModelAccess {access}, port forward to gateway {pod}"
            return await _run(wanted, _Way(address, model, description, access))


async def _run(wanted: Bench, way: _Way) -> BenchReport:
    # gRPC takes a while to import, and other commands do not need it.
    from tidegate.triton.bench import run_bench
    from tidegate.triton.load_generator import LoadGenerator

    headers = () if way.access is None else ((ACCESS_HEADER, way.access),)
    async with LoadGenerator(way.address, way.model, headers=headers) as load:
        round_trip_s = await load.prepare_requests(wanted.inputs)
        # Behind a gateway these would be the counters of one replica out of several.
        before = await load.read_counters() if way.access is None else None
        result = await run_bench(load, wanted.load)
        after = (
            await load.read_counters(before.inferences + len(result.times_s)) if before is not None else None
        )
    counted = after.since(before) if after is not None and before is not None else None
    return bench(Asked(way.model, wanted.target, way.said, round_trip_s), result, counted, wanted.limits)


@asynccontextmanager
async def _gateway(
    client: KubeClient, system: str | None, lasting: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a ready gateway through a port forward; yield its name and its address."""
    release, namespace = await release_of(client, system)
    selector = f"{OURS},{INSTANCE}={release},app.kubernetes.io/component=gateway"
    views = pod_views(await client.list(POD, namespace=namespace, selector=selector))
    ready = [view.key for view in views if view.ready and not view.terminating]
    if not ready:
        message = f"none of {len(views)} gateways of release {release} in namespace {namespace} is ready"
        raise PermanentError(message)
    async with client.forwarded(ready[0], _GATEWAY_PORT, lasting) as address:
        yield ready[0].name, address
