"""A day with two peaks on seven slices that three tiers share: what the allocator makes of them, and the best fixed split.

    python bench/three_tier_day.py [--state-dir DIR] [--speed 200] [--hours 24]

On a local cluster (started when it does not run) with the installed chart, real Tritons, gateways and a NATS server:
a real-time model behind the gateway, a near-line one on a stream, and an offline one that scores a table too long to end.
The day is replayed so many times as fast; each arm sees the same arrivals.
Arms, one after the other:
  static    spec.replicas: real-time has what its peak needs, near-line what its messages need, offline the rest
  auto      spec.scaling and mode Auto
A replica answers one request at a time and takes a fixed time for it, as one on a slice of an accelerator does: so what
is served is bound by slices, and not by how many cores this machine has.
Pods start as fast as they do, and what was asked for lately counts for a minute, however fast the day goes: so the
allocator is slower against this day than against a real one.
Prints one JSON document; exits 1 where a request failed, the p99 missed its SLO, a message was lost or answered twice, a
near-line pod took more than five seconds to yield, a decision moved something and named no constraint, there were more
pods than slices, or auto did not score more rows than static.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import numpy as np
from harness.three_tiers import (
    MESSAGES_PER_S,
    NEARLINE_PER_S,
    POOL,
    REALTIME_PER_S,
    SLICES,
    SLO_S,
    MessagePublisher,
    PodWatcher,
    count_rows,
    create_pool,
    make_specs,
    publish_models,
    read_slices,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from builders.waiting import wait_until
from fixtures import installed
from fixtures.installed import Installed, Space
from fixtures.installed_stream import a_broker
from fixtures.stream import Worked, score
from tidegate.planning.pods import is_ready
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import LocalCluster

LOWEST_PER_S, HIGHEST_PER_S = 4.0, 19.0
PEAKS_H: Final = ((11.5, 1.0), (20.0, 0.9))
PEAK_WIDTH_H: Final = 3.0
STATIC: Final = {
    "home": math.ceil(HIGHEST_PER_S / REALTIME_PER_S),
    "rank": math.ceil(MESSAGES_PER_S / NEARLINE_PER_S),
}
RIGHT: Final = 2.0
"""What each model answers: all that it is asked is 1."""
YIELD_S: Final = 5.0
MAX_IN_FLIGHT: Final = 400
DRAINED_WITHIN_S: Final = 120.0
READ_WITHIN_S: Final = 30.0

RANGES: Final = {
    "home": {"scaling": {"minReplicas": 2, "maxReplicas": SLICES - 2}},
    "rank": {"scaling": {"minReplicas": 1, "maxReplicas": 4}},
    "embed": {"scaling": {"minReplicas": 0, "maxReplicas": SLICES}},
}
SPLIT: Final = {
    **{name: {"replicas": count} for name, count in STATIC.items()},
    "embed": {"replicas": SLICES - sum(STATIC.values())},
}


def requests_per_second(hour: float) -> float:
    """Return the real-time requests per second at an hour of the day."""
    waves = (height * math.exp(-(((hour - peak_hour) / PEAK_WIDTH_H) ** 2)) for peak_hour, height in PEAKS_H)
    return LOWEST_PER_S + (HIGHEST_PER_S - LOWEST_PER_S) * max(waves)


@dataclass(slots=True)
class DayResults:
    """Results of the requests of one arm."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    hours: list[int] = field(default_factory=list[int])
    """Hour at which each of these was sent."""

    @property
    def failed(self) -> int:
        """Return the number of requests without an answer."""
        return self.outcomes.total() - self.outcomes["answered"] - self.wrong

    @property
    def wrong(self) -> int:
        """Return the number of answers that are not the model's."""
        return self.outcomes["wrong"]


async def replay_day(address: str, access: str, speed: float, hours: float) -> DayResults:
    """Send the day's requests, each at its own random time, independent of earlier answers.

    The times are the same in every arm.
    """
    choice, results = random.Random(1), DayResults()
    request, metadata = _request(), (("x-tidegate-access", access),)
    under_way: set[asyncio.Task[None]] = set()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        began = time.monotonic()
        due_s = 0.0
        while due_s * speed < hours * 3600:
            due_s += choice.expovariate(requests_per_second(due_s * speed / 3600))
            await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
            if len(under_way) >= MAX_IN_FLIGHT:
                results.outcomes["not sent"] += 1
                continue
            task = asyncio.create_task(_ask(stub, request, metadata, results, int(due_s * speed / 3600)))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)
    return results


async def _ask(
    stub: Any, request: Any, metadata: tuple[tuple[str, str], ...], results: DayResults, hour: int
) -> None:
    began = time.monotonic()
    try:
        answer = await stub.ModelInfer(request, metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        results.outcomes[error.code().name] += 1
        print(f"a request failed: {error.code().name} {error.details()}", file=sys.stderr)
        return
    right = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [RIGHT]
    results.outcomes["answered" if right else "wrong"] += 1
    results.seconds.append(time.monotonic() - began)
    results.hours.append(hour)


def _request() -> Any:
    request = service_pb2.ModelInferRequest(
        model_name="probe", raw_input_contents=[np.ones(1, np.float32).tobytes()]
    )
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "x", "FP32"
    tensor.shape.extend([1, 1])
    return request


def run_arm(installation: Installed, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one day of one arm."""
    auto = name == "auto"
    counts: Mapping[str, Mapping[str, Any]] = RANGES if auto else SPLIT
    with ExitStack() as stack:
        space = stack.enter_context(installed.a_space(installation, f"bench-day-{name}"))
        publish_models(space)
        stack.enter_context(create_pool(space, "Auto" if auto else "RecommendOnly"))
        url, work = stack.enter_context(a_broker(space, "rank"))
        for model, spec in make_specs(space, url, counts).items():
            space.apply("Inference", model, spec)
        space.access(("home", 100), name="home")
        ready_counts = (
            {"home": 2, "rank": 1, "embed": 1} if auto else {n: c["replicas"] for n, c in SPLIT.items()}
        )
        wait_until(
            lambda: all(_count_ready(space, model) >= count for model, count in ready_counts.items()),
            f"{ready_counts} answer",
            timeout_s=180,
            evidence=lambda: {model: space.status("inference", model) for model in ready_counts},
        )
        space.ready("inference/home", "modelaccess/home")
        pods = stack.enter_context(PodWatcher(space))
        publisher = stack.enter_context(MessagePublisher(work))
        before, began = count_rows(space), time.monotonic()
        access = f"{space.namespace}/home"
        results = asyncio.run(
            replay_day(installation.endpoints.gateway, access, options.speed, options.hours)
        )
        seconds, rows = time.monotonic() - began, count_rows(space) - before
        publisher.finish_publishing()
        wait_until(
            lambda: sum(work.unsettled()) == 0, "all messages are answered", timeout_s=DRAINED_WITHIN_S
        )
        wait_until(
            lambda: all(yielding.gone_at is not None for yielding in pods.yields.values()),
            "all deleted near-line pods are gone",
        )
        decisions = _list_decisions(space)
        # Free the slices for the next arm.
        space.kubectl.run("delete", "inference", "--all", "-n", space.namespace)
        wait_until(
            lambda: not pods.pod_names, "the pods of this arm are gone", evidence=lambda: pods.pod_names
        )
        total_slices = read_slices(space).get("total", 0)
        if total_slices != SLICES:
            sys.exit(
                f"the pool had {total_slices} slices in the end instead of {SLICES}; another workload uses the node"
            )
        return {
            "seconds": round(seconds, 1),
            "realtime": _summarise_realtime(results),
            "nearline": _summarise_nearline(publisher, work, pods),
            "offline": {"rows": rows},
            "slice_seconds": {model: round(total) for model, total in sorted(pods.slice_seconds.items())},
            "most_pods": pods.max_pods,
            "decisions": _summarise_decisions(decisions),
        }


def _count_ready(space: Space, name: str) -> int:
    return sum(map(is_ready, space.pods(name)))


def _list_decisions(space: Space) -> Sequence[Mapping[str, Any]]:
    """Return the decisions of this arm's pool that were to be applied, oldest first."""
    decisions = space.installed.api.list_items("/apis/tidegate.io/v1alpha1/allocationdecisions")
    ours = [
        decision
        for decision in decisions
        if decision["spec"]["pool"] == POOL and decision["spec"]["mode"] != "RecommendOnly"
    ]
    return sorted(ours, key=lambda decision: str(decision["spec"]["at"]))


def _summarise_realtime(results: DayResults) -> dict[str, Any]:
    p50, p99 = (float(np.quantile(results.seconds, quantile)) for quantile in (0.5, 0.99))
    return {
        "requests": results.outcomes.total(),
        "failed": results.failed,
        "wrong": results.wrong,
        "outcomes": dict(results.outcomes),
        "p50_ms": round(p50 * 1000),
        "p99_ms": round(p99 * 1000),
        "slo_ms": round(SLO_S * 1000),
        "worst_by_hour_ms": _worst_by_hour(results),
    }


def _worst_by_hour(results: DayResults) -> list[int]:
    """Return the slowest answer to the requests of each hour, to show when the slices were scarce."""
    worst: dict[int, float] = {}
    for hour, seconds in zip(results.hours, results.seconds, strict=True):
        worst[hour] = max(worst.get(hour, 0.0), seconds)
    return [round(worst[hour] * 1000) for hour in sorted(worst)]


def _summarise_nearline(publisher: MessagePublisher, work: Worked, pods: PodWatcher) -> dict[str, Any]:
    kept_count, results = work.kept(), work.results()
    end = time.monotonic() + READ_WITHIN_S
    while len(results) < publisher.sent and time.monotonic() < end:  # a client may see the keys too late
        results = work.results()
    seconds = [
        yielding.gone_at - yielding.deleted_at
        for yielding in pods.yields.values()
        if yielding.gone_at is not None
    ]
    return {
        "messages": publisher.sent,
        "lost": sum(f"job-{number}" not in results for number in range(publisher.sent)),
        "answered_twice": kept_count - len(results),
        "wrong": sum(score(result) != RIGHT for result in results.values()),
        "dead": len(work.dead()),
        "yields": len(seconds),
        "slowest_yield_s": round(max(seconds, default=0.0), 2),
    }


def _summarise_decisions(decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    moving = [decision for decision in decisions if decision["spec"].get("moves")]
    named = [decision for decision in moving if decision["spec"].get("binding")]
    return {
        "decisions": len(decisions),
        "with_moves": len(moving),
        "naming_a_constraint": len(named),
        "constraints": dict(
            Counter(decision["spec"]["binding"][0]["constraint"].partition(":")[0] for decision in named)
        ),
        "unnamed": [
            move["why"] for decision in moving if decision not in named for move in decision["spec"]["moves"]
        ],
    }


def list_missed(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the targets that were missed, as text."""
    wrong: list[str] = []
    for name, arm_result in arms.items():
        realtime, nearline = arm_result["realtime"], arm_result["nearline"]
        not_once = nearline["lost"] + nearline["dead"] + nearline["answered_twice"]
        failures = {
            "real-time requests failed": realtime["failed"] > 0,
            "answers were wrong": realtime["wrong"] + nearline["wrong"] > 0,
            "the p99 missed its SLO": realtime["p99_ms"] > realtime["slo_ms"],
            "messages were lost, dead or answered twice": not_once > 0,
            "a near-line pod was slow to yield": nearline["slowest_yield_s"] > YIELD_S,
            "there were more pods than slices": arm_result["most_pods"] > SLICES,
            "a decision moved something and named no constraint": bool(arm_result["decisions"]["unnamed"]),
        }
        wrong += [f"{name}: {failure}" for failure, holds in failures.items() if holds]
    auto, static = arms["auto"], arms["static"]
    if auto["nearline"]["yields"] == 0:
        wrong.append("auto: no near-line pod had to yield, so yields were not measured")
    if auto["offline"]["rows"] <= static["offline"]["rows"]:
        wrong.append("auto scored no more rows than static")
    return wrong


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--speed", type=float, default=200.0, help="times as fast as the clock")
    parser.add_argument("--hours", type=float, default=24.0, help="of the day, from midnight")
    parser.add_argument(
        "--arms", nargs="+", choices=("static", "auto"), default=["static", "auto"], help="for a trial"
    )
    options = parser.parse_args()
    with installed.an_installation(
        LocalCluster(options.state_dir), lambda line: print(line, file=sys.stderr)
    ) as installation:
        installation.upgrade(models__allowPython=True)
        arms = {name: run_arm(installation, name, options) for name in options.arms}
    wrong = list_missed(arms) if len(arms) > 1 else []
    ratio = {"rows_auto_over_static": _ratio(arms)} if len(arms) > 1 else {}
    report = {"speed": options.speed, "hours": options.hours, "slices": SLICES, "static": SPLIT, "arms": arms}
    print(json.dumps({**report, **ratio, "missed": wrong}, indent=2))
    return 1 if wrong else 0


def _ratio(arms: Mapping[str, Mapping[str, Any]]) -> float:
    auto, static = (int(arms[name]["offline"]["rows"]) for name in ("auto", "static"))
    return round(auto / max(static, 1), 2)


if __name__ == "__main__":
    sys.exit(main())
