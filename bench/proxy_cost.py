"""What our filters cost: throughput and CPU of our gateway against an Envoy that only routes (P5).

    python bench/proxy_cost.py [--rounds 5] [--requests 20000] [--clients 16]

gRPC requests of the Open Inference Protocol with 1 KiB of input, from h2load (Debian: nghttp2-client), on loopback.
The model is an Envoy that answers by itself, faster than any model: so what is measured is the hop.
Three arms in turn: no hop, an Envoy with one static route (`bare`), and our gateway with the snapshot of a ModelAccess
that asks for nothing special (`ours`).
Prints one JSON document; exits 1 when an answer was not 200, throughput through our gateway is below 0.9 of that of the
bare one, or its CPU for one request is above 1.15 times that of the bare one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.model_access import a_model_access
from fixtures.envoy import Envoy, Gateway
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

INFER = "/inference.GRPCInferenceService/ModelInfer"
LEAST_SHARE, MOST_CPU = 0.9, 1.15
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class StaticEnvoy(Envoy):
    """An Envoy without a control plane: it answers itself, or forwards to `upstream` (host:port)."""

    async def start_static(self, upstream: str | None = None) -> None:
        """Start, and return when it listens."""
        action: dict[str, Any] = {"direct_response": {"status": 200, "body": {"inline_bytes": "AAAAAAA="}}}
        clusters: list[dict[str, Any]] = []
        if upstream is not None:
            action = {"route": {"cluster": "model", "timeout": "5s"}}
            clusters = [_cluster_config(*upstream.split(":"))]
        config = self.folder / "static.yaml"
        config.write_text(yaml.safe_dump(_static_config(action, clusters)))
        await self._run(config)
        await self.listening()


def envoy_cpu_s(envoy: Envoy) -> float:
    """Return the CPU time of the process."""
    fields = Path(f"/proc/{envoy.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _static_config(action: dict[str, Any], clusters: list[dict[str, Any]]) -> dict[str, Any]:
    router = {
        "name": "router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "codec_type": "AUTO",
        "http_filters": [router],
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, **action}]}
            ]
        },
    }
    anywhere = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {
        "admin": {"address": anywhere},
        "static_resources": {
            "listeners": [{"name": "gateway", "address": anywhere, "filter_chains": [chain]}],
            "clusters": clusters,
        },
    }


def _cluster_config(host: str, port: str) -> dict[str, Any]:
    options = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    return {
        "name": "model",
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
        "load_assignment": {
            "cluster_name": "model",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


@dataclass(slots=True)
class ProxyArm:
    """One way to the model, and its measurements."""

    address: str
    hop: Envoy | None
    per_second: list[float] = field(default_factory=list[float])
    cpu_us: list[float] = field(default_factory=list[float])

    def run_load(self, load: list[str], requests: int) -> None:
        """Run one load to its end."""
        before = envoy_cpu_s(self.hop) if self.hop else 0.0
        output = subprocess.run(
            [*load, f"http://{self.address}{INFER}"], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        match = re.search(r"([\d.]+) req/s", output)
        if match is None or f"status codes: {requests} 2xx" not in output:
            raise SystemExit(f"not every answer has status 200:\n{output}")
        self.per_second.append(float(match[1]))
        if self.hop:
            self.cpu_us.append((envoy_cpu_s(self.hop) - before) / requests * 1e6)


async def measure_arms(options: argparse.Namespace, folder: Path) -> dict[str, ProxyArm]:
    """Measure all rounds, the arms in turn."""
    body = folder / "request"
    message = service_pb2.ModelInferRequest(model_name="ctr", raw_input_contents=[bytes(1024)])
    data = message.SerializeToString()
    body.write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)
    headers = ["content-type: application/grpc", "te: trailers", "x-tidegate-access: ads/ctr"]
    load = ["h2load", f"-n{options.requests}", f"-c{options.clients}", "-m1", "-t1", f"-d{body}"]
    load += [argument for header in headers for argument in ("-H", header)]
    async with AsyncExitStack() as stack:

        def an_envoy(name: str) -> StaticEnvoy:
            (folder / name).mkdir()
            envoy = StaticEnvoy(folder / name)
            stack.callback(envoy.stop)
            return envoy

        model, bare = an_envoy("model"), an_envoy("bare")
        await model.start_static()
        await bare.start_static(model.address)
        host, _, port = model.address.partition(":")
        endpoint = Endpoint(host, int(port), int(port))
        (folder / "ours").mkdir()
        gateway = await stack.enter_async_context(Gateway(folder / "ours"))
        await gateway.start(
            a_model_access(), Backend(BackendKey(BackendKind.INFERENCE, "ads", "ctr"), "ctr", (endpoint,))
        )
        arms = {
            "none": ProxyArm(model.address, None),
            "bare": ProxyArm(bare.address, bare),
            "ours": ProxyArm(gateway.envoy.address, gateway.envoy),
        }
        for arm in arms.values():  # Open connections and fill caches before the first measurement.
            await asyncio.to_thread(arm.run_load, load, options.requests)
            arm.per_second.clear()
            arm.cpu_us.clear()
        for number in range(options.rounds):
            for name in sorted(arms, reverse=bool(number % 2)):
                await asyncio.to_thread(arms[name].run_load, load, options.requests)
        return arms


def median_ratio(figures: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over all rounds of one arm's figure over another's."""
    return statistics.median(figure / other for figure, other in zip(figures, base, strict=True))


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        raise SystemExit("needs h2load, which Debian has in the package nghttp2-client")
    with tempfile.TemporaryDirectory() as folder:
        arms = asyncio.run(measure_arms(options, Path(folder)))
    none, bare, ours = arms["none"], arms["bare"], arms["ours"]
    share = median_ratio(ours.per_second, bare.per_second)
    cpu = median_ratio(ours.cpu_us, bare.cpu_us)
    figures: dict[str, object] = {
        name: {
            "requests_per_s": [round(figure) for figure in arm.per_second],
            "cpu_us_per_request": [round(figure, 1) for figure in arm.cpu_us],
        }
        for name, arm in arms.items()
    }
    result = {
        "throughput_ours_to_bare": round(share, 3),
        "least": LEAST_SHARE,
        "throughput_ours_to_none": round(median_ratio(ours.per_second, none.per_second), 3),
        "throughput_bare_to_none": round(median_ratio(bare.per_second, none.per_second), 3),
        "cpu_ours_to_bare": round(cpu, 3),
        "most": MOST_CPU,
    }
    print(json.dumps({**result, **figures}, indent=2))
    return 1 if share < LEAST_SHARE or cpu > MOST_CPU else 0


if __name__ == "__main__":
    sys.exit(main())
