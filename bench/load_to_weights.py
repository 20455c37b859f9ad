"""P10: from more load at the gateway to another pod that gets requests, where a warm spare waits and no pod starts.

    python bench/load_to_weights.py [--promotions 8] [--interval 2]

Real: API server, controller manager, scheduler, the processes `tidegate controllers` and `tidegate xds serve`, and an Envoy.
Pretended: the node, and the models: servers on loopback that answer at once. Port 8080 of this machine has to be free.
Each model gets 70 % of what a replica bears, and at a moment that has nothing to do with the allocator's looks more than twice
that. A promotion is over with the first request that the spare gets; before, it must not have had any.

The time is split by what the processes log: `scrape` until the allocator has read a page on which the load shows, `decide` until
the decision is stored, `write` until the Inference's status is, `push` until the first request at the spare.
In the other arm (one model of a pool without spares) the same load has to start a pod.
Prints one JSON document; exits 1 when a promotion takes longer than the interval and a second, a pod starts for it, or a spare
had requests before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.compute_pool import compute_pool_body, node_body
from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from faults.installation import a_site, certificates, install
from fixtures.envoy import Client, Envoy, Upstream
from fixtures.processes import SYSTEM_NAMESPACE, Running, tidegate
from tidegate.planning.pods import is_ready
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.serving_pod import GRPC_PORT
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.fleet_demo.api import ApiServerClient
from tidegate_localcluster.ports import ReservedPort
from tidegate_localcluster.programs import CONTROL_PLANE

GATEWAY_PORT = 8080
MARGIN_S = 1.0
CAPACITY_PER_S, BEFORE_PER_S, AFTER_PER_S = 40.0, 28.0, 70.0
"""Capacity of a replica, and demand of a model before and after the rise."""
NAMESPACE, COLD = "models", "cold"
OURS = "/apis/tidegate.io/v1alpha1"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class TimedModelServer(Upstream):
    """A model server at the port of pods, which records the time of its first request."""

    first_at = 0.0

    async def start(self) -> None:
        """Start gRPC, the only protocol of this bench."""
        self._grpc = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._grpc)
        self._grpc.add_insecure_port(f"{self.address}:{GRPC_PORT}")
        await self._grpc.start()

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802  the name is gRPC's
        """Answer as every upstream."""
        self.first_at = self.first_at or time.time()
        return await super().ModelInfer(request, context)


@dataclass
class BenchKubelet:
    """Makes pods ready, each with its own server."""

    api: ApiServerClient
    servers: dict[str, TimedModelServer] = field(default_factory=dict[str, TimedModelServer])

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            for pod in await self.api.list_objects(PODS):
                name = pod["metadata"]["name"]
                if pod["spec"].get("nodeName") and name not in self.servers:
                    server = self.servers[name] = TimedModelServer(name, f"127.92.0.{len(self.servers) + 1}")
                    await server.start()
                if name in self.servers and not is_ready(pod):
                    await set_ready(self.api, f"{PODS}/{name}", self.servers[name].address)
            await asyncio.sleep(0.2)

    async def ready_servers(self, model: str) -> Sequence[TimedModelServer]:
        """Return the servers of a model's ready pods."""
        pods = await self.api.list_objects(PODS, f"{INFERENCE_LABEL}={model}")
        return [self.servers[pod["metadata"]["name"]] for pod in pods if is_ready(pod)]


async def set_ready(api: ApiServerClient, path: str, address: str) -> None:
    """Set a pod's status to ready, as a kubelet does."""
    ready_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": ready_at}
        for kind in ("Ready", "ContainersReady")
    ]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    await api.call("PATCH", f"{path}/status", {"status": status}, content_type=STRATEGIC)


STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class PromotionWorld:
    """All running parts."""

    api: ApiServerClient
    kubelet: BenchKubelet
    controllers: Running
    client: Client

    async def wait_for(self, description: str, condition: Any, timeout_s: float = 60.0) -> None:
        """Wait for a condition; exit with the end of the controllers' log after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"not within {timeout_s:g} s: {description}\n{self.controllers.log.read_text()[-4000:]}"
                )
            await asyncio.sleep(0.05)

    async def create_pool(self, name: str, slices: int, spares: int, interval: str) -> None:
        """Create a node with so many slices, and their pool."""
        body = node_body(f"node-{name}", cpu=str(slices), memory="512Gi", labels={"pool": name})
        await self.api.call("POST", "/api/v1/nodes", body)
        status = {**body["status"], "capacity": body["status"]["allocatable"]}
        for condition in status["conditions"]:
            condition |= {"reason": "Bench", "message": "set by a bench"}
        await self.api.call("PATCH", f"/api/v1/nodes/{body['metadata']['name']}/status", {"status": status})
        pool = compute_pool_body(
            name,
            nodeSelector=None,
            slice={"cpu": {"cpu": "1", "memory": "1Gi"}},
            tiers={"realtime": {"warmSpares": spares}},
            policy={"mode": "Auto", "interval": interval},
        )
        pool["spec"]["nodeSelector"] = {"pool": name}
        await self.api.apply(f"{OURS}/computepools/{name}", {**pool, "metadata": {"name": name}})

    async def create_model(self, name: str, pool: str) -> None:
        """Create an Inference with one replica, or two under higher demand, and its access."""
        body = inference_body(
            name,
            NAMESPACE,
            model={"name": "ctr"},
            replicas=None,
            scaling={"minReplicas": 1, "maxReplicas": 2},
            placement={"pool": pool},
            capacity={"requestsPerSecond": f"{CAPACITY_PER_S:g}"},
        )
        path = f"{OURS}/namespaces/{NAMESPACE}"
        body["metadata"] = {"name": name, "namespace": NAMESPACE}
        await self.api.call("POST", f"{path}/inferences", body)
        targets = [{"inference": name, "weight": 100}]
        access = model_access_body(name, NAMESPACE, hosts=[], routes=[a_route("default", targets=targets)])
        access["metadata"] = {"name": name, "namespace": NAMESPACE}
        await self.api.call("POST", f"{path}/modelaccesses", access)

    async def decided_replicas(self, name: str) -> tuple[int, int]:
        """Return the replicas and spares that were decided."""
        inference = await self.api.get(f"{OURS}/namespaces/{NAMESPACE}/inferences/{name}") or {}
        allocation = inference.get("status", {}).get("allocation", {})
        return allocation.get("replicas", 0), allocation.get("spares", 0)

    async def pod_uids(self) -> set[str]:
        """Return the uids of all pods."""
        return {pod["metadata"]["uid"] for pod in await self.api.list_objects(PODS)}

    def logged_at(self, event: str, since: float, **values: str) -> float:
        """Return when the controllers first logged this event with these values after `since`."""
        for line in self.controllers.log.read_text().splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") != event or any(entry.get(key) != value for key, value in values.items()):
                continue
            logged_at = datetime.fromisoformat(entry["timestamp"]).timestamp()
            if logged_at >= since:
                return logged_at
        message = f"the controllers have not logged {event} {values}"
        raise SystemExit(message)


@dataclass
class RequestStream:
    """Requests to one model at a rate that can be changed; they do not wait for each other."""

    client: Client
    model: str
    per_s: float
    sent: int = 0
    failed: int = 0

    async def run(self) -> None:
        """Run until cancelled."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._send_request())
                due = max(due + 1 / self.per_s, time.monotonic() - 0.1)
                await asyncio.sleep(max(due - time.monotonic(), 0.0))

    async def _send_request(self) -> None:
        self.sent += 1
        try:
            await self.client.infer(metadata=(("x-tidegate-access", f"{NAMESPACE}/{self.model}"),))
        except grpc.aio.AioRpcError:
            self.failed += 1


@asynccontextmanager
async def send_requests(client: Client, model: str, per_s: float) -> AsyncIterator[RequestStream]:
    """Send requests to a model while the block lasts."""
    requests = RequestStream(client, model, per_s)
    task = asyncio.create_task(requests.run())
    try:
        yield requests
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def create_gateway_pod(api: ApiServerClient) -> None:
    """Create the pod by which the controllers find the Envoy, whose metrics page is on loopback."""
    account = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/default"
    while await api.get(account) is None:  # noqa: ASYNC110 - the API server sets no Event
        await asyncio.sleep(0.1)
    labels = {"app.kubernetes.io/instance": "tidegate", "app.kubernetes.io/component": "gateway"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gateway-1", "labels": labels},
        "spec": {"containers": [{"name": "envoy", "image": "none"}]},
    }
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    await api.call("POST", path, body)
    await set_ready(api, f"{path}/gateway-1", "127.0.0.1")


@asynccontextmanager
async def start_world(folder: Path) -> AsyncIterator[PromotionWorld]:
    """Start a control plane, the controllers, an xDS server and a gateway."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", GATEWAY_PORT)) == 0:
            raise SystemExit(
                f"something listens at 127.0.0.1:{GATEWAY_PORT}, which the gateway needs; stop it"
            )
    binaries = Binaries().ensure(CONTROL_PLANE, lambda line: print(line, file=sys.stderr))
    with contextlib.ExitStack() as stack:
        xds, report, contents, admin, metrics = (
            stack.enter_context(ReservedPort("127.0.0.1")).number for _ in range(5)
        )
    with a_site(binaries, folder) as site:
        async with site.api() as api:
            await install(api)
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            await api.apply(f"/api/v1/namespaces/{NAMESPACE}", namespace)
            await create_gateway_pod(api)
            kubeconfig = site.control_plane.kubeconfig
            ports = {"xds_port": xds, "report_port": report, "contents_port": contents}
            settings = {
                "tls_directory": str(certificates(folder)),
                "models_host_path": "/models",
                "gateway_metrics_port": str(metrics),
            }
            with (
                tidegate("controllers", kubeconfig, folder / "controllers", **settings) as controllers,
                tidegate(
                    "xds", kubeconfig, folder / "xds", **{name: str(port) for name, port in ports.items()}
                ),
            ):
                envoy = Envoy(folder)
                envoy.ports = {"admin_port": admin, "metrics_port": metrics}
                kubelet = BenchKubelet(api)
                running = asyncio.create_task(kubelet.run())
                client = Client(f"127.0.0.1:{GATEWAY_PORT}")
                try:
                    await envoy.start(xds)
                    yield PromotionWorld(api, kubelet, controllers, client)
                finally:
                    await client.close()
                    running.cancel()
                    envoy.stop()
                    for server in kubelet.servers.values():
                        await server.stop()


async def measure_promotion(
    world: PromotionWorld, model: str, interval_s: float, chance: random.Random
) -> dict[str, Any]:
    """Measure one promotion."""
    servers = await world.kubelet.ready_servers(model)
    async with send_requests(world.client, model, BEFORE_PER_S) as requests:
        await asyncio.sleep(3 * interval_s + chance.uniform(0, interval_s))
        [spare] = [server for server in servers if not server.first_at] or [None]
        if spare is None or await world.decided_replicas(model) != (1, 1):
            raise SystemExit(f"{model} has no spare without requests: {await world.decided_replicas(model)}")
        before = await world.pod_uids()
        requests.per_s, raised_at = AFTER_PER_S, time.time()

        async def answered() -> bool:
            return bool(spare.first_at)

        await world.wait_for(f"the spare of {model} gets requests", answered, timeout_s=10 * interval_s)
        started = await world.pod_uids() - before
    written_at = world.logged_at("allocated", raised_at, inference=f"{NAMESPACE}/{model}")
    decided_at = world.logged_at("decided", raised_at, pool="warm")
    inference = await world.api.get(f"{OURS}/namespaces/{NAMESPACE}/inferences/{model}") or {}
    name = inference["status"]["allocation"]["decision"]
    decision = (await world.api.get(f"{OURS}/allocationdecisions/{name}") or {})["spec"]
    read_at = datetime.fromisoformat(decision["at"]).timestamp()
    return {
        "seconds": round(spare.first_at - raised_at, 3),
        "scrape": round(read_at - raised_at, 3),
        "decide": round(decided_at - read_at, 3),
        "write": round(written_at - decided_at, 3),
        "push": round(spare.first_at - written_at, 3),
        "pods_started": len(started),
        "failed": requests.failed,
        "why": next(move["why"] for move in decision["moves"] if move["inference"].endswith(f"/{model}")),
    }


async def measure_cold_start(world: PromotionWorld, interval_s: float) -> dict[str, Any]:
    """Measure the same load on a model of a pool without spares."""
    await world.create_pool(COLD, 3, 0, f"{interval_s:g}s")
    await world.create_model(COLD, COLD)

    async def has_replica() -> bool:
        return len(await world.kubelet.ready_servers(COLD)) == 1

    await world.wait_for("the model without a spare is ready", has_replica)
    async with send_requests(world.client, COLD, BEFORE_PER_S) as requests:
        await asyncio.sleep(3 * interval_s)
        before = await world.pod_uids()
        requests.per_s, raised_at = AFTER_PER_S, time.time()

        async def has_started() -> bool:
            return bool(await world.pod_uids() - before)

        await world.wait_for("a pod starts", has_started, timeout_s=10 * interval_s)
        return {
            "pods_started": len(await world.pod_uids() - before),
            "seconds": round(time.time() - raised_at, 3),
        }


async def measure_promotions(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all promotions, one after the other, each of another model, and the arm without a spare."""
    models = [f"m{number}" for number in range(options.promotions)]
    chance = random.Random(options.seed)
    async with start_world(folder) as world:
        interval = f"{options.interval:g}s"
        await world.create_pool("warm", 3 * len(models), len(models), interval)
        for model in models:
            await world.create_model(model, "warm")

        async def have_spares() -> bool:
            decided = [await world.decided_replicas(model) == (1, 1) for model in models]
            servers = [len(await world.kubelet.ready_servers(model)) == 2 for model in models]
            return all(decided) and all(servers)

        await world.wait_for("every model has its spare", have_spares, timeout_s=120)
        runs = [await measure_promotion(world, model, options.interval, chance) for model in models]
        without_spare = await measure_cold_start(world, options.interval)
    seconds = sorted(run["seconds"] for run in runs)
    limit = options.interval + MARGIN_S
    met = seconds[-1] <= limit and not any(run["pods_started"] for run in runs)
    return {
        "met": met and without_spare["pods_started"] > 0,
        "limit_s": limit,
        "interval_s": options.interval,
        "median_s": statistics.median(seconds),
        "most_s": seconds[-1],
        "median_parts_s": {
            part: round(statistics.median(run[part] for run in runs), 3)
            for part in ("scrape", "decide", "write", "push")
        },
        "most_after_scrape_s": max(round(run["seconds"] - run["scrape"], 3) for run in runs),
        "pods_started": sum(run["pods_started"] for run in runs),
        "failed": sum(run["failed"] for run in runs),
        "without_spare": without_spare,
        "promotions": runs,
    }


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--promotions", type=int, default=8)
    parser.add_argument(
        "--interval", type=float, default=2.0, help="seconds between two ticks of the allocator"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the times at which load rises")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tidegate-weights-") as folder:
        result: Mapping[str, Any] = asyncio.run(measure_promotions(options, Path(folder)))
    print(json.dumps(result, indent=2))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
