"""A pod that answers features over events, without Kubernetes: a real broker, the ingester, and a Triton with the plan."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import numpy as np
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray

from builders.desired import a_desired_state
from builders.waiting import wait_until
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.nats import RunningNats, a_nats
from fixtures.redis import RunningRedis, a_redis
from fixtures.triton import RunningTriton
from harness.model_server import load_plan, running_server
from tidegate_dataplane.contract import (
    NOT_CURRENT,
    BatchingMode,
    EventStreamReport,
    FeaturePlan,
    ModelFormat,
    OwnerKind,
)
from tidegate_dataplane.features.redis_events import CACHE_S

STREAM, SUBJECT = "EVENTS", "events"
MODEL = "features"
Answer = Mapping[str, NDArray[Any]]


@dataclass
class EventPod:
    """The parts of the pod, and how many events were published."""

    folder: Path
    broker: RunningNats
    ingester: RunningIngester
    server: RunningTriton
    plan: FeaturePlan
    redis: RunningRedis | None = None
    """The store of the events; None for one on disk."""
    published: int = 0

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Put events into the stream as fast as it takes them."""

        async def put(stream: Any) -> None:
            for event in events:
                await stream.publish_async(SUBJECT, json.dumps(event).encode())
            await stream.publish_async_completed()

        self.broker.ask(put)
        self.published += len(events)

    def wait_until_stored(self) -> None:
        """Wait until each source has every event that was published, or has refused it."""
        reports: list[EventStreamReport] = []

        def stored() -> bool:
            reports[:] = self.read_reports()
            counts = [report.stored + sum(report.refused.values()) for report in reports]
            return len(counts) == len(self.plan.streams) and all(count >= self.published for count in counts)

        wait_until(stored, what=f"{self.published} events are stored", evidence=lambda: reports)
        if self.redis is not None:
            time.sleep(CACHE_S)  # until then the server takes what it has read for current

    def read_reports(self) -> Sequence[EventStreamReport]:
        """Return what the ingester says of each source."""
        return self.ingester.read_reports()

    def serve_plan(self) -> None:
        """Load the plan as an agent does, once the ingester has made the store."""
        wait_until(
            lambda: (
                len(self.read_reports()) == len(self.plan.streams)
                and all(report.caught_up for report in self.read_reports())
            ),
            what="the stream is read",
        )
        order = a_desired_state(
            kind=OwnerKind.FEATURE_COMPUTE,
            model=MODEL,
            format=ModelFormat.FEATURES,
            uri="",
            plan=self.plan,
            max_batch_size=4096,
            batching=BatchingMode.FIXED,
        )
        load_plan(self.server, order, self.folder / "staging")

    def ask(self, inputs: Mapping[str, NDArray[Any]]) -> Answer:
        """Return every feature for inputs of integers or of texts (objects), [n] each."""
        tensors: list[triton_grpc.InferInput] = []
        for name, values in inputs.items():
            is_text = values.dtype == object
            tensor = triton_grpc.InferInput(name, [len(values), 1], "BYTES" if is_text else "INT64")
            tensor.set_data_from_numpy((values if is_text else values.astype(np.int64))[:, None])
            tensors.append(tensor)
        with triton_grpc.InferenceServerClient(self.server.grpc) as client:
            answer = client.infer(MODEL, tensors)
            if self.redis is not None and set(answer.as_numpy(NOT_CURRENT).ravel()) != {b""}:
                raise RuntimeError(f"Redis was not read in time for {answer.as_numpy(NOT_CURRENT)[0]}")
            return {spec.name: answer.as_numpy(spec.name) for spec in self.plan.outputs}


class SteadyPublisher:
    """Publishes events at a fixed rate from a process of its own."""

    def __init__(self, url: str, make_event: Callable[[int], Mapping[str, Any]], rate: float) -> None:
        context = multiprocessing.get_context("fork")
        self._stop = context.Event()
        self._sent: Any = context.Value("q", 0)
        self._process = context.Process(
            target=_publish_steadily, args=(url, make_event, rate, self._stop, self._sent), daemon=True
        )

    def __enter__(self) -> SteadyPublisher:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(30)

    @property
    def sent_count(self) -> int:
        """Return the number of published events."""
        return int(self._sent.value)


def _publish_steadily(
    url: str, make_event: Callable[[int], Mapping[str, Any]], rate: float, stop: Any, sent: Any
) -> None:
    async def publish() -> None:
        client = await nats.connect(url)
        started = time.perf_counter()
        while not stop.is_set():
            due = int((time.perf_counter() - started) * rate)
            while sent.value < due:
                await client.publish(SUBJECT, json.dumps(make_event(sent.value)).encode())
                sent.value += 1
            await asyncio.sleep(0.005)
        await client.close()

    asyncio.run(publish())


@contextmanager
def running_pod(make_plan: Callable[[str], FeaturePlan], *, in_redis: bool = False) -> Iterator[EventPod]:
    """Run the parts; `make_plan` gets the broker's URL."""
    with ExitStack() as stack:
        server, folder = stack.enter_context(running_server())
        broker = stack.enter_context(a_nats(folder / "nats"))
        broker.make_stream(STREAM, SUBJECT)
        plan: FeaturePlan = make_plan(broker.url)
        redis = stack.enter_context(a_redis(folder / "redis")) if in_redis else None
        if redis is not None:
            plan = redis.plan(plan, timeout_ms=10_000)
        # The store lies beside the model repository, where the model looks for it.
        ingester = stack.enter_context(an_ingester(server.repository.parent, plan, store_bytes=4 << 30))
        yield EventPod(folder, broker, ingester, server, plan, redis)


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
