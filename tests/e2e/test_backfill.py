"""A backfill in the cluster: its processes are killed in the middle, each row is there once, as the pods that serve answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.scenario import require_scenario
from builders.waiting import wait_until
from fixtures.claim_reader import ClaimReader
from fixtures.installed import Space
from tidegate_localcluster.demo.scoring import GatewayClient

SHARD: Final = "tidegate_dataplane.batch"
ROWS, FILES, SHARDS, ROWS_PER_FILE, USERS = 200_000, 4, 4, 125, 200
FEATURES: Final = ("age", "age_bucket", "history", "user_bucket")
COUNT: Final = "import glob; print(len(glob.glob('/mnt/pvc/training/out/*/part-*.parquet')))"
READ: Final = f"""
import glob, json
import pyarrow.parquet as pq
paths = sorted(glob.glob('/mnt/pvc/training/out/*/part-*.parquet'))
ends = [json.load(open(path)) for path in glob.glob('/mnt/pvc/training/out/*/_SUCCESS')]
ids, answers, hashes = [], {{}}, set()
for path in paths:
    table = pq.read_table(path)
    hashes.add(table.schema.metadata[b'tidegate.planHash'].decode())
    ids += table.column('id').to_pylist()
    users = table.column('user_id').to_pylist()
    columns = [table.column(name).to_pylist() for name in {FEATURES}]
    for user, *features in zip(users, *columns):
        answers.setdefault(user, []).append(features) if features not in answers.get(user, []) else None
print(json.dumps({{'files': len(paths), 'rows': len(ids), 'in_order': ids == list(range(len(ids))), 'ends': ends,
    'hashes': sorted(hashes), 'answers': answers}}))
"""


@pytest.fixture
def backfill(space: Space) -> Iterator[Space]:
    """The space, without the FeatureCompute afterwards: its Job would wait to make pods, which a namespace that ends refuses."""
    yield space
    space.kubectl.run("delete", "featurecomputes", "--all", "-n", space.namespace)


@pytest.mark.no_rerun("a lost or doubled row")
def test_every_row_has_the_features_that_pods_answer_although_shards_are_killed(backfill: Space) -> None:
    space = backfill
    _write_files(space)
    reader = ClaimReader(space, "training")
    space.apply("FeatureCompute", "users", _spec(space))

    wait_until(lambda: _kill_shards(space, reader), "shards were killed", evidence=lambda: _status(space))
    wait_until(
        lambda: space.condition("featurecompute", "users", "Backfilled").get("status") == "True",
        "the run is complete",
        timeout_s=300,
        evidence=lambda: _status(space),
    )

    results = reader.run_python(READ)
    assert (results["rows"], results["in_order"], results["files"]) == (ROWS, True, ROWS // ROWS_PER_FILE)
    assert [(end["rows"], end["refused"], end["shards"]) for end in results["ends"]] == [(ROWS, 0, SHARDS)]
    status = _status(space)
    assert (status["backfill"]["done"], status["backfill"]["failed"]) == (SHARDS, 0)
    assert results["hashes"] == [status["planHash"]] == [status["backfill"]["planHash"]]
    space.ready("featurecompute/users")
    assert {int(user): rows for user, rows in results["answers"].items()} == _ask_pods(space)
    wait_until(lambda: not _pods(space), "no pod is left at work", evidence=lambda: _pods(space))


def _kill_shards(space: Space, reader: ClaimReader) -> bool:
    """Kill all shards in the middle of their work; they are stopped while the files that they have written are counted."""
    shards = space.installed.processes(SHARD, [pod["metadata"]["uid"] for pod in _pods(space)])
    if not shards:
        return False
    with space.installed.paused(shards):
        files = reader.run_python(COUNT)
        require_scenario(files < ROWS // ROWS_PER_FILE, "shards are killed before their work is over")
        if files > 0:
            space.installed.end(shards)
    return files > 0


def _write_files(space: Space) -> None:
    tables, labels = space.folder("tables"), space.folder("labels")
    tables.mkdir(parents=True, exist_ok=True)
    labels.mkdir(parents=True, exist_ok=True)
    users = {
        "user_id": list(range(USERS)),
        "age": [18 + user % 60 for user in range(USERS)],
        "history": [[user, user + 1] for user in range(USERS)],
    }
    pq.write_table(pa.table(users), tables / "users.parquet")
    for number in range(FILES):
        ids = np.arange(ROWS * number // FILES, ROWS * (number + 1) // FILES)
        # Some keys are in no table.
        rows = pa.table({"id": ids, "user_id": ids * 7 % (USERS + 5)})
        pq.write_table(rows, labels / f"part-{number}.parquet", row_group_size=3_000)


def _spec(space: Space) -> Mapping[str, Any]:
    return {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": f"{space.uri('tables')}/users.parquet"}}
        ],
        "features": [
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-1"}},
            {"name": "age_bucket", "bucketize": {"field": "profiles.age", "boundaries": [30, 50]}},
            {"name": "history", "lookup": {"field": "profiles.history", "type": "int64", "length": 3}},
            {"name": "user_bucket", "hash": {"field": "user.user_id", "buckets": 16}},
        ],
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "backfill": {
            "input": {"uri": space.uri("labels")},
            "output": {"uri": "pvc://training/out", "keep": ["id", "user_id"], "rowsPerFile": ROWS_PER_FILE},
            "shards": SHARDS,
        },
    }


def _ask_pods(space: Space) -> dict[int, list[list[Any]]]:
    """What the pods answer for each key, as rows of results have it."""
    users = np.arange(USERS + 5, dtype=np.int64)
    gateway = GatewayClient(space.installed.endpoints.gateway, space.namespace)
    try:
        answered = gateway.fetch_features("users", {"user_id": users[:, None]})
    finally:
        gateway.close()
    columns = [answered[name].tolist() for name in FEATURES]
    return {
        int(user): [[values[row][0] if len(values[row]) == 1 else values[row] for values in columns]]
        for row, user in enumerate(users)
    }


def _pods(space: Space) -> Sequence[Mapping[str, Any]]:
    """Pods of the backfill that have not ended."""
    pods = space.installed.pods(space.namespace, "tidegate.io/backfill=users")
    return [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def _status(space: Space) -> Any:
    return space.status("featurecompute", "users")
