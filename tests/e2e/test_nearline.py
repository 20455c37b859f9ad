"""Near-line work in the cluster: pods are scaled away in the middle of a stream, and no message is lost or doubled."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.nearline import nearline_spec
from builders.probe_model import publish, publish_slow
from builders.waiting import wait_until
from fixtures.installed import Space
from fixtures.installed_stream import a_broker
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, a_message, score
from tidegate.api.reasons import Reason
from tidegate.resources.names import FEATURE_COMPUTE_LABEL

MESSAGES = 500
FIRST = 50
"""Messages that come before Triton is stopped."""
ROUNDS = 6_000
"""A message takes a few milliseconds. Most of the work is still to be done when the pod ends, since it comes while Triton is stopped."""
TRITON = "tritonserver|triton_python_backend_stub"
OURS = f"tidegate_dataplane.agent|{TRITON}"


@pytest.mark.no_rerun("a lost or doubled message")
def test_pods_scaled_away_in_the_middle_yield_and_the_next_one_finishes(space: Space) -> None:
    publish_slow(space.folder("probe"), 1, rounds=ROUNDS)
    # No two alike, exact in float32 also with 1000 added, and of one unit each: the model takes as long for all.
    rows = {f"job-{number}": 1 + number / 1024 for number in range(MESSAGES)}
    with a_broker(space) as (url, work):
        space.apply("Inference", "probe", _spec(space, url))
        wait_until(
            lambda: space.condition("inference", "probe", "Consuming").get("status") == "True",
            "the stream is consumed",
            evidence=lambda: space.status("inference", "probe"),
        )
        (pod,) = space.pods("probe")
        processes = space.installed.processes(OURS, [pod["metadata"]["uid"]])
        assert len(processes) >= 3  # the agent, Triton, and the model's own
        tritons = space.installed.processes(TRITON, [pod["metadata"]["uid"]])
        messages = [a_message(x, name) for name, x in rows.items()]
        work.publish(messages[:FIRST])
        wait_until(
            lambda: work.kept() >= 5,
            "the work has begun",
            evidence=lambda: space.status("inference", "probe"),
        )

        # On a busy machine the rest of the work could be done before the pod hears that it is to end.
        with space.installed.paused(tritons):
            work.publish(messages[FIRST:])
            space.patch("inference", "probe", {"replicas": 0})
            wait_until(lambda: not space.pods("probe"), "the pod ends", evidence=lambda: space.pods("probe"))
        # Within five seconds, which bench/three_tier_day.py measures.
        wait_until(lambda: not space.installed.living(processes), "nothing of the pod runs")
        assert not space.installed.processes(OURS, [pod["metadata"]["uid"]])
        # Nobody works: the stream waits, and what the pod held is there for the next one at once.
        wait_until(lambda: work.free() == MESSAGES - work.kept(), "what the pod held is given back")
        taken = work.kept()
        assert taken < MESSAGES
        wait_until(
            lambda: space.condition("inference", "probe", "Consuming").get("reason") == "ScaledToZero",
            "Consuming says that it is scaled to zero",
            evidence=lambda: space.status("inference", "probe"),
        )
        assert space.condition("inference", "probe", "Consuming")["status"] == "False"
        assert work.kept() == taken

        space.patch("inference", "probe", {"replicas": 1})
        results = work.done(tuple(rows), timeout_s=200)
        work.settled()

        assert {name: score(result) for name, result in results.items()} == {
            name: x + 1000 for name, x in rows.items()
        }
        assert work.kept() == MESSAGES
        assert work.dead() == []
        # The second pod's Triton ran what the first had left, by its own counter.
        assert MESSAGES - taken <= space.counted_at_rest("probe") <= MESSAGES - taken + 32


@pytest.mark.produces(Reason.FEATURES_UNAVAILABLE)
@pytest.mark.no_rerun("a lost or doubled message")
def test_messages_get_features_and_wait_in_the_stream_while_there_are_none(space: Space) -> None:
    publish(space.folder("probe"), 1)
    _publish_users(space)
    users = {f"job-{user}": user for user in range(40)}
    messages = [_ask_for(user, name) for name, user in users.items()]
    with a_broker(space) as (url, work):
        spec = _spec(space, url)
        spec["nearline"]["features"] = "users"
        space.apply("Inference", "probe", spec)
        _wait_for_consuming(space, Reason.TARGET_NOT_FOUND)
        work.publish(messages[:10])

        space.apply("FeatureCompute", "users", _make_features(space))
        space.ready("featurecompute/users")
        _wait_for_consuming(space, Reason.CONSUMING)
        work.done([f"job-{user}" for user in range(10)], timeout_s=200)

        (pod,) = space.installed.pods(space.namespace, f"{FEATURE_COMPUTE_LABEL}=users")
        with space.installed.paused(space.installed.processes(TRITON, [pod["metadata"]["uid"]])):
            work.publish(messages[10:])
            _wait_for_consuming(space, Reason.FEATURES_UNAVAILABLE)
        results = work.done(tuple(users), timeout_s=200)
        work.settled()

        # The last user is in no table.
        expected = {name: 18.5 + user if user < USERS else -1.0 for name, user in users.items()}
        assert {name: score(result) for name, result in results.items()} == {
            name: x + 1000 for name, x in expected.items()
        }
        assert work.kept() == len(users)
        assert work.dead() == []


USERS = 39


def _publish_users(space: Space) -> None:
    folder = space.folder("tables")
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "user_id": list(range(USERS)),
            "weight": pa.array([18.5 + user for user in range(USERS)], pa.float32()),
        }
    )
    pq.write_table(table, folder / "users.parquet")


def _make_features(space: Space) -> dict[str, Any]:
    return {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": f"{space.uri('tables')}/users.parquet"}}
        ],
        "features": [
            {"name": "x", "lookup": {"field": "profiles.weight", "type": "float32", "default": "-1"}},
            {"name": "unused", "hash": {"field": "user.user_id", "buckets": 16}},
        ],
        "resources": {"cpu": "50m", "memory": "512Mi"},
    }


def _ask_for(user: int, name: str) -> bytes:
    tensor = {"name": "user_id", "datatype": "INT64", "shape": [1, 1], "data": [user]}
    return json.dumps({"id": name, "inputs": [tensor]}).encode()


def _wait_for_consuming(space: Space, reason: Reason) -> None:
    wait_until(
        lambda: space.condition("inference", "probe", "Consuming").get("reason") == reason,
        f"Consuming has the reason {reason}",
        evidence=lambda: space.status("inference", "probe"),
    )


def _spec(space: Space, url: str) -> dict[str, Any]:
    return {
        "model": {"name": "probe", "uri": space.uri("probe"), "version": "1"},
        "tier": "nearline",
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "nearline": nearline_spec(
            nats={"url": url, "stream": STREAM, "subject": SUBJECT},
            bucket={"bucket": BUCKET},
            deadLetters={"subject": DEAD},
        ),
    }
