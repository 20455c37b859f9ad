"""Send requests to a replica of an Inference, or through a gateway, for a while."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.kube.client import KubeClient
from tidegate.planning.diagnosis.bench import LoadSpec
from tidegate.planning.diagnosis.calibration import RandomInputs
from tidegate.reports.bench import BenchLimits, BenchReport, BenchTarget, report_bench
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.serving_pod import GRPC_PORT
from tidegate.routing.hosts import ACCESS_HEADER
from tidegate.services.endpoints import list_ready_pods
from tidegate.services.installation import find_release, gateway_selector
from tidegate.services.objects import read_inference

GRPC_SCHEME: Final = "grpc://"
_GATEWAY_PORT: Final = 8080
CONNECTION_GRACE: Final = timedelta(seconds=60)


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
    duration = timedelta(seconds=request.load.seconds) + CONNECTION_GRACE
    if request.access is None:
        async with connect_replica(client, key, request.pod, duration) as (pod, address):
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
async def connect_replica(
    client: KubeClient, key: ObjectKey, pod: str | None, duration: timedelta
) -> AsyncGenerator[tuple[str, str]]:
    """Connect to a replica, by default a ready one; yield its name and its address."""
    if pod is None:
        pod = (await list_ready_pods(client, key.namespace, f"{INFERENCE_LABEL}={key.name}"))[0].name
    async with client.forward_port(ObjectKey(key.namespace, pod), GRPC_PORT, duration) as address:
        yield pod, address
