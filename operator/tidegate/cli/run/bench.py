"""Find the server that `tidegate bench` tests, by one of three ways, and run the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.cli.run.calibrate import connect_replica
from tidegate.cli.run.object_names import find_object
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE, POD
from tidegate.planning.diagnosis.bench import LoadSpec
from tidegate.planning.diagnosis.calibration import RandomInputs
from tidegate.planning.pods import parse_pods
from tidegate.reports.bench import BenchLimits, BenchReport, BenchTarget, report_bench
from tidegate.routing.hosts import ACCESS_HEADER
from tidegate.services.installation import INSTANCE_LABEL, TIDEGATE_SELECTOR, find_release

_GRPC: Final = "grpc://"
_GATEWAY_PORT: Final = 8080
_GRACE: Final = timedelta(seconds=60)


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


async def run_load_test(request: BenchRequest, options: KubeOptions) -> BenchReport:
    """Run one load test and return its report. Raises TidegateError or ValueError with the way out."""
    if request.target.startswith(_GRPC):
        address = request.target.removeprefix(_GRPC).rstrip("/")
        if request.model is None:
            message = f"no model for {request.target}: name it with --model"
            raise ValueError(message)
        return await _run_bench(
            request, _BenchEndpoint(address, request.model, f"at {address}", request.access)
        )
    async with open_client(options) as (client, default_namespace):
        match = await find_object(client, request.target, options, default_namespace)
        body = await client.get(match.kind, match.key)
        if match.kind != INFERENCE or body is None:
            message = f"{match.kind} {match.key} is no Inference: name one, and --access for the way through a gateway"
            raise PermanentError(message)
        model = request.model or Inference.parse(body).served_name
        duration = timedelta(seconds=request.load.seconds) + _GRACE
        if request.access is None:
            async with connect_replica(client, match.key, (request.pod, None), duration) as (pod, address):
                return await _run_bench(request, _BenchEndpoint(address, model, f"port forward to pod {pod}"))
        key = ObjectKey.parse(request.access)
        access = str(key if key.namespace else ObjectKey(match.key.namespace, key.name))
        async with _connect_gateway(client, request.system_namespace, duration) as (pod, address):
            description = f"through ModelAccess {access}, port forward to gateway {pod}"
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
async def _connect_gateway(
    client: KubeClient, system_namespace: str | None, duration: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a ready gateway through a port forward; yield its name and its address."""
    release, namespace = await find_release(client, system_namespace)
    selector = f"{TIDEGATE_SELECTOR},{INSTANCE_LABEL}={release},app.kubernetes.io/component=gateway"
    views = parse_pods(await client.list(POD, namespace=namespace, selector=selector))
    ready = [view.key for view in views if view.ready and not view.terminating]
    if not ready:
        message = f"none of {len(views)} gateways of release {release} in namespace {namespace} is ready"
        raise PermanentError(message)
    async with client.forward_port(ready[0], _GATEWAY_PORT, duration) as address:
        yield ready[0].name, address
