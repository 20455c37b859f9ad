"""A near-line worker against a broker that misbehaves: it ends when it is told, and loses and buries no good message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from prometheus_client import generate_latest

from builders.metrics_page import metric
from builders.waiting import ends_in_time, eventually
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.nearline import worker as worker_module
from tidegate_dataplane.agent.nearline.broker import Backlog, StreamMessage
from tidegate_dataplane.agent.nearline.failure_policy import (
    MAX_LOSSES_ALONE,
    DeadLetter,
    DeadReason,
    FaultOrigin,
)
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError, ResultOrigin
from tidegate_dataplane.agent.nearline.model import NoAnswerError, TritonModel
from tidegate_dataplane.agent.nearline.worker import StreamWorker
from tidegate_dataplane.contract import StreamOrder, StreamReport

ORDER = StreamOrder(
    url="nats://nats.ads",
    stream="WORK",
    subject="work.ctr",
    consumer="c",
    max_in_flight=4,
    bucket="results",
    ttl_s=60.0,
    dead_letters="dead.ctr",
    max_deliveries=3,
)


def a_message(name: str, delivered: int = 1) -> StreamMessage:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    body = json.dumps({"id": name, "inputs": [tensor]}).encode()
    return StreamMessage(body, {}, sum(name.encode()), delivered, name)


@dataclass
class FakeBroker:
    """A stream in memory: what is given back is delivered again at once, one delivery more, unless `redelivers` is False."""

    waiting: list[StreamMessage]
    redelivers: bool = True
    """False: the pause before a redelivery outlasts the test."""
    id_header: str = "Nats-Msg-Id"
    hold_interval_s: float = 3.0
    opened: int = 0
    asked_for: list[int] = field(default_factory=list[int])
    kept: list[str] = field(default_factory=list[str])
    settled: list[str] = field(default_factory=list[str])
    given_back: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    dead: list[tuple[str, DeadLetter]] = field(default_factory=list[tuple[str, DeadLetter]])
    no_result: BrokerError | None = None
    no_grave: BrokerError | None = None
    no_backlog: BrokerError | None = None
    backlog: Backlog | None = None
    """What it says waits, whatever does."""
    lost_to_others: set[str] = field(default_factory=set[str])
    lost: BrokerError | None = None
    """What the next fetch fails with."""

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        return

    async def fetch_messages(self, count: int) -> Sequence[StreamMessage]:
        if (lost := self.lost) is not None:
            self.lost = None
            raise lost
        self.asked_for.append(count)
        await asyncio.sleep(0.01)
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    async def count_backlog(self) -> Backlog:
        if self.no_backlog is not None:
            raise self.no_backlog
        return self.backlog or Backlog(len(self.waiting), 0, len(self.waiting))

    async def has_result(self, request_id: str) -> bool:
        return request_id in self.kept

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        assert content
        if self.no_result is not None:
            raise self.no_result
        self.kept.append(request_id)
        return True

    async def publish_dead_letter(self, message: StreamMessage, verdict: DeadLetter) -> None:
        if self.no_grave is not None:
            raise self.no_grave
        self.dead.append((message.handle, verdict))

    def is_ours(self, message: StreamMessage) -> bool:
        return message.handle not in self.lost_to_others

    async def settle(self, message: StreamMessage) -> None:
        self.settled.append(message.handle)

    async def give_back(self, message: StreamMessage, after_s: float) -> None:
        self.given_back.append((message.handle, after_s))
        if self.redelivers:
            self.waiting.append(a_message(message.handle, message.delivery_count + 1))

    async def renew_hold(self, message: StreamMessage) -> None:
        return


class FakeModel:
    """Answers every message, unless it is gone."""

    gone: NoAnswerError | None = None

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        assert request_id
        if self.gone is not None:
            raise self.gone
        return "1", tuple(inputs)

    async def close_connection(self) -> None:
        return


@dataclass
class Running:
    """A worker and what it works with."""

    worker: StreamWorker
    broker: FakeBroker
    metrics: AgentMetrics
    ready: bool = True

    def figure(self, name: str) -> float:
        return metric(generate_latest(self.metrics.registry).decode(), f"tidegate_agent_nearline_{name}")


class FakeFeatures:
    """Features that are away or there; a request notices either, and `is_ready` counts how often it is asked meanwhile."""

    away = False
    is_failing = False
    looks = 0

    @property
    def problem(self) -> str:
        return "FeatureCompute users does not answer" if self.is_failing else ""

    async def is_ready(self) -> bool:
        self.looks += self.is_failing
        return not (self.is_failing and self.away)


class FeaturedFake(FakeModel):
    """Answers what its features let it."""

    def __init__(self, features: FakeFeatures) -> None:
        self.features = features

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        self.features.is_failing = self.features.away
        if self.features.away:
            raise NoAnswerError(FaultOrigin.FEATURES, self.features.problem)
        return await super().infer_outputs(request_id, inputs)


@asynccontextmanager
async def running(
    broker: FakeBroker, model: FakeModel | None = None, features: FakeFeatures | None = None
) -> AsyncGenerator[Running]:
    metrics = AgentMetrics()
    found: list[Running] = []

    async def ready() -> bool:
        return not found or found[0].ready

    worker = StreamWorker(
        ORDER,
        ResultOrigin("ads/ctr", "ctr-0", "ctr"),
        broker,  # type: ignore[arg-type]
        model or FakeModel(),
        ready,
        metrics,
        at_once=2,
        features=features,  # type: ignore[arg-type]
    )
    found.append(Running(worker, broker, metrics))
    try:
        yield found[0]
    finally:
        async with ends_in_time("the worker ends", timeout_s=12):
            await worker.finish()


class Deaf(FakeBroker):
    """Its first look for a result drops one cancellation, as nats-py on 3.11 may; the second one fails."""

    looks = 0

    async def has_result(self, request_id: str) -> bool:
        self.looks += 1
        if self.looks == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return False
        if self.looks == 2:
            raise BrokerError("the connection ended", refused=False)
        return await super().has_result(request_id)


async def test_a_cancellation_that_is_dropped_holds_up_neither_the_next_session_nor_the_end() -> None:
    broker = Deaf([a_message("a"), a_message("b")])
    async with running(broker) as run:
        await eventually(
            lambda: broker.opened >= 2 and set(broker.settled) == {"a", "b"},
            what="a next session settles both",
        )
        async with ends_in_time("the worker ends", timeout_s=8):
            await run.worker.finish()


async def test_a_broker_call_that_never_hears_of_its_end_does_not_keep_the_worker() -> None:
    broker, quiet = FakeBroker([a_message("a")]), asyncio.Event()

    async def stubborn(_: str) -> bool:
        while not quiet.is_set():
            try:
                await quiet.wait()
            except asyncio.CancelledError:
                continue
        return False

    broker.has_result = stubborn  # type: ignore[method-assign, assignment]
    try:
        async with running(broker) as run:
            await eventually(lambda: bool(broker.asked_for), what="it pulls")
            async with ends_in_time("the worker ends", timeout_s=12):
                await run.worker.finish()
    finally:
        quiet.set()


async def test_while_results_are_refused_nothing_is_buried_and_one_message_at_a_time_is_tried() -> None:
    broker = FakeBroker([a_message("first")])
    broker.no_result = BrokerError("bucket results takes no result: maximum bytes exceeded", refused=True)
    async with running(broker) as run:
        await eventually(lambda: bool(broker.given_back), what="the first is refused")
        # Delivered so often because of such refusals, to other pods.
        broker.waiting = [a_message(name, delivered=500) for name in "abcd"]
        broker.asked_for.clear()
        await eventually(lambda: broker.opened >= 4, what="it tries again")
        assert run.worker.problem is broker.no_result
        assert broker.dead == []
        assert broker.settled == []
        assert set(broker.asked_for) == {1}
        assert len(broker.given_back) <= broker.opened

        broker.no_result = None
        # The first may have been in flight when the others came, and is settled after them then.
        await eventually(lambda: set(broker.settled) - {"first"} == set("abcd"), what="all are settled")
        assert run.worker.problem is None


async def test_a_first_refusal_of_a_result_gives_back_all_that_is_held() -> None:
    broker = FakeBroker([a_message(name) for name in "abcd"])
    broker.no_result = BrokerError("no", refused=True)
    async with running(broker) as run:
        await eventually(lambda: len(broker.given_back) >= 4, what="all are given back")
        assert {name for name, _ in broker.given_back[:4]} == set("abcd")
        assert all(after_s > 0 for _, after_s in broker.given_back)
        await eventually(lambda: broker.opened >= 2, what="it tries again")
        assert run.worker.problem is broker.no_result  # opening alone proves no bucket


async def test_what_ends_its_server_alone_is_dead_by_that_and_not_by_deliveries() -> None:
    model = FakeModel()
    model.gone = NoAnswerError(FaultOrigin.SERVER, "gone")
    broker = FakeBroker([a_message("a", delivered=50)])
    async with running(broker, model):
        await eventually(lambda: bool(broker.dead), what="it is dead")
        assert len(broker.given_back) == MAX_LOSSES_ALONE - 1
        assert broker.dead[0][1].reason is DeadReason.UNFINISHED

    good = FakeBroker([a_message("b", delivered=50)])
    async with running(good):
        await eventually(lambda: good.kept == ["b"], what="it is answered")
        assert good.dead == []


async def test_a_dead_letter_that_nobody_takes_is_not_acknowledged_and_reopening_clears_it() -> None:
    broker = FakeBroker([a_message("a..b")], redelivers=False)
    broker.no_grave = BrokerError("no stream takes dead.ctr", refused=True)
    async with running(broker) as run:
        await eventually(
            lambda: bool(broker.given_back) and run.worker.problem is not None, what="the refusal is said"
        )
        assert run.worker.problem is broker.no_grave
        assert broker.settled == []
        assert broker.given_back == [("a..b", worker_module.DEAD_LETTER_PAUSE_S)]
        broker.lost = BrokerError("the connection ended", refused=False)
        await eventually(lambda: broker.opened == 2 and run.worker.problem is None, what="it is well again")


async def test_a_backlog_that_cannot_be_read_ends_no_work() -> None:
    broker = FakeBroker([a_message("a")])
    broker.no_backlog = BrokerError("timeout", refused=False)
    async with running(broker) as run:
        await eventually(lambda: broker.settled == ["a"] and len(broker.asked_for) > 3, what="it works on")
        assert broker.opened == 1
        assert run.worker.problem is None


async def test_whatever_numbers_a_broker_sends_the_pod_works_and_its_report_can_be_read() -> None:
    broker = FakeBroker([a_message("a")])
    broker.backlog = Backlog(10**400, 10**400, -5)
    async with running(broker) as run:
        await eventually(lambda: broker.settled == ["a"] and run.worker.stream_count is not None, "it works")
        count = run.worker.stream_count
        assert count is not None
        assert StreamReport.model_validate_json(StreamReport(count=count).to_json()).count == count
        assert (count.unsettled, count.arrived) == (2**63, 0)
        assert broker.opened == 1


async def test_a_model_that_is_away_for_long_has_nothing_consumed_and_the_end_resets_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "NOT_READY_LIMIT_S", 0.1)
    monkeypatch.setattr(worker_module, "NOT_READY_PAUSE_S", 0.01)
    broker = FakeBroker([])
    async with running(broker) as run:
        await eventually(lambda: run.worker.consuming, what="it consumes")
        assert run.figure("consuming") == 1
        run.ready = False
        await eventually(lambda: not run.worker.consuming, what="it consumes nothing")
        assert run.figure("consuming") == 0
        run.ready = True
        await eventually(lambda: run.worker.consuming, what="it consumes")
        run.metrics.nearline_backlog.set(7)
    assert [run.figure(name) for name in ("consuming", "backlog", "in_flight")] == [0, 0, 0]


async def test_inputs_that_cannot_be_sent_are_the_messages_fault() -> None:
    model = TritonModel("127.0.0.1:1", "ctr")
    try:
        for tensor in (
            InferenceTensor("x", "FP32", np.array([1], np.int64)),
            InferenceTensor("\ud800", "FP32", np.array([1], np.float32)),
        ):
            with pytest.raises(MalformedError, match="cannot be sent"):
                await model.infer_outputs("m", [tensor])
    finally:
        await model.close_connection()


async def test_a_message_that_went_to_another_pod_is_let_go_without_being_asked() -> None:
    broker = FakeBroker([a_message("theirs"), a_message("ours")], lost_to_others={"theirs"})
    async with running(broker) as run:
        await eventually(lambda: broker.settled == ["ours"], what="ours is settled")
        await eventually(lambda: run.figure("in_flight") == 0, what="nothing is held")
        assert broker.kept == ["ours"]
        assert broker.given_back == []


async def test_features_that_are_away_keep_messages_in_the_stream_and_bury_none() -> None:
    broker, features = FakeBroker([a_message("a")]), FakeFeatures()
    features.away = True
    async with running(broker, FeaturedFake(features), features) as run:
        await eventually(lambda: bool(broker.given_back), what="the first is given back")
        assert run.worker.features_problem == "FeatureCompute users does not answer"
        await eventually(lambda: features.looks >= 2, what="it asks again whether they are there")
        # Delivered so often because of such absences, to other pods: beyond what faults of others explain.
        broker.waiting = [a_message(name, delivered=500) for name in "ab"]
        fetched, looks = len(broker.asked_for), features.looks
        await eventually(lambda: features.looks >= looks + 2, what="it asks again and again")
        assert len(broker.asked_for) == fetched

        features.away = False
        await eventually(lambda: "a" in broker.kept, what="the first is answered")
        # Alone, as a test of whether they are there again; its deliveries prove nothing.
        assert broker.asked_for[fetched] == 1
        assert run.worker.features_problem == ""
