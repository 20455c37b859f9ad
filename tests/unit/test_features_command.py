"""`tidegate features compute`: what it writes, how it goes on after an interruption, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner, Result

from builders.events import DAY, MINUTE
from builders.feature_compute import feature_compute_body
from builders.features import write_table
from builders.live_features import live_features_spec
from tidegate.api.feature_compute import FeatureCompute
from tidegate.main import app
from tidegate.planning.features.feature_plan import compile_plan
from tidegate_dataplane.contract import AS_OF, FeaturePlan, OfflineFilePhase, OfflineMessage, OfflineOrder
from tidegate_dataplane.features import __main__ as process
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.offline import RowsComputer, make_engine
from tidegate_dataplane.features.offline_run import run_order

NOW = 1_700_000_000_000
EVENTS: Mapping[str, list[Any]] = {
    "user_id": [1, 2, 1, 1, 2, 1],
    "ts": [NOW - 2 * DAY, NOW - MINUTE, NOW - 1, NOW, NOW, NOW + 1],
    "item_id": [5, 6, 7, 8, 9, 10],
    "click": [1, 0, 1, 1, 1, 1],
    "price": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "page": ["a", "b", "c", "d", "e", "f"],
}
TABLE_ONLY = {
    "request": [],
    "sources": [{"name": "profiles", "entity": "user", "table": {"uri": "s3://tables/users.parquet"}}],
    "features": [{"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-1"}}],
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["features", "compute", *map(str, arguments)])


def save(path: Path, *bodies: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(bodies))
    return path


def plan_of(body: Mapping[str, Any]) -> FeaturePlan:
    return compile_plan(FeatureCompute.parse({**body, "status": {}}))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the manifest of live features, their sources and three files of rows."""
    save(tmp_path / "features.yaml", feature_compute_body(**live_features_spec()))
    write_table(tmp_path / "clicks.parquet", **EVENTS)
    write_table(tmp_path / "users.parquet", user_id=[1, 2], age=[30, 40])
    rows = tmp_path / "rows"
    (rows / "day=2").mkdir(parents=True)
    for number, name in enumerate(("a.parquet", "b.parquet", "day=2/c.parquet")):
        write_rows(rows / name, label=[number, 1, 0, 1])
    (rows / "_SUCCESS").touch()
    return tmp_path


def write_rows(path: Path, **changes: Any) -> Path:
    columns = {
        "user_id": [1, 2, 3, 1],
        "position": [4, 3, 2, 1],
        "shown_at": pa.array([NOW, NOW - 1, NOW, NOW - DAY], pa.timestamp("ms", tz="UTC")),
        **changes,
    }
    return write_table(path, **{name: values for name, values in columns.items() if values is not None})


def options(files: Path) -> list[str | Path]:
    return [
        *("--rows", files / "rows", "--write", files / "out", "--time", "shown_at"),
        *("--events", f"clicks={files / 'clicks.parquet'}", "--table", f"profiles={files / 'users.parquet'}"),
    ]


def an_order(files: Path, **changes: Any) -> OfflineOrder:
    return OfflineOrder(
        **{
            "plan": plan_of(feature_compute_body(**live_features_spec())),
            "rows": str(files / "rows"),
            "output": str(files / "out"),
            "time_column": "shown_at",
            "tables": {"profiles": str(files / "users.parquet")},
            "events": {"clicks": str(files / "clicks.parquet")},
            **changes,
        }
    )


def run_collected(order: OfflineOrder) -> Sequence[OfflineMessage]:
    messages: list[OfflineMessage] = []
    run_order(order, messages.append)
    return messages


def phases(messages: Sequence[OfflineMessage]) -> Mapping[str, OfflineFilePhase]:
    """The last phase of each file."""
    files = [message.file for message in messages if message.file is not None]
    return {Path(file.output_path).name: file.phase for file in files}


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestWhatIsWritten:
    def test_each_row_has_what_the_engine_answers_as_of_its_time(self, files: Path) -> None:
        done = run(files / "features.yaml", *options(files), "-o", "json")

        assert done.exit_code == 0, done.output
        plan = plan_of(feature_compute_body(**live_features_spec()))
        report = json.loads(done.stdout)
        assert report["planHash"] == plan.hash
        assert f"plan {plan.hash}" in done.stderr
        assert [file["state"] for file in report["files"]] == ["Written"] * 3
        assert [item["count"] for item in (*report["events"], *report["tables"])] == [6, 2]
        assert written(files / "out") == ["a.parquet", "b.parquet", "day=2/c.parquet"]
        table = pq.read_table(files / "out/a.parquet")
        paths = {"profiles": files / "users.parquet"}
        engine = make_engine(plan, paths, {"clicks": files / "clicks.parquet"})
        expected = engine.compute_features(
            {
                "user_id": np.array([1, 2, 3, 1]),
                "position": np.array([4, 3, 2, 1]),
                AS_OF: np.array([NOW, NOW - 1, NOW, NOW - DAY]),
            }
        )
        for name, values in expected.items():
            column = np.array(table.column(name).to_pylist(), dtype=values.dtype).reshape(values.shape)
            assert column.tobytes() == values.tobytes(), name
        assert table.column("label").to_pylist() == [0, 1, 0, 1]
        # The events of the row's own millisecond count, and later ones do not.
        assert table.column("idle").to_pylist()[:2] == pytest.approx([0.0, 59.999])
        metadata = pq.read_metadata(files / "out/a.parquet").metadata
        assert metadata[b"tidegate.planHash"].decode() == plan.hash

    def test_tables_alone_need_no_time(self, files: Path) -> None:
        manifest = save(files / "table.yaml", feature_compute_body(**TABLE_ONLY))
        rows = write_table(files / "labels.parquet", user_id=[2, 3])

        done = run(
            manifest,
            *(
                "--rows",
                rows,
                "--write",
                files / "one.parquet",
                "--table",
                f"profiles={files / 'users.parquet'}",
            ),
        )

        assert done.exit_code == 0, done.output
        assert pq.read_table(files / "one.parquet").to_pydict() == {"user_id": [2, 3], "age": [40, -1]}

    def test_a_file_without_rows_gives_the_same_columns(self, files: Path) -> None:
        empty = pq.read_table(files / "rows/a.parquet").slice(0, 0)
        pq.write_table(empty, files / "rows/b.parquet")

        run_order(an_order(files), lambda message: None)

        schemas = [pq.read_schema(files / f"out/{name}.parquet") for name in "ab"]
        assert schemas[0] == schemas[1]
        assert pq.read_metadata(files / "out/b.parquet").num_rows == 0

    def test_a_dry_run_checks_and_writes_nothing(self, files: Path) -> None:
        done = run(files / "features.yaml", *options(files), "--dry-run")

        assert done.exit_code == 0, done.output
        assert done.stdout.count("Pending") == 3
        assert not (files / "out").exists()

    def test_shards_share_the_files(self, files: Path) -> None:
        assert run(files / "features.yaml", *options(files), "--shard", "0/2").exit_code == 0
        assert written(files / "out") == ["a.parquet", "day=2/c.parquet"]

        assert phases(run_collected(an_order(files, shard=1, shards=2))) == {
            "b.parquet": OfflineFilePhase.WRITTEN
        }
        assert run_collected(an_order(files, shard=3, shards=4))[-1].file is None


class TestInterruption:
    def test_the_next_run_goes_on_after_the_last_file(self, files: Path) -> None:
        def end_after_one(message: OfflineMessage) -> None:
            if message.file is not None and message.file.phase is OfflineFilePhase.WRITTEN:
                raise SystemExit(143)

        with pytest.raises(SystemExit):
            run_order(an_order(files), end_after_one)
        assert written(files / "out") == ["a.parquet"]
        first = (files / "out/a.parquet").stat().st_mtime_ns

        done = run(files / "features.yaml", *options(files))

        assert done.exit_code == 0, done.output
        assert [line.split()[2] for line in done.stdout.splitlines()[3:]] == ["Skipped", "Written", "Written"]
        assert "out/a.parquet: skipped" in done.stderr
        assert (files / "out/a.parquet").stat().st_mtime_ns == first

    def test_a_file_that_cannot_be_finished_is_not_there(self, files: Path) -> None:
        write_rows(files / "rows/b.parquet", user_id=pa.array([1, None, 3, None]))

        done = run(files / "features.yaml", *options(files))

        assert done.exit_code == 3
        message = "rows/b.parquet, rows 0 to 3: column 'user_id' has 2 nulls, and every row needs a value"
        assert message in done.stderr
        assert written(files / "out") == ["a.parquet"]

    def test_what_a_killed_run_has_begun_is_removed(self, files: Path) -> None:
        plan, rows, output = an_order(files).plan, files / "rows/a.parquet", files / "out.parquet"
        engine = make_engine(
            plan, {"profiles": files / "users.parquet"}, {"clicks": files / "clicks.parquet"}
        )
        abandoned, running = (files / f".out.parquet.{name}.partial" for name in ("abandoned", "running"))
        for path in (abandoned, running):
            path.touch()
        os.utime(abandoned, (0, 0))

        def end_process(count: int) -> None:
            raise SystemExit(143)

        with pytest.raises(SystemExit):
            RowsComputer(plan, engine, "shown_at").compute_file(rows, output, end_process)

        assert list(files.glob(".*.partial")) == [running]
        assert not output.exists()

    def test_when_all_is_written_no_events_are_read(
        self, files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_order(an_order(files), lambda message: None)
        monkeypatch.delattr("tidegate_dataplane.features.offline_run.make_engine")

        assert set(phases(run_collected(an_order(files))).values()) == {OfflineFilePhase.SKIPPED}


class TestWhatIsRefused:
    def refusal(self, order: OfflineOrder) -> str:
        with pytest.raises(FeatureError) as refused:
            run_order(order, lambda message: None)
        return str(refused.value)

    def test_features_of_another_plan(self, files: Path) -> None:
        run_order(an_order(files), lambda message: None)
        features = [{"name": "idle", "timeSince": {"source": "clicks"}}]
        save(files / "features.yaml", feature_compute_body(**live_features_spec(features=features)))
        before = (files / "out/a.parquet").read_bytes()

        done = run(files / "features.yaml", *options(files))

        assert done.exit_code == 3
        assert (
            f"out/a.parquet has the features of plan {an_order(files).plan.hash}, and this is" in done.stderr
        )
        assert "write to another place, or remove the file" in done.stderr
        assert (files / "out/a.parquet").read_bytes() == before

    def test_features_from_fewer_events(self, files: Path) -> None:
        run_order(an_order(files), lambda message: None)
        write_table(files / "clicks.parquet", **{name: values[:-1] for name, values in EVENTS.items()})

        message = self.refusal(an_order(files))

        assert '"clicks": 6' in message
        assert '"clicks": 5' in message

    def test_features_of_fewer_rows(self, files: Path) -> None:
        run_order(an_order(files), lambda message: None)
        pq.write_table(pq.read_table(files / "rows/a.parquet").slice(1), files / "rows/a.parquet")

        assert "a.parquet has the features of 4 rows, and" in self.refusal(an_order(files))

    def test_a_file_that_is_something_else(self, files: Path) -> None:
        (files / "out").mkdir()
        write_rows(files / "out/a.parquet")

        assert "out/a.parquet exists and has no features" in self.refusal(an_order(files))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"position": None}, "b.parquet has no column 'position'; it has label, shown_at, user_id"),
            (
                {"user_id": ["1", "2", "3", "4"]},
                "b.parquet: column 'user_id' holds string, and INT64 is needed",
            ),
            ({"idle": [1, 2, 3, 4]}, "b.parquet has a column 'idle' already, the name of a feature"),
            ({"shown_at": [0.5] * 4}, "b.parquet: column 'shown_at' holds double, and times are needed"),
        ],
    )
    def test_columns_of_a_later_file_before_the_first_is_computed(
        self, files: Path, changes: Mapping[str, Any], message: str
    ) -> None:
        write_rows(files / "rows/b.parquet", **{"label": [1, 1, 1, 1], **changes})

        assert message in self.refusal(an_order(files))
        assert not (files / "out").exists()

    def test_a_table_that_is_not_the_pinned_one(self, files: Path) -> None:
        plan = plan_of(feature_compute_body(**live_features_spec()))
        digest = hashlib.sha256((files / "users.parquet").read_bytes()).hexdigest()
        (table,) = plan.tables

        run_order(
            an_order(
                files, plan=plan.model_copy(update={"tables": (table.model_copy(update={"sha256": digest}),)})
            ),
            lambda message: None,
        )
        pinned = plan.model_copy(update={"tables": (table.model_copy(update={"sha256": "0" * 64}),)})

        assert f"has sha256 {digest}, and the spec pins {'0' * 64}" in self.refusal(
            an_order(files, plan=pinned)
        )

    @pytest.mark.parametrize(
        ("output", "message"),
        [("rows/out", "is in the folder of the rows"), ("clicks.parquet", "is a folder and")],
    )
    def test_places_that_rows_or_features_cannot_have(self, files: Path, output: str, message: str) -> None:
        assert message in self.refusal(an_order(files, output=str(files / output)))

    def test_a_folder_without_rows(self, files: Path) -> None:
        (files / "none").mkdir()

        assert "has no file *.parquet" in self.refusal(an_order(files, rows=str(files / "none")))

    @pytest.mark.parametrize(
        ("leave_out", "message"),
        [
            ("--time", "name the column with the time of each row, --time COLUMN"),
            ("--events", "there are no events of stream 'clicks': --events clicks=PATH"),
            ("--table", "not on this machine: --table profiles=PATH"),
        ],
    )
    def test_missing_options(self, files: Path, leave_out: str, message: str) -> None:
        given = options(files)
        at = given.index(leave_out)

        done = run(files / "features.yaml", *given[:at], *given[at + 2 :])

        assert done.exit_code == 3
        assert message in done.stderr

    def test_names_that_the_manifest_does_not_have(self, files: Path) -> None:
        done = run(files / "features.yaml", *options(files), "--events", "views=x")
        assert "there is no source 'views'; there is clicks" in done.stderr

    def test_a_time_for_features_that_have_none(self, files: Path) -> None:
        manifest = save(files / "table.yaml", feature_compute_body(**TABLE_ONLY))
        done = run(manifest, "--rows", files / "rows", "--write", files / "out", "--time", "shown_at")
        assert done.exit_code == 3
        assert "leave out --time" in done.stderr

    @pytest.mark.parametrize("shard", ["2/2", "1", "-1/2", "0/0"])
    def test_shards_that_do_not_exist(self, files: Path, shard: str) -> None:
        assert run(files / "features.yaml", *options(files), "--shard", shard).exit_code == 2


class TestTheManifest:
    def test_a_name_chooses_among_several(self, files: Path) -> None:
        manifest = save(
            files / "two.yaml",
            feature_compute_body("live", **live_features_spec()),
            feature_compute_body("tables", **TABLE_ONLY),
        )

        done = run(manifest, *options(files))
        assert "several of kind FeatureCompute: choose with --name: live, tables" in done.stderr
        done = run(manifest, *options(files), "--name", "live", "--dry-run")
        assert done.exit_code == 0, done.output
        done = run(manifest, *options(files), "--name", "other")
        assert "has no FeatureCompute other; it has live, tables" in done.stderr

    def test_a_manifest_that_the_api_server_would_reject(self, files: Path) -> None:
        manifest = save(files / "bad.yaml", feature_compute_body(**live_features_spec(replicas=-1)))
        done = run(manifest, *options(files))
        assert done.exit_code == 3
        assert "FeatureCompute user-features: spec.replicas" in done.stderr

    def test_the_missing_extra_is_named(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        for name in ("errors", "offline", "offline_run", "event_file", "tables", "engine"):
            monkeypatch.delitem(sys.modules, f"tidegate_dataplane.features.{name}", raising=False)

        assert process._run_order(an_order(files)) == "pyarrow is not installed: install tidegate[features]"
