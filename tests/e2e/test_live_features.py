"""Features over events in the cluster: clicks change the next answer, whoever is killed, and problems are named."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from nats.js import JetStreamContext
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builders.waiting import wait_until
from fixtures.installed import PAUSE_S, Space
from fixtures.installed_stream import a_broker
from fixtures.nats import Nats
from tidegate.api.reasons import Reason
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INGESTER_LABEL
from tidegate_localcluster.demo.scoring import GatewayClient

STREAM, SUBJECT = "EVENTS", "events.clicks"
USER = 17


def _spec(url: str, **changes: Any) -> Mapping[str, Any]:
    clicks = {"field": "clicks.click", "over": "1h"}
    return {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {
                "name": "clicks",
                "entity": "user",
                "stream": {
                    "nats": {"url": url, "stream": STREAM, "subject": SUBJECT},
                    "eventTime": "ts",
                    "fields": [{"name": "item_id", "type": "int64"}, {"name": "click", "type": "int64"}],
                    **changes,
                },
            }
        ],
        "features": [
            {"name": "items", "sequence": {"field": "clicks.item_id", "last": 3}},
            {"name": "shown", "window": {**clicks, "aggregate": "Count"}},
            {"name": "clicked", "window": {**clicks, "aggregate": "Sum"}},
            {
                "name": "ctr",
                "ratio": {
                    "numerator": {**clicks, "aggregate": "Sum"},
                    "denominator": {**clicks, "aggregate": "Count"},
                    "prior": "0.5",
                    "weight": "2",
                },
            },
        ],
        "resources": {"cpu": "50m", "memory": "512Mi"},
    }


def _publish(broker: Nats, events: Sequence[Mapping[str, Any]]) -> None:
    async def put(stream: JetStreamContext) -> None:
        for event in events:
            await stream.publish(SUBJECT, json.dumps(event).encode())

    broker.ask(put)


def _click(item: int, click: int = 1, **changes: Any) -> Mapping[str, Any]:
    return {
        "user_id": USER,
        "ts": int(time.time() * 1000),
        "item_id": item,
        "click": click,
        **changes,
    }


def _fresh(space: Space, reason: Reason, what: str) -> Mapping[str, Any]:
    """Wait until the condition Fresh has this reason; the condition as it was then."""

    def condition() -> Mapping[str, Any]:
        found = space.condition("featurecompute", "live", "Fresh")
        return found if found.get("reason") == reason else {}

    return wait_until(condition, what, evidence=lambda: space.status("featurecompute", "live"))


def _pods(space: Space) -> Sequence[Mapping[str, Any]]:
    return space.installed.pods(space.namespace, f"{FEATURE_COMPUTE_LABEL}=live")


def _counted(space: Space, field: str) -> Sequence[int]:
    """This count of each source; of none while no pod is ready, as where one misses a probe on a busy machine."""
    marks = space.status("featurecompute", "live").get("watermarks", ())
    return [mark.get(field, 0) for mark in marks]


class _Asker:
    """Asks the gateway for one user."""

    def __init__(self, space: Space) -> None:
        self._client = GatewayClient(space.installed.endpoints.gateway, space.namespace)

    def ask(self, user: int = USER) -> Mapping[str, list[Any]]:
        answer: Mapping[str, NDArray[Any]] = self._client.fetch_features(
            "live", {"user_id": np.array([[user]], dtype=np.int64)}
        )
        return {name: values[0].tolist() for name, values in answer.items()}

    def close(self) -> None:
        self._client.close()


@contextmanager
def _asking(space: Space) -> Iterator[tuple[_Asker, list[str]]]:
    """Ask all the time; what failed is in the list."""
    errors: list[str] = []
    done = threading.Event()
    asker = _Asker(space)

    def keep_asking() -> None:
        other = _Asker(space)
        try:
            while not done.wait(PAUSE_S):
                try:
                    other.ask()
                except InferenceServerException as error:
                    errors.append(str(error))
        finally:
            other.close()

    thread = threading.Thread(target=keep_asking, daemon=True)
    thread.start()
    try:
        yield asker, errors
    finally:
        done.set()
        thread.join(20)
        asker.close()


@pytest.mark.produces(Reason.EVENTS_CURRENT)
@pytest.mark.produces(Reason.STREAM_UNREACHABLE)
@pytest.mark.no_rerun("a lost or doubled event")
def test_clicks_are_in_the_next_answers_whoever_is_killed(space: Space) -> None:
    with a_broker(space) as (url, work):
        broker = work.nats
        broker.make_stream(STREAM, SUBJECT)
        _publish(broker, [_click(item, item % 2) for item in range(1, 11)])
        space.apply("FeatureCompute", "live", _spec(url))
        space.ready("featurecompute/live")
        wait_until(
            lambda: space.condition("featurecompute", "live", "Fresh").get("reason") == Reason.EVENTS_CURRENT,
            "Fresh is True",
            evidence=lambda: space.status("featurecompute", "live"),
        )
        with _asking(space) as (asker, errors):
            assert asker.ask() == {
                "items": [10, 9, 8],
                "shown": [10],
                "clicked": [5],
                "ctr": [pytest.approx((5 + 1) / (10 + 2))],
            }
            assert asker.ask(user=18)["ctr"] == [0.5]

            _publish(broker, [_click(11), {"user_id": USER, "ts": "yesterday"}])
            wait_until(lambda: asker.ask()["items"] == [11, 10, 9], "the click is in the answer")

            (pod,) = _pods(space)
            uid = [pod["metadata"]["uid"]]
            reader = space.installed.processes("tidegate_dataplane.ingester --read", uid)
            assert len(reader) == 1
            space.installed.end(reader)
            _publish(broker, [_click(12), _click(13)])
            wait_until(lambda: asker.ask()["items"] == [13, 12, 11], "a new process reads on")
            assert asker.ask()["shown"] == [13]
            wait_until(
                lambda: _counted(space, "refusedEvents") == [1],
                "the refused event is counted",
                evidence=lambda: space.status("featurecompute", "live"),
            )

            space.kubectl.run("delete", "pod", "nats", "-n", space.namespace, "--grace-period=0", "--force")
            wait_until(
                lambda: (
                    space.condition("featurecompute", "live", "Fresh").get("reason")
                    == Reason.STREAM_UNREACHABLE
                ),
                "Fresh says that the broker is away",
                evidence=lambda: space.status("featurecompute", "live"),
            )
            assert "source clicks" in space.condition("featurecompute", "live", "Fresh")["message"]
            assert asker.ask()["items"] == [13, 12, 11]
            assert space.condition("featurecompute", "live")["status"] == "True"
        assert errors == []
        assert [pod["metadata"]["uid"] for pod in _pods(space)] == uid


@pytest.mark.produces(Reason.STREAM_REFUSED)
@pytest.mark.produces(Reason.DEAD_LETTERS_FAILING)
def test_a_stream_and_then_dead_letters_that_do_not_exist_are_named_until_they_do(space: Space) -> None:
    with a_broker(space) as (url, work):
        space.apply("FeatureCompute", "live", _spec(url, deadLetters={"subject": "dead.clicks"}))
        condition = _fresh(space, Reason.STREAM_REFUSED, "Fresh names the missing stream")
        assert "there is no stream EVENTS" in condition["message"]
        assert space.condition("featurecompute", "live")["status"] == "False"

        work.nats.make_stream(STREAM, SUBJECT)
        space.ready("featurecompute/live")
        condition = _fresh(space, Reason.DEAD_LETTERS_FAILING, "Fresh names the missing target")
        assert condition["status"] == "True"
        assert "no stream takes the subject dead.clicks" in condition["message"]

        work.nats.make_stream("DEAD", "dead.clicks")
        _publish(work.nats, [{"user_id": USER, "ts": "yesterday"}])
        wait_until(
            lambda: _counted(space, "deadLetters") == [1],
            "the refused event is a dead letter",
            evidence=lambda: space.status("featurecompute", "live"),
        )


def test_a_redis_that_is_away_is_named_and_its_ingester_waits_and_goes_with_the_store(space: Space) -> None:
    def ingesters() -> Sequence[Mapping[str, Any]]:
        return space.installed.pods(space.namespace, f"{INGESTER_LABEL}=live")

    with a_broker(space) as (url, work):
        work.nats.make_stream(STREAM, SUBJECT)
        _publish(work.nats, [_click(item) for item in range(1, 4)])
        address = f"redis.{space.namespace}:6379"
        store = {"redis": {"address": address, "timeout": "50ms"}}
        space.apply("FeatureCompute", "live", {**_spec(url), "store": store})
        condition = _fresh(space, Reason.STREAM_UNREACHABLE, "Fresh says that the Redis is away")
        assert f"the event store, Redis at {address}" in condition["message"]
        space.ready("featurecompute/live")
        (pod,) = ingesters()
        uid = pod["metadata"]["uid"]
        reader = space.installed.processes("tidegate_dataplane.ingester --read", [uid])
        assert len(reader) == 1
        asker = _Asker(space)
        try:
            assert asker.ask()["shown"] == [0]
            assert asker.ask()["tidegate_not_current"] == [b"clicks"]
            assert space.installed.living(reader) == reader

            plan_hash = space.status("featurecompute", "live")["planHash"]
            space.apply("FeatureCompute", "live", _spec(url))
            wait_until(lambda: asker.ask()["items"] == [3, 2, 1], "the pods store the events themselves")
            wait_until(lambda: not ingesters(), "the ingester is gone")
            assert space.status("featurecompute", "live")["planHash"] == plan_hash
        finally:
            asker.close()
