"""What a request of high value loses while a real Triton has twice the load that it can bear, with values and without.

    python bench/shedding.py [--rounds 3] [--seconds 12]

One model that takes 10 ms for each request, one at a time; what it bears is measured first, by 10 clients without a pause.
A gateway before it, and two routes to it: `gold` of value 3 gets two requests in five and `rest` of value 1 the others,
at random times, twice as many together as the model bears.
Arms, in turn:
  none      maxConcurrent alone
  split     an access for each, so with limits that count apart, 8 and 2 (as circuit breakers by priority would)
  values    maxConcurrent, and admission control with values
  calm      the same as values, at half of what the model bears
The first 6 s of each are left out. Prints one JSON document; exits 1 where `values` answers less than 0.85 of gold,
`calm` refuses a request in a round in which none failed, or an answer is wrong.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.model_access import a_model_access, a_route
from builders.slow_models import SlowModel
from fixtures.envoy import Client, Gateway
from fixtures.pipeline import endpoint_of, slow_models
from fixtures.triton import staged
from tidegate.api.model_access import ModelAccess
from tidegate.routing.envoy import admission
from tidegate.routing.fleet import Backend, BackendKey, BackendKind

MODEL = SlowModel("ctr", factor=2.0, delay_ms=10.0)
GOLD_SHARE = 0.4
SETTLED_S = 6.0
LEAST_GOLD = 0.85
"""Below what a good round reaches, because other work on the machine costs some of it."""
ROUTES = ("gold", "rest")


@dataclass(frozen=True, slots=True)
class SheddingArm:
    """A way to share the model, and the request rate; `names` are the accesses of gold and rest."""

    accesses: tuple[ModelAccess, ...]
    load: float = 2.0
    """Relative to the model's capacity."""
    names: tuple[str, str] = ("ctr", "ctr")


def shared_access(protection: Mapping[str, Any], **gold: Any) -> ModelAccess:
    """Return one access with a route for each."""
    match = {"headers": [{"name": "x-segment", "exact": "gold"}]}
    return a_model_access(
        routes=[a_route("gold", match=match, **gold), a_route("rest")], protection=dict(protection)
    )


def limited_access(name: str, limit: int) -> ModelAccess:
    """Return an access of its own with a limit of concurrent requests."""
    return a_model_access(name, protection={"maxConcurrent": limit})


LIMIT = {"maxConcurrent": 10}
VALUES = shared_access({**LIMIT, "admissionControl": {}}, value="3")
ARMS = {
    "none": SheddingArm((shared_access(LIMIT),)),
    "split": SheddingArm((limited_access("gold", 8), limited_access("rest", 2)), names=("gold", "rest")),
    "values": SheddingArm((VALUES,)),
    "calm": SheddingArm((VALUES,), load=0.5),
}


@dataclass(slots=True)
class RouteResults:
    """Results of the requests of one route in one round."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])


async def send_load(
    arm: SheddingArm, per_second: float, client: Client, seconds: float, seed: int
) -> Mapping[str, RouteResults]:
    """Send requests at random times, independent of earlier answers."""
    choice = random.Random(seed)
    results = {route: RouteResults() for route in ROUTES}
    began = time.monotonic()
    due = began
    async with asyncio.TaskGroup() as tasks:
        while due < began + SETTLED_S + seconds:
            due += choice.expovariate(per_second)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            route = ROUTES[choice.random() >= GOLD_SHARE]
            counted = results[route] if due >= began + SETTLED_S else RouteResults()
            metadata = (("x-tidegate-access", f"ads/{arm.names[ROUTES.index(route)]}"), ("x-segment", route))
            tasks.create_task(_ask(client, metadata, counted))
    return results


async def _ask(client: Client, metadata: tuple[tuple[str, str], ...], result: RouteResults) -> None:
    began = time.monotonic()
    try:
        answer = await client.stub().ModelInfer(_request(), metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        result.outcomes["refused" if error.details() == admission.REJECTED_BODY else error.code().name] += 1
        return
    if list(answer.raw_output_contents) != [np.float32(MODEL.factor).tobytes()]:
        result.outcomes["wrong"] += 1
        return
    result.outcomes["answered"] += 1
    result.seconds.append(time.monotonic() - began)


def _request() -> Any:
    request = service_pb2.ModelInferRequest(
        model_name="ctr", raw_input_contents=[np.ones(1, np.float32).tobytes()]
    )
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = MODEL.given, MODEL.given_type
    tensor.shape.extend([1, 1])
    return request


async def measure_capacity(client: Client, seconds: float = 4.0) -> float:
    """Return the requests per second that the model answers while ten are always waiting."""
    result, end = RouteResults(), time.monotonic() + seconds

    async def work() -> None:
        while time.monotonic() < end:
            await _ask(client, (("x-tidegate-access", "ads/ctr"),), result)

    await asyncio.gather(*(work() for _ in range(10)))
    return result.outcomes["answered"] / seconds


async def measure_arms(
    options: argparse.Namespace, folder: Path
) -> dict[str, list[Mapping[str, RouteResults]]]:
    """Measure all rounds, the arms in turn."""
    results: dict[str, list[Mapping[str, RouteResults]]] = {name: [] for name in ARMS}
    with slow_models(staged(folder), folder / "models", MODEL) as triton:
        backend = Backend(BackendKey(BackendKind.INFERENCE, "ads", "ctr"), "ctr", (endpoint_of(triton),))
        (folder / "gateway").mkdir()
        async with Gateway(folder / "gateway") as gateway:
            client = await gateway.start(backend, *ARMS["none"].accesses)
            capacity = await measure_capacity(client)
            print(f"the model's capacity is {capacity:.1f} requests a second", file=sys.stderr)
            for number in range(options.rounds):
                for name in sorted(ARMS, reverse=bool(number % 2)):
                    arm = ARMS[name]
                    await gateway.control_plane.push(backend, *arm.accesses)
                    results[name].append(
                        await send_load(arm, arm.load * capacity, client, options.seconds, number)
                    )
    return results


def summarise_route(rounds: Sequence[Mapping[str, RouteResults]], route: str) -> dict[str, Any]:
    """Return the figures of one route in one arm, round by round."""
    results = [result[route] for result in rounds]
    return {
        "answered": [round(result.outcomes["answered"] / result.outcomes.total(), 3) for result in results],
        "p99_ms": [round(float(np.quantile(result.seconds or [0.0], 0.99)) * 1000, 1) for result in results],
        "outcomes": dict(sum((result.outcomes for result in results), Counter[str]())),
    }


def count_needless_rejections(results: Mapping[str, RouteResults]) -> int:
    """Return the requests that admission control rejected although none failed."""
    outcomes = sum((result.outcomes for result in results.values()), Counter[str]())
    failed = outcomes.total() - outcomes["answered"] - outcomes["refused"]
    return 0 if failed else outcomes["refused"]


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure_arms(options, Path(folder)))
    result = {
        name: {route: summarise_route(rounds, route) for route in ROUTES} for name, rounds in measured.items()
    }
    print(json.dumps(result, indent=2))
    gold = statistics.median(result["values"]["gold"]["answered"])
    early = sum(count_needless_rejections(results) for results in measured["calm"])
    wrong = sum(
        result.outcomes["wrong"]
        for rounds in measured.values()
        for by_route in rounds
        for result in by_route.values()
    )
    return 1 if gold < LEAST_GOLD or early or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
