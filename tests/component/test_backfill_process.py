"""The process of a backfill's shard, killed in the middle: each row is written once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from builders.desired import a_desired_state
from builders.feature_rows import ROWS, FeatureWorld, a_plan
from builders.waiting import wait_until

FILES, DONE = 10, 4


def _start(folder: Path, backfill: FeatureWorld) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "JOB_COMPLETION_INDEX": "0",
        "TIDEGATE_BATCH_TERMINATION_LOG": str(folder / "termination-log"),
        "TIDEGATE_AGENT_ADDRESS": "127.0.0.1",
        "TIDEGATE_AGENT_BATCH_HTTP_PORT": "0",
        "TIDEGATE_AGENT_CONFIG_DIR": str(folder),
        "TIDEGATE_AGENT_FILE_ROOT": str(backfill.models),
        "TIDEGATE_AGENT_BATCH_PVC_ROOT": str(folder / "claims"),
    }
    with (folder / "log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tidegate_dataplane.batch"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def test_a_killed_shard_goes_on_after_its_last_file_without_a_server(tmp_path: Path) -> None:
    backfill = FeatureWorld(tmp_path)
    order = {
        "run": "v1-abc",
        "source": f"file://{tmp_path}/models/table",
        "sink": "pvc://results/scores",
        "shards": 1,
        "rows_per_file": ROWS // FILES,
        **backfill.order(),
    }
    (tmp_path / "claims" / "results").mkdir(parents=True)
    (tmp_path / "desired.json").write_text(a_desired_state(format="Features", batch=order).to_json())

    def list_files() -> list[Path]:
        return sorted(backfill.world.results.glob("part-*.parquet"))

    # The process cannot write this file, so that it waits in the middle.
    obstacle = backfill.world.results / f"part-00000-{DONE:05}.parquet"
    obstacle.mkdir(parents=True)
    process = _start(tmp_path, backfill)
    wait_until(
        lambda: b"shard_retried" in (tmp_path / "log").read_bytes() or process.poll() is not None,
        what="the process waits",
    )
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    obstacle.rmdir()
    before = {path: path.stat().st_mtime_ns for path in list_files()}
    assert len(before) == DONE

    process = _start(tmp_path, backfill)
    wait_until(lambda: process.poll() is not None, what="the shard ends")
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]

    assert [row["id"] for row in backfill.world.rows()] == list(range(ROWS))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {pq.read_schema(path).metadata[b"tidegate.planHash"].decode() for path in list_files()} == {
        a_plan().hash
    }
    assert (backfill.world.results / "_SUCCESS").exists()
