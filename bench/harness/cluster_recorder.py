"""Record tick by tick what a cluster does with the Inferences of a namespace, and send them requests at given rates."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc.aio
import nats
import nats.errors
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from fixtures.installed import Space
from fixtures.stream import a_message
from harness.background import BackgroundWork
from harness.fidelity import MissedSeconds, RequestCounts, plan_arrivals
from stages import machine
from tidegate.planning.pods import is_ready
from tidegate.resources.names import INFERENCE_LABEL
from tidegate_localcluster.demo import helm

FACTOR: Final = 2.0
"""The models answer so many times what they are asked."""
_SAMPLE_S: Final = 0.5
_TIMEOUT_S: Final = 20.0
_KINDS: Final = {
    "envoy_cluster_upstream_rq_time_count": "answered",
    "envoy_cluster_upstream_rq_total": "sent",
    "envoy_cluster_upstream_rq_active_overflow": "refused",
    "envoy_cluster_upstream_rq_pending_overflow": "refused",
}
"""What the counters of the gateways count."""


@dataclass(slots=True)
class ClusterTick:
    """One tick: the mean of the pods that have slices and of those that answer, by Inference; requests; messages answered.

    `pressure` is the share of the last ten seconds in which a process of the machine waited for a core, in percent.
    """

    start_s: float
    occupied: Mapping[str, float]
    ready: Mapping[str, float]
    requests: Mapping[str, RequestCounts]
    messages: int
    pressure: float


@dataclass(frozen=True, slots=True)
class _GatewayCounts:
    answered: float = 0.0
    refused: float = 0.0
    sent: float = 0.0


class ClusterRecorder(BackgroundWork):
    """Reads the pods twice a second, and the gateways' counters and the results of the stream at each tick."""

    def __init__(
        self, space: Space, models: Sequence[str], tick_s: float, count_kept: Callable[[], int]
    ) -> None:
        self._space = space
        self._models = models
        self._tick_s = tick_s
        self._count_kept = count_kept
        super().__init__(self._record_ticks)
        self.begin_s = 0.0
        self.ticks: list[ClusterTick] = []
        self.problems: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.begin_s = time.monotonic()
        return super().__enter__()

    def _record_ticks(self) -> None:
        counts, kept = self._read_counts(), self._count_kept()
        while not self._ended.is_set():
            start_s = len(self.ticks) * self._tick_s
            occupied, ready = self._watch_pods(start_s + self._tick_s)
            before, kept_before = counts, kept
            try:
                counts, kept = self._read_counts(), self._count_kept()
            except (OSError, TimeoutError, AssertionError, nats.errors.Error) as error:
                self.problems[repr(error)] += 1
            requests = {name: _subtract_counts(counts[name], before[name]) for name in counts}
            self.ticks.append(
                ClusterTick(start_s, occupied, ready, requests, kept - kept_before, machine.pressure())
            )
            rounded = {name: round(pods, 1) for name, pods in sorted(ready.items())}
            print(f"{start_s:5.0f} s ready {rounded}", file=sys.stderr)

    def _watch_pods(self, until_s: float) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the mean numbers of pods until a time since the begin."""
        occupied: defaultdict[str, int] = defaultdict(int)
        ready: defaultdict[str, int] = defaultdict(int)
        samples = 0
        while True:
            try:
                pods = self._read_pods()
            except OSError as error:
                self.problems[repr(error)] += 1
            else:
                samples += 1
                for pod in pods:
                    name = pod["metadata"]["labels"][INFERENCE_LABEL]
                    occupied[name] += 1
                    ready[name] += "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
            rest_s = self.begin_s + until_s - time.monotonic()
            if self._ended.wait(max(min(_SAMPLE_S, rest_s), 0.0)) or rest_s <= _SAMPLE_S:
                break
        samples = max(samples, 1)
        return (
            {name: count / samples for name, count in occupied.items()},
            {name: count / samples for name, count in ready.items()},
        )

    def _read_pods(self) -> Sequence[Mapping[str, Any]]:
        """Return pods on slices that have not ended, terminating ones included."""
        path = f"/api/v1/namespaces/{self._space.namespace}/pods?labelSelector={INFERENCE_LABEL}"
        ended = ("Succeeded", "Failed")
        pods = self._space.installed.api.list_items(path)
        return [pod for pod in pods if pod["status"].get("phase") not in ended]

    def _read_counts(self) -> Mapping[str, _GatewayCounts]:
        """Return the requests of each Inference since the gateways began."""
        totals: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in self._models}
        for pod in self._space.installed.component("gateway"):
            page = self._space.installed.metrics(
                helm.NAMESPACE, pod["metadata"]["name"], 9902, "stats/prometheus"
            )
            for metric in page:
                kind = _KINDS.get(metric.name)
                cluster = metric.labels.get("envoy_cluster_name", "")
                name = next((name for name in totals if f"/{self._space.namespace}/{name}" in cluster), None)
                if kind and name is not None:
                    totals[name][kind] += metric.value
        return {
            name: _GatewayCounts(total["answered"], total["refused"], total["sent"])
            for name, total in totals.items()
        }


def _subtract_counts(after: _GatewayCounts, before: _GatewayCounts) -> RequestCounts:
    refused = after.refused - before.refused
    return RequestCounts(after.answered - before.answered, after.sent - before.sent + refused)


@dataclass(slots=True)
class PlayedRequests:
    """What came of the requests to one access, as the client sees it."""

    answered: int = 0
    wrong: int = 0
    codes: Counter[str] = field(default_factory=Counter[str])
    """Of those that failed."""
    seconds: MissedSeconds = field(default_factory=MissedSeconds)

    def sum_up(self) -> Mapping[str, Any]:
        """Return the counts for a report."""
        return {"answered": self.answered, "failed": dict(self.codes), "wrong": self.wrong}


@dataclass(frozen=True, slots=True)
class PlayedStream:
    """Where the messages of a trace go, and at which rates."""

    url: str
    subject: str
    rates: Sequence[float]


class RequestPlayer(BackgroundWork):
    """Sends requests to accesses, and messages to a stream, at given rates in the background until it is ended.

    It does not wait for answers, and keeps one connection to each server.
    """

    def __init__(
        self,
        address: str,
        rates: Mapping[str, Sequence[float]],
        stream: PlayedStream,
        tick_s: float,
        slo_s: float,
        seed: int,
        namespace: str,
    ) -> None:
        self._address = address
        self._rates = rates
        self._stream = stream
        self._tick_s = tick_s
        self._slo_s = slo_s
        self._seed = seed
        self._namespace = namespace
        self.messages = 0
        super().__init__(lambda: asyncio.run(self._play_all()), join_s=_TIMEOUT_S + 10)
        self.played = {name: PlayedRequests() for name in rates}

    async def _play_all(self) -> None:
        began_s = time.monotonic()
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._play_stream(began_s))
                for name in self._rates:
                    tasks.create_task(self._play_access(stub, name, began_s))

    async def _play_stream(self, began_s: float) -> None:
        client = await nats.connect(self._stream.url)
        try:
            stream = client.jetstream()
            for due_s in plan_arrivals(self._stream.rates, self._tick_s, self._seed):
                await asyncio.sleep(max(began_s + due_s - time.monotonic(), 0.0))
                if self._ended.is_set():
                    return
                await stream.publish(self._stream.subject, a_message(1, f"job-{self.messages}"))
                self.messages += 1
        finally:
            await client.close()

    async def _play_access(self, stub: Any, name: str, began_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, due_s in enumerate(plan_arrivals(self._rates[name], self._tick_s, self._seed)):
                await asyncio.sleep(max(began_s + due_s - time.monotonic(), 0.0))
                if self._ended.is_set():
                    return
                tasks.create_task(self._ask_once(stub, name, number, due_s))

    async def _ask_once(self, stub: Any, name: str, number: int, due_s: float) -> None:
        played, x, sent_s = self.played[name], 1 + number / 1024, time.monotonic()
        metadata = (("x-tidegate-access", f"{self._namespace}/{name}"),)
        try:
            answer = await stub.ModelInfer(_make_request(x), metadata=metadata, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            played.codes[error.code().name] += 1
            played.seconds.count_request(due_s, is_missed=True)
            return
        played.seconds.count_request(due_s, is_missed=time.monotonic() - sent_s > self._slo_s)
        if np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [np.float32(FACTOR * x)]:
            played.answered += 1
        else:
            played.wrong += 1


def _make_request(x: float) -> Any:
    content = np.array([x], np.float32).tobytes()
    request = service_pb2.ModelInferRequest(model_name="probe", raw_input_contents=[content])
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "x", "FP32"
    tensor.shape.extend([1, 1])
    return request
