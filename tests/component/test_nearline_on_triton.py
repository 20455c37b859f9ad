"""Near-line work on a real Triton from a real NATS or Kafka: every id one result, whatever ends in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from builders.scenario import require_scenario
from builders.waiting import wait_until
from fixtures.feature_answers import feature_answers
from fixtures.kafka import RunningKafka
from fixtures.stream import (
    MAX_DELIVERIES,
    StreamPod,
    a_message,
    a_stream_pod,
    score,
)
from fixtures.triton import TritonFiles
from tidegate.api.reasons import Reason
from tidegate_dataplane.agent.nearline.worker import LONGEST_PAUSE_S
from tidegate_dataplane.contract import StreamReport

pytestmark = [pytest.mark.triton]

A_FEW_MS = 4_000
"""Rounds of the slow model for each unit of x: x = 1 takes milliseconds."""


@pytest.fixture(scope="module")
def shared(triton_files: TritonFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamPod]:
    """A pod and a broker that tests use one after the other, each with a model and a stream of its own."""
    with a_stream_pod(triton_files, tmp_path_factory.mktemp("pod")) as pod:
        yield pod


@pytest.fixture
def stream_pod(shared: StreamPod) -> StreamPod:
    shared.begin()
    return shared


@pytest.fixture
def slow_pod(shared: StreamPod) -> StreamPod:
    shared.begin(rounds=A_FEW_MS)
    return shared


KAFKA = pytest.param(
    "kafka",
    marks=pytest.mark.slow(
        "test_nearline_kafka.py asks a real Kafka; the worker is the same over either broker"
    ),
)


@pytest.fixture(params=["nats", KAFKA])
def broker(request: pytest.FixtureRequest) -> RunningKafka | None:
    """The Kafka that has the work, or None where NATS has it."""
    return request.getfixturevalue("kafka") if request.param == "kafka" else None


@pytest.fixture
def any_pod(shared: StreamPod, broker: RunningKafka | None) -> StreamPod:
    shared.begin(broker)
    return shared


@pytest.fixture
def any_slow_pod(shared: StreamPod, broker: RunningKafka | None) -> StreamPod:
    shared.begin(broker, rounds=A_FEW_MS)
    return shared


def test_every_message_gets_one_result_that_says_what_the_model_answered(any_pod: StreamPod) -> None:
    numbers = range(200)
    any_pod.work.publish([a_message(number) for number in numbers])
    any_pod.work.publish([a_message(number) for number in range(50)])  # sent twice by a client
    any_pod.serve()

    results = any_pod.work.done([f"m-{number}" for number in numbers])
    any_pod.work.settled()

    assert {name: score(result) for name, result in results.items()} == {
        f"m-{number}": number + 1000.0 for number in numbers
    }
    assert any_pod.work.kept() == 200
    one = results["m-7"]
    assert (one["inference"], one["model"], one["version"], one["pod"], one["late"]) == (
        "ads/ctr",
        any_pod.pod.model,
        "1",
        "ctr-0",
        False,
    )
    assert any_pod.counted("results_total") == 200
    assert any_pod.counted("duplicates_total") == 50
    wait_until(lambda: any_pod.counted("backlog") == 0, what="the backlog is counted anew")
    assert any_pod.counted("busy_seconds_total") > 0
    assert 200 <= any_pod.asked() <= 210  # duplicates that came while the first was being asked

    def said() -> StreamReport:
        stream = any_pod.pod.report().stream
        assert stream is not None
        return stream

    assert said().problem is None
    # What the broker has counted for all pods, for whoever decides how many there are to be; two seconds old at most.
    wait_until(
        lambda: (count := said().count) is not None and count.unsettled == 0,
        what="every message is settled",
    )
    count = said().count
    assert count is not None
    assert 250 <= count.arrived <= 260
    assert count.age_s < 10


def test_without_an_order_for_a_stream_nothing_is_taken_from_it(stream_pod: StreamPod) -> None:
    stream_pod.work.publish([a_message(1)])
    stream_pod.obey(stream_pod.pod.order())

    assert stream_pod.pod.report().stream is None
    assert stream_pod.counted("messages_total") == 0
    assert stream_pod.work.results() == {}


@pytest.mark.no_rerun("a lost or doubled message")
@pytest.mark.parametrize("broker", ["nats", "kafka"], indirect=True)  # over both in every run
def test_a_worker_that_is_killed_in_the_middle_loses_nothing_and_doubles_nothing(
    any_slow_pod: StreamPod,
) -> None:
    ids = [f"job-{number}" for number in range(300)]
    any_slow_pod.work.publish([a_message(1, name) for name in ids])
    any_slow_pod.serve()
    wait_until(lambda: any_slow_pod.work.kept() > 30, what="the work has begun")

    any_slow_pod.pod.kill_agent()
    taken = any_slow_pod.work.kept()
    require_scenario(taken < 300, "work is left when the worker is killed")
    require_scenario(any_slow_pod.work.free() < 300 - taken, "it has some in its hands then")
    any_slow_pod.start_agent()

    results = any_slow_pod.work.done(ids)
    any_slow_pod.work.settled()
    assert set(results) == set(ids)
    assert any_slow_pod.work.kept() == 300
    assert any_slow_pod.counted("redelivered_total") > 0
    assert any_slow_pod.work.dead() == []


def test_what_can_never_be_answered_is_a_dead_letter_with_its_reason_and_the_rest_is_served(
    any_pod: StreamPod,
) -> None:
    wrong_shape = json.dumps(
        {"id": "wide", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    ).encode()
    poison = [b"no JSON", a_message(1, "a b"), wrong_shape]
    late = a_message(5, "too-late", deadline=time.time() - 60)
    any_pod.work.publish([*poison, late, *(a_message(number) for number in range(50))])
    any_pod.serve()

    any_pod.work.done([f"m-{number}" for number in range(50)])
    any_pod.work.settled()

    dead = dict(any_pod.work.dead())
    assert set(dead) == {*poison, late}
    assert [dead[body]["Tidegate-Reason"] for body in poison] == ["Malformed", "Malformed", "Refused"]
    assert dead[late]["Tidegate-Reason"] == "DeadlinePassed"
    assert "its id 'a b' must be" in dead[poison[1]]["Tidegate-Message"]
    assert "unexpected shape for input 'x'" in dead[wrong_shape]["Tidegate-Message"]
    # What the model refuses was tried as often as the spec says, and no more.
    assert dead[wrong_shape]["Tidegate-Deliveries"] == str(MAX_DELIVERIES)
    assert any_pod.counted("returned_total") == MAX_DELIVERIES - 1
    assert any_pod.counted("dead_letters_total", reason="Malformed") == 2
    assert any_pod.counted("dead_letters_total", reason="Refused") == 1
    assert len(any_pod.work.results()) == 50


def test_the_earliest_deadline_goes_first_and_those_without_go_last(slow_pod: StreamPod) -> None:
    soon = time.time() + 600
    order = [a_message(1, "none-1"), a_message(1, "none-2")]
    order += [a_message(1, f"d-{number:02}", deadline=soon + number) for number in reversed(range(12))]
    slow_pod.work.publish(order, together=True)
    slow_pod.serve(max_in_flight=14)

    results = slow_pod.work.done([*(f"d-{number:02}" for number in range(12)), "none-1", "none-2"])

    served = sorted(results, key=lambda name: str(results[name]["time"]))
    # Two are asked side by side, so neighbours may change places; published in the opposite order they could not.
    places = {name: place for place, name in enumerate(served)}
    wanted = [*(f"d-{number:02}" for number in range(12)), "none-1", "none-2"]
    assert all(abs(places[name] - place) <= 1 for place, name in enumerate(wanted)), served


def test_a_header_can_carry_the_deadline_and_the_id(stream_pod: StreamPod) -> None:
    body = json.loads(a_message(3))
    del body["id"]
    headers = {"Nats-Msg-Id": "by-header", "x-deadline": "2020-01-01T00:00:00Z"}
    stream_pod.work.publish([json.dumps(body).encode()], headers)
    stream_pod.work.publish(
        [json.dumps(body).encode()],
        {**headers, "Nats-Msg-Id": "kept", "x-deadline": "2999-01-01T00:00:00+00:00"},
    )
    stream_pod.serve(deadline_header="x-deadline", deadline_field="")

    assert set(stream_pod.work.done(["kept"])) == {"kept"}
    wait_until(lambda: len(stream_pod.work.dead()) == 1, what="the late one is dead")


@pytest.mark.produces(Reason.STREAM_UNREACHABLE)
def test_a_broker_that_goes_and_comes_back_costs_nothing(slow_pod: StreamPod) -> None:
    ids = [f"job-{number}" for number in range(200)]
    slow_pod.work.publish([a_message(1, name) for name in ids])
    slow_pod.serve()
    wait_until(lambda: slow_pod.work.kept() > 20, what="the work has begun")

    slow_pod.nats.kill()
    report = slow_pod.pod.wait_for(
        "the broker is missed",
        lambda said: said.stream is not None and said.stream.problem == Reason.STREAM_UNREACHABLE,
    )
    assert report.stream is not None
    assert slow_pod.nats.url in report.stream.message
    slow_pod.pod.takes_requests()
    assert slow_pod.counted("consuming") == 0
    slow_pod.nats.start()

    assert set(slow_pod.work.done(ids)) == set(ids)
    slow_pod.work.settled()
    assert slow_pod.work.kept() == 200
    slow_pod.pod.wait_for(
        "the stream is well", lambda said: said.stream is not None and said.stream.problem is None
    )


@pytest.mark.produces(Reason.STREAM_REFUSED)
def test_a_stream_or_a_place_for_the_dead_that_is_not_there_is_said_and_used_once_it_is(
    stream_pod: StreamPod,
) -> None:
    stream_pod.work.publish([a_message(1, "one")])
    stream_pod.serve(stream="ELSEWHERE", consumer="other")
    refused = stream_pod.pod.wait_for(
        "the refusal is said",
        lambda said: said.stream is not None and said.stream.problem == Reason.STREAM_REFUSED,
    )
    assert refused.stream is not None
    assert "there is no stream ELSEWHERE; make it: nats stream add ELSEWHERE" in refused.stream.message

    nowhere = f"nowhere.{stream_pod.pod.model}"
    stream_pod.serve(dead_letters=nowhere)
    stream_pod.pod.wait_for(
        "the missing dead letters are said",
        lambda said: (
            said.stream is not None and f"no stream takes the subject {nowhere}" in said.stream.message
        ),
    )
    assert stream_pod.work.results() == {}
    stream_pod.nats.make_stream("NOWHERE", nowhere)
    stream_pod.work.done(["one"])


def test_a_consumer_that_would_drop_messages_and_a_bucket_of_another_ttl_are_refused(
    stream_pod: StreamPod,
) -> None:
    async def make(stream: JetStreamContext) -> None:
        await stream.add_consumer(
            stream_pod.work.stream, ConsumerConfig(durable_name="dropper", max_deliver=2)
        )

    stream_pod.nats.ask(make)
    stream_pod.work.publish([a_message(1, "one")])
    stream_pod.serve(consumer="dropper")
    stream_pod.pod.wait_for(
        "the consumer is refused",
        lambda said: (
            said.stream is not None and "gives a message up after 2 deliveries" in said.stream.message
        ),
    )
    stream_pod.serve()
    stream_pod.work.done(["one"])
    stream_pod.serve(ttl_s=60.0)
    stream_pod.pod.wait_for(
        "the bucket is refused",
        lambda said: (
            said.stream is not None
            and f"bucket {stream_pod.work.bucket} keeps results for 3600 s, and the spec says 60 s"
            in said.stream.message
        ),
    )


def test_a_model_that_is_away_is_waited_for_and_no_message_pays_for_it(slow_pod: StreamPod) -> None:
    ids = [f"job-{number}" for number in range(150)]
    slow_pod.work.publish([a_message(1, name) for name in ids])
    slow_pod.serve()
    wait_until(lambda: slow_pod.work.kept() > 20, what="the work has begun")

    slow_pod.pod.triton.kill()
    wait_until(lambda: slow_pod.pod.probe("/readyz") == 503, what="the pod is not ready")
    # A fetch may have begun while the model still answered.
    wait_until(lambda: slow_pod.counted("consuming") == 0, what="it pulls nothing any more")
    wait_until(lambda: slow_pod.counted("in_flight") == 0, what="what was held is given back")
    messages = slow_pod.counted("messages_total")
    time.sleep(LONGEST_PAUSE_S + 1)  # between two looks
    assert slow_pod.counted("messages_total") == messages  # nothing is pulled for nobody
    slow_pod.pod.triton.start()

    assert set(slow_pod.work.done(ids)) == set(ids)
    slow_pod.work.settled()
    assert slow_pod.work.dead() == []
    assert slow_pod.work.kept() == 150


def test_a_worker_that_is_told_to_stop_gives_back_what_it_holds_and_the_next_one_goes_on(
    any_slow_pod: StreamPod,
) -> None:
    ids = [f"job-{number}" for number in range(200)]
    any_slow_pod.work.publish([a_message(1, name) for name in ids])
    any_slow_pod.serve()
    wait_until(lambda: any_slow_pod.work.kept() > 20, what="the work has begun")

    require_scenario(any_slow_pod.work.kept() < 150, "much work is left when the worker is told to stop")
    any_slow_pod.yielded()
    taken = any_slow_pod.work.kept()
    assert taken < 200
    # Nothing is left in its hands that the next one would have to wait for.
    wait_until(lambda: any_slow_pod.work.free() == 200 - taken, what="what it held is given back")
    any_slow_pod.start_agent()
    assert set(any_slow_pod.work.done(ids)) == set(ids)
    any_slow_pod.work.settled()
    assert any_slow_pod.work.kept() == 200


def test_a_message_that_takes_long_is_given_back_when_the_worker_must_go(slow_pod: StreamPod) -> None:
    slow_pod.work.publish([a_message(4_000, "long")])  # a minute of the model's
    slow_pod.serve()
    wait_until(lambda: slow_pod.counted("in_flight") == 1, what="it is being asked")

    slow_pod.yielded()
    assert slow_pod.work.results() == {}
    wait_until(lambda: slow_pod.work.free() == 1, what="it is given back")
    slow_pod.pod.triton.kill()  # which would go on with it for a minute


def _ask_for(user: int) -> bytes:
    tensor = {"name": "user_id", "datatype": "INT64", "shape": [1, 1], "data": [user]}
    return json.dumps({"id": f"u-{user}", "inputs": [tensor]}).encode()


@pytest.mark.no_rerun("a lost or doubled message")
def test_messages_get_features_and_none_is_lost_while_there_are_none(stream_pod: StreamPod) -> None:
    with feature_answers() as features:
        stream_pod.serve(features=features.order)
        stream_pod.work.publish([_ask_for(user) for user in range(20)])
        stream_pod.work.done([f"u-{user}" for user in range(20)])

        features.status = 503
        stream_pod.work.publish([_ask_for(user) for user in range(20, 60)])
        stream_pod.pod.wait_for(
            "the features are missing",
            lambda said: said.stream is not None and said.stream.problem == Reason.FEATURES_UNAVAILABLE,
        )
        asked = features.requests
        features.status = 200
        results = stream_pod.work.done([f"u-{user}" for user in range(60)])
        stream_pod.work.settled()

        # One message at a time tried whether they are there again.
        assert asked <= 20 + 16 + 10
        assert {name: score(result) for name, result in results.items()} == {
            f"u-{user}": user * 2 + 1000.0 for user in range(60)
        }
        assert stream_pod.work.kept() == 60
        assert stream_pod.work.dead() == []
        assert stream_pod.pod.report().features_revision == "r1"


def test_a_message_without_the_keys_of_its_features_is_a_dead_letter(stream_pod: StreamPod) -> None:
    with feature_answers() as features:
        stream_pod.serve(features=features.order)
        stream_pod.work.publish([a_message(1), _ask_for(3)])
        assert score(stream_pod.work.done(["u-3"])["u-3"]) == 1006.0
        stream_pod.work.settled()
        ((_, headers),) = stream_pod.work.dead()
        assert "Malformed" in headers.values()
