"""A table scored on a real Triton: every row once, whatever is killed in the middle, and nothing lost in silence."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from builders.events import (
    HOUR,
    MINUTE,
    Click,
    a_click_plan,
    clicks,
    of_clicks,
    of_feature,
    recorded,
    to_columns,
)
from builders.onnx_models import a_model, a_tensor, write_artefact
from builders.probe_model import publish, publish_slow
from builders.waiting import wait_until
from fixtures.agent import ModelPod
from fixtures.batch import RUN, BatchPod, write_table, write_users
from tidegate_dataplane.contract import AS_OF, Clip, EventSequence, FeaturePlan, TimeSince
from tidegate_dataplane.features.engine import FeatureEngine

pytestmark = [pytest.mark.triton]

_numbers = itertools.count(1)


@pytest.fixture
def batch_pod(shared_pod: ModelPod, tmp_path: Path) -> BatchPod:
    """A model, a table and a folder of results of the test's own; publish the one and write the other first."""
    shared_pod.model = f"ctr-{next(_numbers)}"
    pod = BatchPod(shared_pod, tmp_path)
    pod.claim.mkdir(parents=True)
    return pod


def _gathering() -> list[onnx.NodeProto]:
    """y = the vector whose number the first value of x is, without any check of its own."""
    return [
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.INT64),
        helper.make_node("Gather", ["numbers", "zero"], ["first"], axis=1),
        helper.make_node("Gather", ["vectors", "first"], ["y"], axis=0),
    ]


def _expected(rows: int) -> list[dict[str, float]]:
    return [{"user_id": row, "score": row / 2 + 1000.0} for row in range(rows)]


@pytest.mark.no_rerun("a lost or doubled row")
def test_every_row_of_several_files_is_scored_once_and_in_order(batch_pod: BatchPod) -> None:
    publish(batch_pod.pod.artefact, 1)
    write_users(batch_pod.table, 5_003, files=3)
    (batch_pod.table / "_SUCCESS").write_text("")
    batch_pod.serve(shards=3)

    assert [batch_pod.score(index) for index in (2, 0)] == [0, 0], batch_pod.log.read_text()
    assert batch_pod.success() is None
    assert batch_pod.score(1) == 0

    assert batch_pod.rows() == _expected(5_003)
    batch_pod.asked_to(5_003)
    assert batch_pod.success() == {"run": RUN, "shards": 3, "rows": 5_003, "refused": 0, "files": 12}
    assert batch_pod.refused() == []


def test_a_pod_that_is_killed_is_gone_on_with_and_what_it_wrote_is_not_asked_again(
    batch_pod: BatchPod,
) -> None:
    publish_slow(batch_pod.pod.artefact, 1, rounds=30_000)
    ids = pa.array(range(4_000), type=pa.int64())
    write_table(batch_pod.table / "a.parquet", {"user_id": ids, "x": pa.array([1.0] * 4_000, pa.float32())})
    batch_pod.serve(shards=1)

    batch_pod.killed(0, files=2)
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in batch_pod.files(0)}
    asked = batch_pod.asked_at_rest()
    assert 2 <= len(before) < 8
    assert batch_pod.success() is None
    assert batch_pod.score(0) == 0

    after = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in batch_pod.files(0)}
    assert {name: after[name] for name in before} == before
    assert len(after) == 8
    # What was in files is not asked again: the rest, and what was in flight when it was killed.
    assert batch_pod.asked_at_rest() - asked <= 4_000 - 500 * len(before) + 4 * 64
    assert [row["user_id"] for row in batch_pod.rows()] == list(range(4_000))
    assert batch_pod.events("shard_begins")[-1]["found"] == 500 * len(before)


def test_what_the_model_itself_refuses_is_narrowed_down_to_its_rows(batch_pod: BatchPod) -> None:
    model = a_model(
        [a_tensor("x", ["n", 2])],
        [a_tensor("y", ["n", 3])],
        nodes=_gathering(),
        weights=[
            numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "vectors"),
            numpy_helper.from_array(np.array(0, dtype=np.int64), "zero"),
        ],
    )
    write_artefact(batch_pod.pod.artefact, 1, model)
    pairs = [[row % 4, 0] for row in range(300)]
    pairs[123] = [9, 0]  # no such vector: the whole request fails
    columns = {"user_id": pa.array(range(300), pa.int64()), "ids": pa.array(pairs, pa.list_(pa.float32()))}
    write_table(batch_pod.table / "a.parquet", columns)
    batch_pod.serve(shards=1, max_refused_rows=1, columns=[{"input": "x", "column": "ids"}])

    assert batch_pod.score(0) == 0, batch_pod.last_words
    (refused,) = batch_pod.refused()
    assert (refused["user_id"], refused["tidegate_file"], refused["tidegate_row"]) == (123, "a.parquet", 123)
    assert "indices element out of data bounds, idx=9" in refused["tidegate_reason"]
    assert batch_pod.success() == {"run": RUN, "shards": 1, "rows": 299, "refused": 1, "files": 1}
    scored = batch_pod.rows()
    assert len(scored) == 299
    assert scored[2] == {"user_id": 2, "y": [6.0, 7.0, 8.0]}
    assert scored[123]["user_id"] == 124


def test_a_server_that_ends_in_the_middle_costs_no_row(batch_pod: BatchPod) -> None:
    publish_slow(batch_pod.pod.artefact, 1, rounds=20_000)
    ids = pa.array(range(3_000), type=pa.int64())
    write_table(batch_pod.table / "a.parquet", {"user_id": ids, "x": pa.array([1.0] * 3_000, pa.float32())})
    batch_pod.serve(shards=1)
    process = batch_pod.start(0)
    wait_until(lambda: len(batch_pod.files(0)) >= 1, what="the work has begun")
    batch_pod.pod.triton.kill()
    batch_pod.pod.triton.start()
    wait_until(lambda: process.poll() is not None, what="the shard ends")
    assert process.returncode == 0, batch_pod.last_words
    assert [row["user_id"] for row in batch_pod.rows()] == list(range(3_000))
    assert batch_pod.refused() == []


@pytest.mark.no_rerun("a lost or doubled row")
def test_rows_get_the_features_of_their_times_although_a_pod_is_killed(batch_pod: BatchPod) -> None:
    publish_slow(batch_pod.pod.artefact, 1, rounds=30_000)
    plan = a_click_plan(
        clicks(),
        [
            TimeSince(name="idle", entity="user", stream="clicks"),
            # The model takes as long as x is large.
            Clip(name="x", field=of_feature("idle"), minimum=0, maximum=1),
            EventSequence(name="items", field=of_clicks("item_id"), last=5, pad="-1"),
        ],
    )
    now = 1_700_000_000_000
    events = [
        Click(user, now - number * MINUTE, 100 * user + number, number % 2, 0.5, "home")
        for number in range(120)
        for user in range(50)
    ]
    archive = batch_pod.pod.models / f"events-{batch_pod.pod.model}"
    pages = [event.page for event in events]
    write_table(archive / "a.parquet", {**to_columns(events), "page": pages})
    numbers = np.arange(4_000, dtype=np.int64)
    users, times = numbers % 60, now - numbers * HOUR // 2_000
    columns = {"user_id": users, "position": numbers, "shown_at": times}
    write_table(batch_pod.table / "a.parquet", columns)
    batch_pod.serve(
        shards=1,
        keep=["position", "idle", "items"],
        features={
            "compute": "live",
            "plan": plan.model_dump(mode="json", by_alias=True),
            "event_time": "shown_at",
            "sources": {"clicks": f"file://{archive}"},
        },
    )

    batch_pod.killed(0, files=2)
    assert batch_pod.success() is None
    assert batch_pod.score(0) == 0, batch_pod.last_words

    rows = batch_pod.rows()
    assert [row["position"] for row in rows] == numbers.tolist()
    online = _answer_online(plan, events, users, times)
    assert np.array([row["idle"] for row in rows], np.float32).tobytes() == online["idle"].tobytes()
    assert np.array([row["items"] for row in rows], np.int64).tobytes() == online["items"].tobytes()
    scores = np.array([row["score"] for row in rows], np.float32)
    assert scores.tolist() == (online["x"][:, 0] + np.float32(1000)).tolist()
    assert len(np.unique(online["idle"])) > 100


def _answer_online(
    plan: FeaturePlan, events: list[Click], users: NDArray[np.int64], times: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    engine = FeatureEngine(plan, {}, {"clicks": recorded(events, plan.streams[0])})
    return engine.compute_features({"user_id": users, "position": users, AS_OF: times})
