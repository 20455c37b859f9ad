"""`tidegate features stats`: what it compares, what it names, and when it fails."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from builders.events import MINUTE
from builders.feature_compute import a_feature_compute
from builders.features import compute_parquet, write_table
from builders.live_features import live_features_spec
from tidegate.main import app
from tidegate.planning.features.feature_plan import compile_plan
from tidegate_dataplane.contract import FEATURE_COLUMNS, PLAN_HASH, FeatureColumn, FeatureColumns

NOW = 1_700_000_000_000


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["features", "stats", *map(str, arguments)])


def compare(folder: Path, *options: str) -> dict[str, Any]:
    done = run("--training", folder / "training", "--recent", folder / "recent", *options, "-o", "json")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def write_features(path: Path, *columns: FeatureColumn, plan: str = "aaa", **values: Any) -> Path:
    """A file of features as `tidegate features compute` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {PLAN_HASH: plan, FEATURE_COLUMNS: FeatureColumns(columns=columns).to_json()}
    pq.write_table(pa.table(values).replace_schema_metadata(metadata), path)
    return path


IDLE = FeatureColumn(name="idle", is_id=False, default="-1.0")
ITEMS = FeatureColumn(name="items", is_id=True, default="0")


def a_set(path: Path, *, idle: Any, items: Any, plan: str = "aaa") -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(items).reshape(-1)), 2)
    idles = pa.array(idle, type=pa.float32(), from_pandas=False)
    write_features(path, IDLE, ITEMS, plan=plan, label=[1] * len(lists), idle=idles, items=lists)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sets of a thousand rows: idle times that have grown, and the same items."""
    items = np.arange(2000) % 40 + 1
    for part in range(2):
        half = slice(part, None, 2)
        a_set(
            tmp_path / f"training/day={part}/a.parquet",
            idle=np.arange(1000.0)[half],
            items=items.reshape(-1, 2)[half],
        )
    a_set(
        tmp_path / "recent/a.parquet",
        idle=np.concatenate((np.full(400, -1.0), np.arange(600.0) * 2)),
        items=items,
    )
    (tmp_path / "recent/_SUCCESS").touch()
    return tmp_path


class TestWhatIsCompared:
    def test_numbers_by_deciles_and_ids_by_their_frequent_values(self, folder: Path) -> None:
        report = compare(folder)

        assert [item["name"] for item in report["features"]] == ["idle", "items"]
        idle, items = report["features"]
        assert (idle["kind"], idle["state"]) == ("Number", "Drifted")
        assert [item["trainingShare"] for item in idle["bins"]] == [0.1] * 10
        # The 400 defaults and 50 of 600 even numbers from 0 to 98.
        assert idle["bins"][0]["recentShare"] == 0.45
        assert idle["training"]["defaultShare"] == 0
        assert idle["recent"]["defaultShare"] == 0.4
        assert idle["training"]["mean"] == 499.5
        assert idle["training"]["deviation"] == pytest.approx(np.arange(1000).std())
        assert (items["kind"], items["state"], items["psi"]) == ("Id", "Stable", 0)
        assert len(items["bins"]) == 21
        assert items["training"]["distinct"] == items["recent"]["distinct"] == 40
        assert (items["training"]["rowCount"], items["training"]["valueCount"]) == (1000, 2000)
        assert items["training"]["mean"] is None

    def test_the_same_set_has_not_moved(self, folder: Path) -> None:
        training = folder / "training"
        done = run("--training", training, "--recent", training, "--fail-above", "0")

        assert done.exit_code == 0, done.output
        assert [line.split()[-3::2] for line in done.stdout.splitlines()[1:]] == [["0.000", "Stable"]] * 2

    def test_missing_values_are_a_bin(self, folder: Path) -> None:
        values: list[float | None] = [None, float("nan"), float("inf"), *map(float, range(997))]
        a_set(folder / "recent/a.parquet", idle=values, items=np.ones(2000, dtype=int))

        (idle,) = (item for item in compare(folder)["features"] if item["name"] == "idle")

        assert (idle["bins"][-1]["label"], idle["bins"][-1]["recentShare"]) == ("missing", 0.003)
        assert idle["recent"]["missingShare"] == 0.003
        assert idle["recent"]["valueCount"] == 997

    def test_missing_lists_and_elements(self, folder: Path) -> None:
        write_features(
            folder / "recent/a.parquet",
            ITEMS,
            items=pa.array([[1, None], None, [2, 3]], pa.list_(pa.int64())),
        )

        (items,) = compare(folder, "--features", "items")["features"]

        assert items["recent"]["rowCount"] == 3
        assert items["recent"]["valueCount"] == 3
        assert items["recent"]["missingShare"] == 0.4

    def test_chosen_columns_need_no_metadata(self, tmp_path: Path) -> None:
        for name, shift in (("training", 0), ("recent", 3)):
            write_table(tmp_path / f"{name}.parquet", x=[1, 2, 3, 4], y=[1 + shift] * 4)
        paths = ("--training", tmp_path / "training.parquet", "--recent", tmp_path / "recent.parquet")

        done = run(*paths, "--features", "x,y", "--ids", "y", "-o", "json")

        assert done.exit_code == 0, done.output
        y, x = json.loads(done.stdout)["features"]
        assert (x["name"], x["kind"], x["psi"], x["training"]["defaultShare"]) == ("x", "Number", 0, None)
        assert (y["name"], y["kind"], y["state"]) == ("y", "Id", "Drifted")
        assert "do not name their features" in run(*paths).stderr

    def test_the_features_of_a_plan_are_all_compared(self, tmp_path: Path) -> None:
        """Of files that the engine itself has written, from live features."""
        plan = compile_plan(a_feature_compute(**live_features_spec()))
        write_table(tmp_path / "users.parquet", user_id=[1, 2], age=[30, 40])
        write_table(
            tmp_path / "clicks.parquet",
            user_id=[1, 2, 1],
            ts=[NOW - MINUTE, NOW - MINUTE, NOW],
            item_id=[5, 6, 7],
            click=[1, 0, 1],
            price=[0.5, 1.5, 2.5],
            page=["a", "b", "c"],
        )
        write_table(
            tmp_path / "rows.parquet",
            user_id=[1, 2, 3],
            position=[1, 2, 3],
            shown_at=[NOW] * 3,
            label=[0] * 3,
        )
        for name in ("training", "recent"):
            compute_parquet(
                plan,
                {"profiles": tmp_path / "users.parquet"},
                tmp_path / "rows.parquet",
                tmp_path / name,
                events={"clicks": tmp_path / "clicks.parquet"},
                time_column="shown_at",
            )

        report = compare(tmp_path)

        kinds = {item["name"]: item["kind"] for item in report["features"]}
        assert set(kinds) == {feature.name for feature in plan.features}
        assert {name for name, kind in kinds.items() if kind == "Id"} == {
            "hist_items",
            "idle_bucket",
            "age_x_place",
        }
        defaults = {item["name"]: item["training"]["defaultShare"] for item in report["features"]}
        # The third key has no row in the table and no events.
        assert defaults["age"] == defaults["idle"] == defaults["ctr_1d"] == pytest.approx(1 / 3)
        assert (defaults["idle_log"], defaults["age_x_place"]) == (None, None)
        assert report["trainingPlans"] == report["recentPlans"] == [plan.hash]


class TestLargeNumbers:
    def compare_columns(self, folder: Path, column: Any, *options: str) -> dict[str, Any]:
        for name in ("training", "recent"):
            (folder / name).mkdir()
            write_table(folder / name / "a.parquet", x=column)
        (feature,) = compare(folder, "--features", "x", *options)["features"]
        return cast(dict[str, Any], feature)

    def test_unsigned_numbers_beyond_int64(self, tmp_path: Path) -> None:
        feature = self.compare_columns(tmp_path, pa.array([2**63 + 5, 2**63 + 5], pa.uint64()))

        assert feature["training"]["mean"] == 2.0**63
        assert feature["psi"] == 0

    def test_unsigned_ids_beyond_int64(self, tmp_path: Path) -> None:
        self.compare_columns(tmp_path, pa.array([2**63 - 1], pa.uint64()), "--ids", "x")
        file = write_table(tmp_path / "recent/b.parquet", x=pa.array([2**63 + 5], pa.uint64()))

        done = run(
            *("--training", tmp_path / "training", "--recent", tmp_path / "recent"),
            *("--features", "x", "--ids", "x"),
        )

        assert done.exit_code == 3
        message = f"{file}: column 'x' has the id 9223372036854775813, which exceeds int64"
        assert message in done.stderr

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize(
        ("values", "mean"), [([1e308, 1e308], None), ([1e308, -1e308, 1e308], pytest.approx(1e308 / 3))]
    )
    def test_moments_that_exceed_float64_are_absent(
        self, tmp_path: Path, values: list[float], mean: float | None
    ) -> None:
        feature = self.compare_columns(tmp_path, values)

        assert (feature["training"]["mean"], feature["training"]["deviation"]) == (mean, None)
        assert (feature["psi"], feature["state"]) == (0, "Stable")
        done = run(
            *("--training", tmp_path / "training", "--recent", tmp_path / "recent", "--features", "x"),
            *("-o", "json"),
        )
        json.loads(done.stdout, parse_constant=pytest.fail)


class TestWhatIsNamed:
    def test_other_plans(self, folder: Path) -> None:
        a_set(folder / "recent/a.parquet", idle=[1.0], items=[1, 2], plan="bbb")

        done = run("--training", folder / "training", "--recent", folder / "recent")

        assert done.stdout.splitlines()[0].endswith("computed in another way: aaa -> bbb")

    def test_a_feature_that_a_set_lacks(self, folder: Path) -> None:
        write_features(folder / "recent/b.parquet", IDLE, idle=pa.array([1.0], pa.float32()))
        paths = ("--training", folder / "training", "--recent", folder / "recent")

        done = run(*paths, "--features", "items")

        assert (done.exit_code, done.stdout) == (0, f"missing   items in {folder / 'recent'}\n")
        failed = run(*paths, "--fail-above", "9")
        assert failed.exit_code == 1
        assert failed.stderr == f"tidegate: columns are missing in {folder / 'recent'}: items\n"

    def test_a_set_without_rows(self, folder: Path) -> None:
        a_set(folder / "recent/a.parquet", idle=[], items=np.empty(0, dtype=int))

        report = compare(folder)

        assert {(item["psi"], item["state"]) for item in report["features"]} == {(None, "Unknown")}
        failed = run("--training", folder / "training", "--recent", folder / "recent", "--fail-above", "9")
        assert failed.exit_code == 1
        assert failed.stderr == "tidegate: there is no index, because a set has no values: idle, items\n"


class TestWhatFails:
    def test_an_index_above_the_bound(self, folder: Path) -> None:
        paths = ("--training", folder / "training", "--recent", folder / "recent")
        (psi,) = (item["psi"] for item in compare(folder, "--features", "idle")["features"])

        failed = run(*paths, "--fail-above", str(psi - 0.01))

        assert failed.exit_code == 1
        assert "FEATURE" in failed.stdout
        assert failed.stderr == f"tidegate: the index is above {psi - 0.01:g}: idle ({psi:.3f})\n"
        assert run(*paths, "--fail-above", str(psi + 0.01)).exit_code == 0

    def test_a_small_sample_of_the_training_set_does_not_fail(self, tmp_path: Path) -> None:
        random = np.random.default_rng(4)
        training = random.normal(size=20_000)
        write_table(tmp_path / "training.parquet", x=training)
        write_table(tmp_path / "recent.parquet", x=random.choice(training, 30, replace=False))
        write_table(tmp_path / "moved.parquet", x=random.choice(training, 30, replace=False) + 3)
        options = ("--training", tmp_path / "training.parquet", "--features", "x", "--fail-above", "0.25")

        small = run(*options, "--recent", tmp_path / "recent.parquet", "-o", "json")
        moved = run(*options, "--recent", tmp_path / "moved.parquet", "-o", "json")

        (feature,) = json.loads(small.stdout)["features"]
        assert 0.25 < feature["psi"] < 2 * feature["chancePsi"]
        assert (small.exit_code, small.stderr, feature["state"]) == (0, "", "TooFew")
        (feature,) = json.loads(moved.stdout)["features"]
        assert (moved.exit_code, feature["state"]) == (1, "Drifted")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--features", "gone"), "neither set has a column 'gone'; "),
            (
                ("--features", "page"),
                "training/day=0/a.parquet: column 'page' holds string, and numbers are needed",
            ),
            (("--ids", "gone"), "--ids gone: that is none of the features: idle, items"),
            (
                ("--ids", "idle"),
                "training/day=0/a.parquet: column 'idle' holds float, and ids are whole numbers",
            ),
        ],
    )
    def test_columns_that_cannot_be_compared(
        self, folder: Path, options: tuple[str, ...], message: str
    ) -> None:
        for file in folder.rglob("*.parquet"):
            table = pq.read_table(file)
            pq.write_table(table.append_column("page", pa.array(["a"] * len(table))), file)

        done = run("--training", folder / "training", "--recent", folder / "recent", *options)

        assert done.exit_code == 3
        assert message in done.stderr

    @pytest.mark.parametrize("name", ["training/day=1/b.parquet", "recent/b.parquet"])
    def test_the_types_of_all_files_are_checked(self, folder: Path, name: str) -> None:
        items = pa.array([[1, 2]], pa.list_(pa.int64()))
        write_features(folder / name, IDLE, ITEMS, idle=["far"], items=items)

        done = run("--training", folder / "training", "--recent", folder / "recent")

        assert done.exit_code == 3
        assert f"{folder / name}: column 'idle' holds string, and numbers are needed\n" in done.stderr

    @pytest.mark.parametrize("values", [[0.4, 1.4], [1e19, 1.0]])
    def test_ids_of_any_file_are_whole_numbers(self, tmp_path: Path, values: list[float]) -> None:
        for name in ("training", "recent"):
            write_table(tmp_path / f"{name}.parquet", y=[0, 1, 2])
        options = ("--training", tmp_path / "training.parquet", "--features", "y", "--ids", "y")
        assert run(*options, "--recent", tmp_path / "recent.parquet").exit_code == 0
        file = write_table(tmp_path / "recent.parquet", y=values)

        done = run(*options, "--recent", file)

        assert done.exit_code == 3
        assert done.stderr == f"tidegate: {file}: column 'y' holds double, and ids are whole numbers\n"

    def test_columns_of_the_same_name(self, folder: Path) -> None:
        file = folder / "recent/b.parquet"
        pq.write_table(pa.Table.from_arrays([pa.array([1.0])] * 2, names=["idle", "idle"]), file)

        done = run("--training", folder / "training", "--recent", folder / "recent")

        assert done.exit_code == 3
        assert done.stderr == f"tidegate: {file} has 2 columns 'idle': rename or remove them\n"

    def test_paths_without_files(self, folder: Path) -> None:
        (folder / "empty").mkdir()
        (folder / "text.parquet").write_text("text")

        for name, message in (
            ("absent", "there is nothing at"),
            ("empty", "has no file *.parquet"),
            ("text.parquet", "text.parquet cannot be read as Parquet"),
        ):
            done = run("--training", folder / "training", "--recent", folder / name)
            assert done.exit_code == 3
            assert message in done.stderr

    def test_without_pyarrow_the_extra_is_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        imported = builtins.__import__

        def refuse(name: str, *arguments: Any, **options: Any) -> Any:
            if name.startswith("pyarrow"):
                raise ModuleNotFoundError(name=name)
            return imported(name, *arguments, **options)

        for module in ("feature_drift", "feature_files"):
            monkeypatch.delitem(sys.modules, f"tidegate.services.{module}", raising=False)
        monkeypatch.delattr("tidegate.services.feature_drift", raising=False)
        monkeypatch.setattr(builtins, "__import__", refuse)

        done = run("--training", folder / "training", "--recent", folder / "recent")

        assert done.exit_code == 3
        assert "pyarrow is not installed: install tidegate[features]" in done.stderr
