"""What answered requests are worth while real Tritons have 1.5 times the load that they can bear, with prices and without.

    python bench/value.py [--seconds 60]

Two Tritons behind a gateway, each with a model that takes 10 ms for each request, one at a time; what they bear together is
measured first, by 20 clients without a pause. Three routes to them get the same number of requests at random times:
`gold` of value 5, `silver` of value 2 and `rest` of value 1.
Arms, in turn:
  capacity  as many requests as the Tritons bear, and maxConcurrent alone
  uniform   1.5 times as many, and maxConcurrent alone
  split     the same, with an access for each route, so with limits that count apart, in the ratio of the values
  priced    the same, with admitted shares that a planner renews every second
  reduced   the same, and a Triton with a model of 5 ms, whose answers are worth 0.7 of the others, as the fallback
The first 6 s of each are left out. Then the shares of `rest` change ten times to none and back, and each time requests show
after how many seconds the gateway follows; at last the control plane ends while all requests of `rest` are refused, and they show
after how many seconds the gateway answers all. Prints one JSON document; exits 1 if `priced` is worth less than 1.2 times
`uniform` or 1.05 times `split`, answers less than 0.95 of the requests that `capacity` answers, gold's p99 is above the SLO of
500 ms, `reduced` is not worth more than `priced`, a change of the shares takes more than a second, the loss of the control plane
more than their TTL and a second, or an answer is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from prometheus_client import CollectorRegistry
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.slow_models import SlowModel
from fixtures.envoy import Client, Gateway
from fixtures.pipeline import endpoint_of, slow_models
from fixtures.triton import staged
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.port import Manifest
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.publisher.share_planner import SharePlanner
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.shares import SHARES_TTL_S

MODEL = SlowModel("ctr", factor=2.0, delay_ms=10.0)
SMALL = SlowModel("ctr", factor=3.0, delay_ms=5.0)
SMALL_VALUE = 0.7
SMALL_CAPACITY = 150.0
"""Requests per second that the fallback answers, stated with some room."""
TRITONS = 2
SETTLED_S = 6.0
VALUES = {"gold": 5, "silver": 2, "rest": 1}
SLO_S = 0.5
REST_ROUTE = "access/ads/ctr/rest"
ANSWERED = "answered"
REFUSED = "RESOURCE_EXHAUSTED"
CHANGES = 10
LIMIT = 40
"""Requests that may wait: enough to keep both Tritons busy, and answered within half of the SLO."""


@dataclass(frozen=True, slots=True)
class ValueArm:
    """A way to share the Tritons, and the load relative to their capacity; `names`: the access of each route."""

    accesses: tuple[Manifest, ...]
    load: float = 1.5
    names: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(VALUES, "ctr"))


def shared_access(route: Mapping[str, Any] | None = None, **protection: Any) -> Manifest:
    """Return one access with a route for each value; `route`: fields of all of them."""
    routes = [
        a_route(
            name,
            value=str(value),
            match={"headers": [{"name": "x-segment", "exact": name}]},
            **(route or {}),
        )
        for name, value in VALUES.items()
    ]
    return model_access_body(routes=routes, protection={"maxConcurrent": LIMIT, **protection})


def limited_access(name: str) -> Manifest:
    """Return an access for one value, with its part of the limit."""
    limit = round(LIMIT * VALUES[name] / sum(VALUES.values()))
    return model_access_body(name, protection={"maxConcurrent": limit})


PRICED = {"mode": "Priced"}
FALLBACK = {"inference": "small", "valuePercent": round(100 * SMALL_VALUE)}
ARMS = {
    "capacity": ValueArm((shared_access(),), load=1.0),
    "uniform": ValueArm((shared_access(),)),
    "split": ValueArm(tuple(map(limited_access, VALUES)), names={name: name for name in VALUES}),
    "priced": ValueArm((shared_access(admissionControl=PRICED),)),
    "reduced": ValueArm((shared_access({"fallback": FALLBACK}, admissionControl=PRICED),)),
}


@dataclass(slots=True)
class SegmentResults:
    """Results of the requests of one route."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])


async def ask_once(client: Client, access: str, segment: str, results: SegmentResults) -> None:
    """Send a request and count its outcome."""
    request = service_pb2.ModelInferRequest(
        model_name="ctr", raw_input_contents=[np.ones(1, np.float32).tobytes()]
    )
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = MODEL.given, MODEL.given_type
    tensor.shape.extend([1, 1])
    metadata = (("x-tidegate-access", f"ads/{access}"), ("x-segment", segment))
    began = time.monotonic()
    try:
        answer = await client.stub().ModelInfer(request, metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        results.outcomes[error.code().name] += 1
        return
    outcomes = {MODEL.factor: ANSWERED, SMALL.factor: "reduced"}
    (content,) = answer.raw_output_contents
    outcome = outcomes.get(float(np.frombuffer(content, np.float32)[0]), "wrong")
    results.outcomes[outcome] += 1
    results.seconds.append(time.monotonic() - began)


async def send_load(
    arm: ValueArm, per_second: float, client: Client, seconds: float
) -> Mapping[str, SegmentResults]:
    """Send requests at random times, independent of earlier answers."""
    choice = random.Random(1)
    results = {name: SegmentResults() for name in VALUES}
    began = due = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        while due < began + SETTLED_S + seconds:
            due += choice.expovariate(per_second)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            name = choice.choice(tuple(VALUES))
            counted = results[name] if due >= began + SETTLED_S else SegmentResults()
            tasks.create_task(ask_once(client, arm.names[name], name, counted))
    return results


async def measure_capacity(client: Client, seconds: float = 6.0) -> float:
    """Return the requests per second that the Tritons answer while twenty are always waiting."""
    results, end = SegmentResults(), time.monotonic() + seconds

    async def work() -> None:
        while time.monotonic() < end:
            await ask_once(client, "ctr", "gold", results)

    await asyncio.gather(*(work() for _ in range(10 * TRITONS)))
    return results.outcomes[ANSWERED] / seconds


def fill_inputs(accesses: Sequence[Manifest], capacity: float) -> RoutingInputs:
    """Return the objects that an xDS server sees; `capacity`: requests per second of all Tritons."""
    inputs = RoutingInputs()
    stores = {store.kind: store for store in inputs.required_stores}
    per_pod = {"ctr": capacity / TRITONS, "small": SMALL_CAPACITY}
    for name, rate in per_pod.items():
        measured = {"requestsPerSecond": f"{rate:.2f}"}
        stores[kinds.INFERENCE].observe("ADDED", inference_body(name, capacity=measured))
    for access in accesses:
        stores[kinds.MODEL_ACCESS].observe("ADDED", access)
    for number, name in enumerate(["ctr"] * TRITONS + ["small"]):
        metadata = {"name": f"p{number}", "namespace": "ads", "uid": f"p{number}", "resourceVersion": "1"}
        status = {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {INFERENCE_LABEL: name}
        stores[kinds.POD].observe("ADDED", {"metadata": {**metadata, "labels": labels}, "status": status})
    return inputs


async def measure_arm(
    gateway: Gateway, client: Client, arm: ValueArm, capacity: float, seconds: float
) -> Mapping[str, SegmentResults]:
    """Send the load of an arm while a planner runs."""

    async def find_gateways() -> Sequence[ScrapeTarget]:
        return [ScrapeTarget("gateway-1", gateway.envoy.admin)]

    planner = SharePlanner(
        inputs=fill_inputs(arm.accesses, capacity),
        shares=gateway.control_plane.shares,
        metrics=XdsMetrics(CollectorRegistry()),
        find_gateways=find_gateways,
    )
    planning = asyncio.create_task(planner.run_rounds())
    results = await send_load(arm, arm.load * capacity, client, seconds)
    planning.cancel()
    return results


async def measure_changes(gateway: Gateway, client: Client) -> list[float]:
    """Return after how many seconds the gateway follows each change of the shares, as requests show, one after the other."""
    seconds: list[float] = []
    for number in range(2 * CHANGES):
        shares, expected = ({REST_ROUTE: 0.0}, REFUSED) if number % 2 == 0 else ({}, ANSWERED)
        gateway.control_plane.shares.publish_shares(shares)
        seconds.append(await wait_for_outcome(client, expected))
    return seconds


async def measure_loss(gateway: Gateway, client: Client) -> float:
    """Return how many seconds after the end of the control plane a gateway that refuses all requests of `rest` admits them."""
    gateway.control_plane.shares.publish_shares({REST_ROUTE: 0.0})
    await wait_for_outcome(client, REFUSED)
    await gateway.lose_control_plane()
    return await wait_for_outcome(client, ANSWERED)


async def wait_for_outcome(client: Client, expected: str) -> float:
    """Send requests of `rest` until one has this outcome; return after how many seconds.

    Raises RuntimeError for one that is neither answered nor refused, and TimeoutError after 30 s.
    """
    began, results = time.monotonic(), SegmentResults()
    while not results.outcomes[expected]:
        if results.outcomes.keys() - {ANSWERED, REFUSED}:
            raise RuntimeError(f"requests of rest failed: {dict(results.outcomes)}")
        if time.monotonic() - began > 30:
            raise TimeoutError(f"no request of rest is {expected} after 30 s: {dict(results.outcomes)}")
        await ask_once(client, "ctr", "rest", results)
    return time.monotonic() - began


async def measure_arms(
    seconds: float, folder: Path
) -> tuple[dict[str, Mapping[str, SegmentResults]], Mapping[str, float]]:
    """Measure the arms in turn, then how soon the gateway follows its shares, in seconds."""
    results: dict[str, Mapping[str, SegmentResults]] = {}
    (folder / "gateway").mkdir()
    with ExitStack() as stack:
        pods = []
        for number, model in enumerate([MODEL] * TRITONS + [SMALL]):
            own = folder / f"triton-{number}"
            own.mkdir()
            pods.append(endpoint_of(stack.enter_context(slow_models(staged(own), own / "models", model))))
        backends = [
            Backend(BackendKey(BackendKind.INFERENCE, "ads", name), "ctr", tuple(endpoints))
            for name, endpoints in (("ctr", pods[:TRITONS]), ("small", pods[TRITONS:]))
        ]
        async with Gateway(folder / "gateway") as gateway:
            client = await gateway.start(*backends, ModelAccess.parse(shared_access()))
            capacity = await measure_capacity(client)
            print(f"the capacity is {capacity:.1f} requests a second", file=sys.stderr)
            for name, arm in ARMS.items():
                await gateway.control_plane.push(*backends, *map(ModelAccess.parse, arm.accesses))
                results[name] = await measure_arm(gateway, client, arm, capacity, seconds)
            await gateway.control_plane.push(*backends, *map(ModelAccess.parse, ARMS["priced"].accesses))
            changes = await measure_changes(gateway, client)
            followed = {
                "change_median": statistics.median(changes),
                "change_most": max(changes),
                "loss_of_control_plane": await measure_loss(gateway, client),
            }
    return results, followed


def summarise_arm(results: Mapping[str, SegmentResults], seconds: float) -> dict[str, Any]:
    """Return the figures of one arm: value and answers per second, and each segment's share answered and p99."""
    answered = {name: segment.outcomes[ANSWERED] for name, segment in results.items()}
    return {
        "value_per_s": round(
            sum(
                VALUES[name] * (answered[name] + SMALL_VALUE * segment.outcomes["reduced"])
                for name, segment in results.items()
            )
            / seconds,
            1,
        ),
        "answered_per_s": round(sum(answered.values()) / seconds, 1),
        "segments": {
            name: {
                "answered": round(answered[name] / segment.outcomes.total(), 3),
                "p99_ms": round(float(np.quantile(segment.seconds or [0.0], 0.99)) * 1000, 1),
                "outcomes": dict(segment.outcomes),
            }
            for name, segment in results.items()
        },
    }


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured, followed = asyncio.run(measure_arms(options.seconds, Path(folder)))
    arms = {name: summarise_arm(results, options.seconds) for name, results in measured.items()}
    priced = arms["priced"]
    ratios = {
        "value_to_uniform": round(priced["value_per_s"] / arms["uniform"]["value_per_s"], 3),
        "value_to_split": round(priced["value_per_s"] / arms["split"]["value_per_s"], 3),
        "value_of_reduced": round(arms["reduced"]["value_per_s"] / priced["value_per_s"], 3),
        "answered_to_capacity": round(priced["answered_per_s"] / arms["capacity"]["answered_per_s"], 3),
    }
    followed_s = {name: round(seconds, 3) for name, seconds in followed.items()}
    print(json.dumps({"arms": arms, "ratios": ratios, "followed_s": followed_s}, indent=2))
    wrong = any(segment.outcomes["wrong"] for results in measured.values() for segment in results.values())
    met = (
        ratios["value_to_uniform"] >= 1.2
        and ratios["value_to_split"] >= 1.05
        and ratios["answered_to_capacity"] >= 0.95
        and priced["segments"]["gold"]["p99_ms"] <= SLO_S * 1000
        and ratios["value_of_reduced"] > 1
        and followed_s["change_most"] <= 1
        and followed_s["loss_of_control_plane"] <= SHARES_TTL_S + 1
    )
    return 0 if met and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
