"""A table scored in the cluster: pods are killed and scaled away in the middle, and every row is there once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.probe_model import publish_slow
from builders.scenario import require_scenario
from builders.waiting import wait_until
from fixtures.claim_reader import ClaimReader
from fixtures.installed import Space

TRITON: Final = "tritonserver|triton_python_backend_stub"
ROWS, FILES, SHARDS, ROWS_PER_FILE = 50_000, 5, 4, 2_500
READ: Final = """
import glob, json
import pyarrow.parquet as pq
parts = sorted(glob.glob('/mnt/pvc/scores/out/*/part-*.parquet'))
ends = [json.load(open(path)) for path in glob.glob('/mnt/pvc/scores/out/*/_SUCCESS')]
ids, wrong = [], 0
for path in parts:
    table = pq.read_table(path)
    ids += table.column('user_id').to_pylist()
    columns = (table.column(name).to_pylist() for name in ('user_id', 'x', 'score'))
    wrong += sum((x, score) != (1 + id % 1024 / 1024, x + 1000) for id, x, score in zip(*columns))
print(json.dumps({'files': len(parts), 'rows': len(ids), 'unique': len(set(ids)), 'wrong': wrong, 'ends': ends,
    'in_order': ids == sorted(ids)}))
"""


@pytest.fixture
def batch(space: Space) -> Iterator[Space]:
    """The space, without the batch afterwards.

    A Job whose pod ends waits to make the next one, which it may not in a namespace that ends: neither would ever be gone.
    """
    yield space
    space.kubectl.run("delete", "inferences", "--all", "-n", space.namespace)


@pytest.mark.no_rerun("a lost or doubled row")
def test_every_row_is_scored_once_although_pods_are_killed_and_scaled_away(batch: Space) -> None:
    space = batch
    publish_slow(space.folder("probe"), 1, rounds=40_000)
    _write_table(space)
    reader = ClaimReader(space, "scores")
    space.apply("Inference", "probe", _spec(space))

    wait_until(
        lambda: _is_under_way(space, reader),
        "two are at work",
        evidence=lambda: (_pods(space), _status(space)),
    )
    workers = [pod["metadata"] for pod in _pods(space)]
    tritons = space.installed.processes(TRITON, [worker["uid"] for worker in workers])
    # On a busy machine the rest of the work could be done before the pods hear that they are to end.
    with space.installed.paused(tritons):
        killed = workers[0]["name"]
        space.kubectl.run(
            "delete", "pod", killed, "-n", space.namespace, "--grace-period=0", "--force", "--wait=false"
        )
        space.patch("inference", "probe", {"replicas": 0})
        wait_until(lambda: not _pods(space), "every pod ends", evidence=lambda: _pods(space))
    wait_until(
        lambda: space.condition("inference", "probe", "Complete").get("reason") == "ScaledToZero",
        "the pause is said",
        evidence=lambda: _status(space),
    )
    paused = reader.run_python(READ)
    require_scenario(1 <= paused["files"] < ROWS // ROWS_PER_FILE, "pods end in the middle of the work")
    assert paused["rows"] == paused["unique"]

    space.patch("inference", "probe", {"replicas": 2})
    wait_until(
        lambda: space.condition("inference", "probe", "Complete").get("status") == "True",
        "the run is complete",
        timeout_s=300,
        evidence=lambda: _status(space),
    )

    read = reader.run_python(READ)
    assert (read["rows"], read["unique"], read["wrong"], read["in_order"]) == (ROWS, ROWS, 0, True)
    assert read["files"] == ROWS // ROWS_PER_FILE
    assert [(end["rows"], end["refused"], end["shards"]) for end in read["ends"]] == [(ROWS, 0, SHARDS)]
    counted = _status(space)["batch"]
    assert (counted["shards"], counted["done"], counted["failed"]) == (SHARDS, SHARDS, 0)
    wait_until(lambda: not _pods(space), "no pod is left at work", evidence=lambda: _pods(space))


def _is_under_way(space: Space, reader: ClaimReader) -> bool:
    """Return whether two pods work and have written something; not once all is written."""
    files = reader.run_python(READ)["files"]
    require_scenario(files < ROWS // ROWS_PER_FILE, "work is left when two pods are at it")
    return files >= 1 and len(_pods(space)) == 2


def _write_table(space: Space) -> None:
    folder = space.folder("table")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        ids = range(ROWS * number // FILES, ROWS * (number + 1) // FILES)
        # Neighbours differ, exact in float32 also with 1000 added, and of one unit each: the model takes as long for all.
        x = pa.array([1 + each % 1024 / 1024 for each in ids], pa.float32())
        table = pa.table({"user_id": pa.array(ids, pa.int64()), "x": x})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=3_000)


def _spec(space: Space) -> Mapping[str, Any]:
    return {
        "model": {"name": "probe", "uri": space.uri("probe"), "version": "1"},
        "tier": "offline",
        "replicas": 2,
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "batching": {"maxBatchSize": 64},
        "batch": {
            "input": {"uri": space.uri("table")},
            "output": {"uri": "pvc://scores/out", "keep": ["user_id", "x"], "rowsPerFile": ROWS_PER_FILE},
            "shards": SHARDS,
        },
    }


def _pods(space: Space) -> Sequence[Mapping[str, Any]]:
    """Pods that have not ended."""
    return [pod for pod in space.pods("probe") if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def _status(space: Space) -> Any:
    return space.status("inference", "probe")
