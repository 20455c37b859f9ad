"""`tidegate features list` and `explain` over manifests: what they read, what is unknown, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.live_features import live_features_spec
from builders.model_access import model_access_body
from tidegate.api.meta import API_VERSION
from tidegate.main import app

A_BAD_MANIFEST = {
    "apiVersion": API_VERSION,
    "kind": "FeatureCompute",
    "metadata": {"name": "bad"},
    "spec": {"features": [{"name": "a", "hash": {"field": "user.id", "buckets": 9}}]},
}


def save(path: Path, *bodies: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump_all(bodies))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["features", *arguments])


class TestManifest:
    @pytest.fixture
    def manifest(self, tmp_path: Path) -> str:
        pipeline = {"models": [{"inference": "ctr", "as": "p"}], "features": "user-features"}
        return save(
            tmp_path / "features.yaml",
            feature_compute_body(**live_features_spec()),
            inference_body("ctr"),
            model_access_body("scene", routes=[{"name": "home", "pipeline": pipeline}]),
        )

    def test_features_of_a_file_are_listed_without_a_cluster(self, manifest: str) -> None:
        done = run("list", "-f", manifest, "-o", "json")

        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert len(report["items"]) == 10
        (problem,) = report["pipelineProblems"]
        assert problem["message"] == "manifests have no status, which has the inputs of the models"

    def test_features_of_a_file_are_explained(self, manifest: str) -> None:
        done = run("explain", "ads/user-features.idle_log", "-f", manifest)

        assert done.exit_code == 0, done.output
        assert "    feature.idle   timeSince\n      clicks   stream\n" in done.stdout

    def test_the_models_of_manifests_are_unknown(self, manifest: str, tmp_path: Path) -> None:
        alone = save(tmp_path / "alone.yaml", feature_compute_body(**live_features_spec()))

        for file in (manifest, alone):
            for command in (("list",), ("explain", "user-features.place")):
                text = run(*command, "-f", file).stdout
                assert "models unknown" in text
                assert "input of no model" not in text
                assert json.loads(run(*command, "-f", file, "-o", "json").stdout)["usageKnown"] is False
        listed = run("list", "-f", alone).stdout.splitlines()
        assert all(line.endswith("models unknown") for line in listed[1:])
        assert run("explain", "user-features.place", "-f", manifest).stdout.splitlines()[-1] == (
            "modelaccess/ads/scene route home: its models are unknown, "
            "because manifests have no status, which has the inputs of the models"
        )

    def test_several_files_are_read_together(self, manifest: str, tmp_path: Path) -> None:
        other = save(tmp_path / "other.yaml", feature_compute_body("other"))

        done = run("list", "--filename", manifest, "--filename", other, "-o", "json")

        assert done.exit_code == 0, done.output
        names = {item["featureCompute"] for item in json.loads(done.stdout)["items"]}
        assert names == {"user-features", "other"}

    def test_a_namespace_selects_objects_and_completes_those_that_name_none(self, tmp_path: Path) -> None:
        unplaced = feature_compute_body("unplaced")
        del unplaced["metadata"]["namespace"]
        bad = {**A_BAD_MANIFEST, "metadata": {"name": "bad", "namespace": "ads"}}
        file = save(tmp_path / "features.yaml", unplaced, feature_compute_body("placed"), bad)

        selected = json.loads(run("list", "-f", file, "-n", "feed", "-o", "json").stdout)
        listed = json.loads(run("list", "-f", file, "-o", "json").stdout)

        assert {(item["namespace"], item["featureCompute"]) for item in selected["items"]} == {
            ("feed", "unplaced")
        }
        assert (selected["namespace"], selected["skipped"]) == ("feed", [])
        assert {(item["namespace"], item["featureCompute"]) for item in listed["items"]} == {
            ("default", "unplaced"),
            ("ads", "placed"),
        }
        assert (listed["namespace"], len(listed["skipped"])) == (None, 1)
        explained = run("explain", "unplaced", "-f", file, "-n", "feed").stdout
        assert explained.startswith("featurecompute/feed/unplaced: ")

    def test_why_a_manifest_is_left_out_is_in_the_message(self, tmp_path: Path) -> None:
        file = save(tmp_path / "bad.yaml", A_BAD_MANIFEST)

        done = run("explain", "bad", "-f", file)

        assert done.exit_code == 3
        assert done.stderr == (
            'tidegate: FeatureCompute "bad" not found; there is none; '
            f"left out: FeatureCompute default/bad: spec.entities: Field required (in {file})\n"
        )

    def test_an_object_of_two_files_is_refused(self, manifest: str, tmp_path: Path) -> None:
        other = save(tmp_path / "other.yaml", feature_compute_body())

        for command in (("list",), ("explain", "user-features")):
            done = run(*command, "-f", manifest, "-f", other)
            assert done.exit_code == 3
            assert "the files have 2 manifests of FeatureCompute ads/user-features: keep the" in done.stderr

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            (("-A",), "-A"),
            (("--context", "prod"), "--context"),
            (("--as", "fred", "--as-group", "readers"), "--as and --as-group"),
            (("--kubeconfig", "config"), "--kubeconfig"),
            (("--request-timeout", "5s"), "--request-timeout"),
        ],
    )
    @pytest.mark.parametrize("command", [("list",), ("explain", "user-features")])
    def test_options_of_a_cluster_are_refused(
        self, manifest: str, command: tuple[str, ...], options: tuple[str, ...], names: str
    ) -> None:
        done = run(*command, "-f", manifest, *options)

        assert done.exit_code == 2
        assert f"-f reads files: leave {names} out" in " ".join(done.stderr.replace("│", " ").split())

    def test_another_kind_is_refused(self, manifest: str) -> None:
        done = run("explain", "inference/ctr", "-f", manifest)

        assert done.exit_code == 3
        assert "'inference/ctr' is no FeatureCompute" in done.stderr
