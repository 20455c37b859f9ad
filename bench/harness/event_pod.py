"""A pod that answers features over events, without Kubernetes: a real broker, the ingester, and a Triton with the plan."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
from fixtures.triton import RunningTriton
from harness.model_server import load_version, running_server
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, plan_hash
from tidegate_dataplane.contract import (
    BatchingMode,
    DesiredState,
    EventStreamReport,
    FeaturePlan,
    ModelFormat,
    OwnerKind,
)
from tidegate_dataplane.event_store.report import read_report

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
            reports[:] = read_report(self.ingester.events)
            counts = [report.stored + sum(report.refused.values()) for report in reports]
            return len(counts) == len(self.plan.streams) and all(count >= self.published for count in counts)

        wait_until(stored, what=f"{self.published} events are stored", evidence=lambda: reports)

    def read_reports(self) -> Sequence[EventStreamReport]:
        """Return what the ingester says of each source."""
        return read_report(self.ingester.events)

    def load_plan(self) -> None:
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
        staging = self.folder / "staging"
        (staging / "1" / "tables").mkdir(parents=True)
        load_version(self.server, order, _make_facts(order), staging)

    def ask(self, inputs: Mapping[str, NDArray[np.int64]]) -> Answer:
        """Return every feature for int64 inputs, [n] each."""
        tensors: list[triton_grpc.InferInput] = []
        for name, values in inputs.items():
            tensor = triton_grpc.InferInput(name, [len(values), 1], "INT64")
            tensor.set_data_from_numpy(values.astype(np.int64)[:, None])
            tensors.append(tensor)
        with triton_grpc.InferenceServerClient(self.server.grpc) as client:
            answer = client.infer(MODEL, tensors)
            return {spec.name: answer.as_numpy(spec.name) for spec in self.plan.outputs}


class SteadyPublisher:
    """Publishes events at a fixed rate from a thread of its own; `sent` counts them."""

    def __init__(self, url: str, make_event: Any, rate: float) -> None:
        self._url, self._make_event, self._rate = url, make_event, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish()), daemon=True)
        self.sent = 0

    def __enter__(self) -> SteadyPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    async def _publish(self) -> None:
        client = await nats.connect(self._url)
        started = time.perf_counter()
        try:
            while not self._stop.is_set():
                due = int((time.perf_counter() - started) * self._rate)
                while self.sent < due:
                    await client.publish(SUBJECT, json.dumps(self._make_event(self.sent)).encode())
                    self.sent += 1
                await asyncio.sleep(0.002)
        finally:
            await client.close()


@contextmanager
def running_pod(make_plan: Any) -> Iterator[EventPod]:
    """Run the parts; `make_plan` gets the broker's URL."""
    with ExitStack() as stack:
        server, folder = stack.enter_context(running_server())
        broker = stack.enter_context(a_nats(folder / "nats"))
        broker.make_stream(STREAM, SUBJECT)
        plan: FeaturePlan = make_plan(broker.url)
        # The store lies beside the model repository, where the model looks for it.
        ingester = stack.enter_context(an_ingester(server.repository.parent, plan, store_bytes=4 << 30))
        yield EventPod(folder, broker, ingester, server, plan)


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def _make_facts(order: DesiredState) -> ArtefactFacts:
    assert order.plan is not None
    return ArtefactFacts(
        uri="",
        version=1,
        format=order.format,
        plan_hash=plan_hash(order),
        digest="",
        files=(),
        inputs=order.plan.inputs,
        outputs=order.plan.outputs,
        batched=True,
    )
