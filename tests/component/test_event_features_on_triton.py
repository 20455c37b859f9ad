"""Features over events inside a real Triton, beside an ingester that reads a real stream."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from nats.js import JetStreamContext
from numpy.typing import NDArray

from builders.events import DAY, HOUR, MINUTE, Click, a_click_plan, clicks, recorded
from builders.features import write_table
from builders.live_features import stream_source
from builders.shared_features import a_user, an_origin, shared
from builders.waiting import LONGEST_S, wait_until
from fixtures.agent import ModelPod, serves_version
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.nats import RunningNats, a_nats
from fixtures.redis import a_redis
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.shared_features import resolve_shared
from tidegate_dataplane.contract import (
    AS_OF,
    NOT_CURRENT,
    AgentPhase,
    BatchingMode,
    DesiredState,
    FeaturePlan,
    ModelCall,
    ModelFormat,
    NatsEvents,
    OwnerKind,
    TensorSpec,
)
from tidegate_dataplane.event_store import EVENTS_FOLDER
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.pipeline.failures import CallError
from tidegate_dataplane.pipeline.rows import RequestBatch
from tidegate_dataplane.pipeline.worker import CallWorker, run_calls

pytestmark = [pytest.mark.triton]

Answer = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNats]:
    """A broker with an empty stream."""
    with a_nats(tmp_path_factory.mktemp("nats")) as found:
        found.make_stream("CLICKS", "clicks.>")
        yield found


@pytest.fixture
def plan(server: RunningNats, request: pytest.FixtureRequest) -> FeaturePlan:
    """The plan over a subject of this test's own."""
    subject = f"clicks.{request.node.name}"
    return a_click_plan(clicks(nats=NatsEvents(url=server.url, stream="CLICKS", subject=subject)))


@pytest.fixture
def ingester(pod: ModelPod, plan: FeaturePlan) -> Iterator[RunningIngester]:
    """An ingester that shares the pod's folders."""
    with an_ingester(pod.folder, plan) as found:
        yield found


def publish(server: RunningNats, plan: FeaturePlan, events: Sequence[Click]) -> None:
    nats = plan.streams[0].nats
    assert nats is not None
    subject = nats.subject

    async def put(stream: JetStreamContext) -> None:
        for event in events:
            await stream.publish(subject, json.dumps(event.message).encode())

    server.ask(put)


def order(pod: ModelPod, plan: FeaturePlan, **changes: object) -> DesiredState:
    fields: dict[str, object] = {
        "owner": "ads/user-features",
        "kind": OwnerKind.FEATURE_COMPUTE,
        "format": ModelFormat.FEATURES,
        "uri": "",
        "plan": plan,
        "batching": BatchingMode.FIXED,
        "max_batch_size": 4096,
        **changes,
    }
    return pod.order(**fields)


def ask(pod: ModelPod, users: Sequence[int], times: Sequence[int] | None = None) -> Answer:
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        answer = client.infer(pod.model, inputs(users, times))
        names = [output.name for output in answer.get_response().outputs]
        return {name: answer.as_numpy(name) for name in names}


def ask_in_a_pipeline(pod: ModelPod, plan: FeaturePlan) -> Answer:
    """Ask for the first feature of user 0, as a pipeline does that passes on which streams could not be read."""
    call = ModelCall(
        title="FeatureCompute user-features",
        headers={},
        model=pod.model,
        inputs=plan.inputs,
        outputs=plan.outputs[:1],
        optional_outputs=(TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1)),),
        timeout_us=10_000_000,
    )
    worker = CallWorker(f"127.0.0.1:{pod.triton.http_port}", call)
    request = {spec.name: np.zeros((1, 1), dtype=np.int64) for spec in plan.inputs}
    run_calls([(worker, RequestBatch([request]))])
    worker.close()
    (outcome,) = worker.outcomes
    assert not isinstance(outcome, CallError), outcome
    return outcome


def inputs(users: Sequence[int], times: Sequence[int] | None = None) -> list[triton_grpc.InferInput]:
    columns = {"user_id": users, "position": range(len(users)), **({AS_OF: times} if times else {})}
    tensors: list[triton_grpc.InferInput] = []
    for name, values in columns.items():
        tensor = triton_grpc.InferInput(name, [len(users), 1], "INT64")
        tensor.set_data_from_numpy(np.array(list(values), dtype=np.int64)[:, None])
        tensors.append(tensor)
    return tensors


def expected(
    plan: FeaturePlan, events: Sequence[Click], users: Sequence[int], times: Sequence[int]
) -> Answer:
    engine = FeatureEngine(plan, {}, {"clicks": recorded(events, plan.streams[0])})
    return engine.compute_features(
        {
            "user_id": np.array(users, dtype=np.int64),
            "position": np.arange(len(users)),
            AS_OF: np.array(times, dtype=np.int64),
        }
    )


def some_events(now_ms: int) -> list[Click]:
    return [
        Click(user, now_ms - HOUR + number * MINUTE, 10 * user + number, number % 3 // 2, number / 7, "home")
        for number in range(50)
        for user in range(4)
    ]


def test_answers_are_bit_by_bit_those_of_the_same_events_in_a_file(
    pod: ModelPod, server: RunningNats, plan: FeaturePlan, ingester: RunningIngester
) -> None:
    now_ms = int(time.time() * 1000)
    events = some_events(now_ms)
    publish(server, plan, events)
    ingester.wait_for("all is stored", lambda report: report.stored == len(events))
    pod.put(order(pod, plan))
    report = pod.wait_for("the features serve", serves_version(1))
    users = [user for user in range(-1, 5) for _ in range(20)]
    times = [now_ms - number * 3 * MINUTE for _ in range(-1, 5) for number in range(20)]

    answer = ask(pod, users, times)

    for name, values in expected(plan, events, users, times).items():
        assert answer[name].tobytes() == values.tobytes(), name
        assert answer[name].dtype == values.dtype, name
    # Pipelines ask so while a change from a Redis to the events of the pods rolls out.
    assert list(ask_in_a_pipeline(pod, plan)) == [plan.outputs[0].name]
    (events_report,) = report.events
    assert (events_report.source, events_report.stored) == ("clicks", len(events))
    assert 'tidegate_agent_events_stored_total{source="clicks"} 200.0' in pod.metrics()


def test_a_click_changes_the_next_answer(
    pod: ModelPod, server: RunningNats, plan: FeaturePlan, ingester: RunningIngester
) -> None:
    pod.put(order(pod, plan, instances=2))
    ingester.wait_for("the empty stream is read", lambda report: report.caught_up)
    pod.wait_for("the features serve", serves_version(1))
    before = ask(pod, [7])
    assert before["last_item"].tolist() == [[-1]]
    assert before["idle"].tolist() == [[-1.0]]

    publish(server, plan, [Click(7, int(time.time() * 1000), 42, 1, 2.5, "home")])

    wait_until(lambda: ask(pod, [7])["last_item"].tolist() == [[42]], what="the click is in the answer")
    after = ask(pod, [7, 8])
    assert after["clicked_1h"].shape == (2, 1)
    assert after["items"][0].tolist() == [42, -1, -1, -1, -1]
    assert 0 <= after["idle"][0, 0] < 60
    assert after["last_item"].tolist() == [[42], [-1]]
    # Two processes read one store: whichever is asked has the click.
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: ask(pod, [7])["last_item"].tolist(), range(40)))
    assert answers == [[[42]]] * 40


def test_a_pod_serves_once_it_has_read_what_the_stream_holds(
    pod: ModelPod, server: RunningNats, plan: FeaturePlan
) -> None:
    events = some_events(int(time.time() * 1000))
    publish(server, plan, events)
    shutil.rmtree(pod.folder / EVENTS_FOLDER, ignore_errors=True)
    pod.put(order(pod, plan))
    pod.wait_for("the plan is there", lambda report: report.phase is AgentPhase.LOADING)
    assert pod.model not in pod.triton.log.read_text()
    with an_ingester(pod.folder, plan) as ingester:
        report = pod.wait_for("the features serve", serves_version(1))

        assert report.events[0].stored == len(events)
        assert ask(pod, [3])["last_item"].tolist() == [[79]]
        ingester.kill()
        pod.wait_for("the agent says that nobody reads", lambda report: report.events[0].lag_s > 5)
        assert ask(pod, [3])["last_item"].tolist() == [[79]]


def test_a_pod_on_a_redis_answers_alike_and_marks_what_it_answers_without_it(
    pod: ModelPod, server: RunningNats, plan: FeaturePlan, tmp_path: Path
) -> None:
    now_ms = int(time.time() * 1000)
    events = some_events(now_ms)
    users, times = [-1, 0, 1, 2, 3], [now_ms] * 5
    pod.kill_agent()
    pod.settings = {"TIDEGATE_AGENT_ALLOW_LOOPBACK": "true"}
    pod.start_agent()
    publish(server, plan, events)
    with a_redis(tmp_path / "redis", "--appendfsync", "always") as redis:
        shared = redis.plan(plan, timeout_ms=200)
        with an_ingester(tmp_path / "ingester", shared) as ingester:
            ingester.wait_for("all is stored", lambda report: report.stored == len(events))
            pod.put(order(pod, shared))
            pod.wait_for("the features serve", serves_version(1))

            def read_in_time() -> Answer | None:
                answer = ask(pod, users, times)
                return answer if answer[NOT_CURRENT].tolist() == [[b""]] * 5 else None

            answer = wait_until(read_in_time, what="Redis has answered within the request's time")
            for name, values in expected(plan, events, users, times).items():
                assert answer[name].tobytes() == values.tobytes(), name
            assert list(ask_in_a_pipeline(pod, shared)) == [plan.outputs[0].name, NOT_CURRENT]
            pod.wait_for(
                "the agent has read the ingester's report",
                lambda report: [item.stored for item in report.events] == [len(events)],
            )

            with redis.stopped():
                wait_until(
                    lambda: ask(pod, [1, 99], times[:2])[NOT_CURRENT].tolist() == [[b"clicks"]] * 2,
                    what="the answer is marked",
                )

                def mark_at_once() -> Answer | None:
                    started_s = time.monotonic()
                    marked = ask(pod, [1, 99], times[:2])
                    return marked if time.monotonic() - started_s < 2 else None

                marked = wait_until(mark_at_once, what="a request waits no longer than its time")
            assert marked["last_item"].tolist() == [[answer["last_item"][2, 0]], [-1]]
            wait_until(
                lambda: ask(pod, [1], times[:1])[NOT_CURRENT].tolist() == [[b""]], what="Redis is read again"
            )
    counts = re.compile(rf'tidegate_feature_store_(\w+){{model="{pod.model}"(?:,origin="([a-z-]+)")?}} (\d+)')

    def counted() -> dict[str, int]:
        found = counts.findall(pod.triton.read_metrics_page())
        return {origin or name: int(count) for name, origin, count in found}

    wait_until(
        lambda: counted()["failures_total"] >= 1, what="the failure is counted without another request"
    )
    final = counted()
    assert final["redis"] >= len(users)
    assert final["last-known"] >= 1
    assert final["default"] >= 1


def test_shared_features_are_answered_as_by_the_object_that_declares_them(
    pod: ModelPod, server: RunningNats, request: pytest.FixtureRequest
) -> None:
    users = write_table(pod.models / "shared-users.parquet", user_id=[0, 1, 2], age=[20, 30, 40])
    nats = {"url": server.url, "stream": "CLICKS", "subject": f"clicks.{request.node.name}"}
    profiles = {"name": "profiles", "entity": "user", "table": {"uri": f"file://{users}"}}
    origin = an_origin(sources=[profiles, stream_source(nats=nats)])
    names = {
        "age_x_place": "age_x_place",
        "idle": "idle_bucket",
        "ctr_1d": "ctr_1d",
        "hist_items": "hist_items",
    }
    user = a_user(*(shared(name, feature) for name, feature in names.items()))
    declaring = compile_plan(origin)
    using = compile_plan(resolve_shared(user, {origin.key: origin}.get))
    now_ms = int(time.time() * 1000)
    events = some_events(now_ms)
    publish(server, declaring, events)
    keys, times = [-1, 0, 1, 2, 3], [now_ms - number * MINUTE for number in range(5)]

    with an_ingester(pod.folder, using) as ingester:
        ingester.wait_for("all is stored", lambda report: report.stored == len(events))
        pod.put(order(pod, declaring))
        pod.wait_for("the declared features serve", serves_version(1))
        declared = ask(pod, keys, times)
        pod.put(order(pod, using, version=2))
        pod.wait_for("the shared features serve", serves_version(2))
        answer = ask(pod, keys, times)

    assert list(answer) == list(names)
    for name, feature in names.items():
        assert answer[name].tobytes() == declared[feature].tobytes(), name
        assert answer[name].dtype == declared[feature].dtype, name
    assert answer["hist_items"].any()
    assert len(set(answer["ctr_1d"].ravel().tolist())) > 1


def test_requests_with_and_without_a_time_are_computed_together(
    pod: ModelPod, server: RunningNats, plan: FeaturePlan, ingester: RunningIngester
) -> None:
    now_ms = int(time.time() * 1000)
    events = some_events(now_ms)
    publish(server, plan, events)
    ingester.wait_for("all is stored", lambda report: report.stored == len(events))
    pod.put(order(pod, plan, max_queue_delay_us=50_000))
    pod.wait_for("the features serve", serves_version(1))
    past = now_ms - 30 * MINUTE
    found: list[Any] = [None] * 24
    done = [threading.Event() for _ in found]
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        for place in range(len(found)):

            def answered(result: Any, error: Any, place: int = place) -> None:
                found[place] = error or result.as_numpy("last_item").ravel().tolist()
                done[place].set()

            users = [place % 4] * (place % 3 + 1)
            times = [past] * len(users) if place % 2 else None
            client.async_infer(pod.model, inputs(users, times), callback=answered)
        assert all(event.wait(LONGEST_S) for event in done)

    for place, values in enumerate(found):
        user, when = place % 4, past if place % 2 else now_ms + DAY
        newest = max(
            (event for event in events if event.user == user and event.ts <= when), key=lambda e: e.ts
        )
        assert values == [newest.item] * (place % 3 + 1), place
