"""Who uses which shared feature: the lists and explanations of both sides, and the commands that read manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner, Result

from builders.feature_compute import feature_compute_body
from builders.features import write_table
from builders.live_features import live_features_spec
from builders.model_access import a_model_access
from builders.pipeline import a_loaded_inference, a_tensor
from builders.shared_features import a_user, an_origin, shared, using_spec
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.main import app
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.shared_features import resolve_shared
from tidegate.services.feature_catalogue import (
    FeatureCatalogue,
    explain_feature,
    find_usage,
    list_features,
    load_catalogue,
)

EXAMPLE = Path(__file__).parents[2] / "examples/shared-features"
AGE_LOG = {"name": "age_log", "log": {"field": "feature.age"}}
USER = a_user(shared("age"), shared("idle", "idle_log"), AGE_LOG)
HOME, LIVE = ObjectKey("feed", "home"), ObjectKey("ads", "live")


def a_catalogue(*features: FeatureCompute, **changes: Any) -> FeatureCatalogue:
    """These FeatureComputes, and a pipeline of feed whose model takes age_log of home."""
    items = features or (an_origin(), USER)
    ctr = a_loaded_inference("ctr", [a_tensor("age_log")])
    ctr = ctr.parse({**ctr.dump(), "metadata": {**ctr.dump()["metadata"], "namespace": "feed"}})
    pipeline = {"models": [{"inference": "ctr", "as": "p"}], "features": "home"}
    access = a_model_access("scene", "feed", routes=[{"name": "main", "pipeline": pipeline}])
    usage = find_usage(items, [access], [ctr], changes.get("origins", ()))
    return FeatureCatalogue(**{"namespace": "", "features": items, "usage": usage, **changes})


class TestList:
    def test_both_sides_name_each_other(self) -> None:
        report = list_features(a_catalogue())

        rows = {(row.feature_compute, row.name): row for row in report.items}
        assert report.plan_problems == ()
        assert [name for owner, name in rows if owner == "home"] == ["age", "idle", "age_log"]
        mine, theirs = rows["home", "idle"], rows["live", "idle_log"]
        assert (mine.operation, mine.sources, mine.dtype) == (
            "shared log",
            ("feature ads/live.idle_log",),
            "FP32",
        )
        assert (theirs.operation, theirs.shared_as) == ("log", ("feed/home.idle",))
        assert rows["live", "idle"].shared_as == ()
        assert [use.model for use in rows["home", "age_log"].taken_by_models] == ["Inference ctr"]
        line = next(
            line for line in report.render_lines(wide=False) if line.startswith("ads         idle_log")
        )
        assert line.endswith("feature feed/home.idle")

    def test_an_origin_that_was_read_elsewhere_is_not_listed_itself(self) -> None:
        report = list_features(a_catalogue(USER, namespace="feed", origins=(an_origin(),)))

        assert [(row.feature_compute, row.dtype) for row in report.items] == [
            ("home", "INT64"),
            ("home", "FP32"),
            ("home", "FP32"),
        ]

    def test_without_the_origin_the_features_have_no_type_and_the_problem_says_why(self) -> None:
        report = list_features(a_catalogue(USER))

        assert {row.dtype for row in report.items} == {None}
        assert [row.sources for row in report.items][:2] == [
            ("unknown ads/live.age",),
            ("unknown ads/live.idle_log",),
        ]
        (problem,) = report.plan_problems
        assert problem.message.startswith(
            "spec.features[0].shared: FeatureCompute ads/live does not exist, or"
        )


class TestExplain:
    def test_a_shared_feature_is_traced_through_its_origin(self) -> None:
        report = explain_feature(a_catalogue(), HOME, "idle")

        assert list(report.render_lines(wide=False))[2:8] == [
            "idle   FP32 [-1, 1]   shared log",
            "  reads",
            "    ads/live.idle_log   log",
            "      ads/live.idle   timeSince",
            "        clicks   stream",
            "  input of no model",
        ]
        assert [source.name for source in report.sources] == ["clicks"]

    def test_a_feature_that_reads_a_shared_one_is_traced_too(self) -> None:
        (feature,) = explain_feature(a_catalogue(), HOME, "age_log").features

        assert [(step.depth, step.reference) for step in feature.reads] == [
            (1, "feature.age"),
            (2, "ads/live.age"),
            (3, "profiles.age"),
        ]

    def test_the_owner_sees_the_users_and_their_models(self) -> None:
        report = explain_feature(a_catalogue(), LIVE, "age")

        lines = list(report.render_lines(wide=False))
        start = lines.index("  shared as")
        assert lines[start : start + 4] == [
            "  shared as",
            "    feed/home.age",
            "  input of",
            "    Inference ctr, route main of modelaccess/feed/scene through feed/home.age_log",
        ]


def save(folder: Path, *bodies: dict[str, Any]) -> Path:
    path = folder / "features.yaml"
    path.write_text(yaml.safe_dump_all(bodies))
    return path


def manifests(folder: Path, *, shared_with: str = "feed") -> Path:
    metadata = {"annotations": {"tidegate.io/shared-with": shared_with}}
    live = feature_compute_body("live", "ads", metadata=metadata, **live_features_spec())
    home = feature_compute_body("home", "feed", **using_spec(shared("place"), shared("how_old", "age")))
    return save(folder, live, home)


class TestManifests:
    def test_the_example_compiles(self) -> None:
        report = list_features(load_catalogue([EXAMPLE], "default", selected="feed"))

        assert report.plan_problems == ()
        assert [(row.name, row.operation) for row in report.items] == [
            ("ctr_1d", "shared ratio Sum 24h / Count 24h"),
            ("viewer_age", "shared lookup"),
            ("age_bucket", "bucketize"),
            ("position_bucket", "bucketize"),
        ]

    def test_a_selected_namespace_uses_features_of_the_others(self, tmp_path: Path) -> None:
        report = list_features(load_catalogue([manifests(tmp_path)], "default", selected="feed"))

        assert report.plan_problems == ()
        assert [(row.name, row.dtype) for row in report.items] == [("place", "INT64"), ("how_old", "INT64")]

    def test_shared_features_are_computed_offline_by_the_plan_of_the_cluster(self, tmp_path: Path) -> None:
        manifest = manifests(tmp_path)
        home, live = (
            FeatureCompute.parse({**body, "status": {}})
            for body in reversed([*yaml.safe_load_all(manifest.read_text())])
        )
        write_table(tmp_path / "users.parquet", user_id=[1, 2], age=[30, 40])
        write_table(tmp_path / "rows.parquet", user_id=[2, 3, 1], position=[4, 300, -2])

        done = compute(tmp_path, manifest, "--name", "home")

        assert done.exit_code == 0, done.output
        expected = compile_plan(resolve_shared(home, {live.key: live}.get))
        assert json.loads(done.stdout)["planHash"] == expected.hash
        assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {
            "user_id": [2, 3, 1],
            "position": [4, 300, -2],
            "place": [4, 100, 0],
            "how_old": [40, 0, 30],
        }

    def test_a_manifest_without_the_origin_or_its_consent_is_refused(self, tmp_path: Path) -> None:
        body = feature_compute_body("home", "feed", **using_spec(shared("place")))

        absent = compute(tmp_path, save(tmp_path, body))
        withheld = compute(tmp_path, manifests(tmp_path, shared_with="shop"), "--name", "home")

        assert 0 not in {absent.exit_code, withheld.exit_code}
        assert not (tmp_path / "out.parquet").exists()
        assert "must have it too" in " ".join(absent.output.split())
        assert "tidegate.io/shared-with=feed" in " ".join(withheld.output.split())


def compute(folder: Path, manifest: Path, *options: str) -> Result:
    paths = ("--rows", str(folder / "rows.parquet"), "--write", str(folder / "out.parquet"))
    table = ("--table", f"profiles={folder / 'users.parquet'}")
    return CliRunner().invoke(
        app, ["features", "compute", str(manifest), *paths, *table, *options, "-o", "json"]
    )


@pytest.mark.parametrize("feature", ["age", "idle", "age_log"])
def test_every_feature_of_a_user_can_be_explained(feature: str) -> None:
    (lineage,) = explain_feature(a_catalogue(), HOME, feature).features

    assert lineage.sources in {("profiles",), ("clicks",)}
