"""`tidegate analyze` over files: what it reads, what it says, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from documented.pages import ROOT
from tidegate.api.messages.catalogue import REASON_MESSAGES
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.cli.options import FailOn, find_docs
from tidegate.main import app
from tidegate.planning.diagnosis.findings import Finding
from tidegate.reports.analysis import report_findings


class Files:
    """Manifests in a folder, and the command over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, *bodies: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump_all(bodies))
        return path

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        given = arguments if "-f" in arguments else ("-f", str(self.folder), *arguments)
        return CliRunner().invoke(app, ["analyze", "--offline", *given], input=stdin)

    def codes(self, *arguments: str) -> Sequence[tuple[str, str]]:
        done = self.run(*arguments, "-o", "json", "--fail-on", "Never")
        assert done.exit_code == 0, done.output
        return [(each["code"], each["object"]) for each in json.loads(done.stdout)["findings"]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_files_that_fit_each_other_end_well(files: Files) -> None:
    files.write("models.yaml", inference_body(replicas=2))
    files.write("accesses.yaml", model_access_body())
    done = files.run()
    assert (done.exit_code, done.stdout) == (0, "nothing is wrong in 2 objects\n")


def test_each_finding_has_its_code_its_object_and_the_way_out(files: Files) -> None:
    placed = inference_body(replicas=2, placement={"pool": "gold"})
    files.write("all.yaml", placed, model_access_body())
    alone = files.run()
    assert (alone.exit_code, "Skipped  computepools: the files have none" in alone.stdout) == (0, True)
    files.write("pool.yaml", compute_pool_body("silver"))
    done = files.run()
    assert done.exit_code == 1
    first, second, total = done.stdout.splitlines()
    assert first == "Error    TG1202 Inference ads/ctr: spec.placement.pool: there is no ComputePool gold"
    assert second.strip().startswith("PoolNotFound: ")
    assert total == "1 error in 3 objects"
    assert files.run("-o", "name").stdout == "inference.tidegate.io/ctr\n"
    assert "docs/reference/messages/TG1202.md" in files.run("-o", "wide").stdout


def test_what_the_api_server_would_refuse_is_told_and_its_name_is_not_missed(files: Files) -> None:
    broken = inference_body(replicas=2, tier="sometime")
    path = files.write("all.yaml", broken, model_access_body())
    done = files.run()
    assert done.exit_code == 1
    assert done.stdout.startswith("Error    TG5002 Inference ads/ctr: spec.tier: ")
    assert f"(in {path})" in done.stdout
    assert files.codes() == [("TG5002", "ads/ctr")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "ModelAcces"}, 'kind: "ModelAcces" is not in tidegate.io/v1alpha1; use ModelAccess (in '),
        (
            {"apiVersion": "tidegate.io/v1beta1"},
            'apiVersion: "tidegate.io/v1beta1" is not served; use tidegate.io/v1alpha1 (in ',
        ),
        (
            {"apiVersion": "tidegat.io/v1alpha1"},
            'apiVersion: "tidegat.io/v1alpha1" does not have ModelAccess; use tidegate.io/v1alpha1 (in ',
        ),
        ({"apiVersion": None}, 'apiVersion: "" does not have ModelAccess; use tidegate.io/v1alpha1 (in '),
        (
            {"kind": "Zebra"},
            'kind: "Zebra" is not in tidegate.io/v1alpha1; use Inference or ModelAccess or FeatureCompute or ',
        ),
    ],
)
def test_a_misspelt_type_of_ours_is_refused(files: Files, change: dict[str, Any], message: str) -> None:
    files.write("all.yaml", inference_body(replicas=2), {**model_access_body(), **change})
    done = files.run()
    assert done.exit_code == 1
    assert f"Error    TG5002 {change.get('kind', 'ModelAccess')} ads/ctr: {message}" in done.stdout
    assert "in 2 objects" in done.stdout


@pytest.mark.parametrize(
    "body",
    [
        {"apiVersion": "serving.example.com/v1", "kind": "Inference"},
        {"apiVersion": "tidegate.io/v1alpha1", "kind": "AllocationDecision"},
    ],
)
def test_a_type_that_only_resembles_ours_or_that_nobody_applies_is_skipped(
    files: Files, body: dict[str, Any]
) -> None:
    files.write("all.yaml", inference_body(replicas=2), model_access_body(), body)
    done = files.run()
    assert (done.exit_code, "Skipped  1 document of another kind" in done.stdout) == (0, True)


def test_every_error_of_a_manifest_is_a_finding(files: Files) -> None:
    broken = inference_body(replicas=-1, tier="sometime", unknown=1)
    files.write("all.yaml", broken)
    done = files.run("-o", "json")
    messages = [finding["message"].partition(":")[0] for finding in json.loads(done.stdout)["findings"]]
    assert sorted(messages) == ["spec.replicas", "spec.tier", "spec.unknown"]
    assert json.loads(done.stdout)["lookedAt"] == 1


@pytest.mark.parametrize(
    ("suppressed", "codes"),
    [
        ((), [("TG5006", "ads/ctr"), ("TG5005", "ads/cvr")]),
        (("-S", "TG5006"), [("TG5005", "ads/cvr")]),
        (("-S", "TG5006", "-S", "TG5005=ads/cvr"), []),
        (("-S", "TG5006=ads/cvr"), [("TG5006", "ads/ctr"), ("TG5005", "ads/cvr")]),
    ],
)
def test_what_is_suppressed_is_left_out_and_counted(
    files: Files, suppressed: tuple[str, ...], codes: list[tuple[str, str]]
) -> None:
    files.write("all.yaml", inference_body(), inference_body("cvr", replicas=2), model_access_body())
    assert files.codes(*suppressed) == codes
    left = 2 - len(codes)
    assert (f"; {left} suppressed" in files.run(*suppressed).stdout) is (left > 0)


@pytest.mark.parametrize(
    ("threshold", "ends"), [(FailOn.ERROR, 0), (FailOn.WARNING, 1), (FailOn.INFO, 1), (FailOn.NEVER, 0)]
)
def test_the_exit_status_is_for_scripts(files: Files, threshold: FailOn, ends: int) -> None:
    files.write("all.yaml", inference_body(), model_access_body())
    assert files.run("--fail-on", threshold).exit_code == ends


def test_stdin_lists_and_other_kinds(files: Files) -> None:
    namespaceless = inference_body(replicas=2)
    del namespaceless["metadata"]["namespace"]
    listed = {"apiVersion": "v1", "kind": "List", "items": [namespaceless, {"kind": "Secret"}]}
    done = files.run("-f", "-", "-n", "shop", "-o", "json", stdin=yaml.safe_dump(listed))
    said = json.loads(done.stdout)
    assert [each["object"] for each in said["findings"]] == ["shop/ctr"]
    assert (said["lookedAt"], said["skipped"]) == (1, ["1 document of another kind"])


def test_odd_documents_are_refused_or_left_out(files: Files) -> None:
    odd = {**inference_body(replicas=2), "metadata": "ctr"}
    spaceless = inference_body(replicas=2, metadata={"namespace": None})
    files.write("odd.yaml", odd, spaceless, {"kind": "List", "items": [None, 3]})
    assert files.codes("-n", "shop") == [("TG5002", "shop/?"), ("TG5005", "shop/ctr")]


def test_a_part_of_a_planned_pipeline_is_missed(files: Files) -> None:
    part = {"name": "all", "pipeline": {"models": [{"name": "ctr", "inference": "ctr"}]}}
    files.write("access.yaml", model_access_body("home", routes=[part]))
    assert files.codes() == [("TG2008", "ads/home")]


@pytest.mark.parametrize(
    ("text", "said"), [("a: b: c", "is no YAML"), (None, "cannot read"), ("\x00", "is no YAML")]
)
def test_files_that_cannot_be_read_are_named(files: Files, text: str | None, said: str) -> None:
    path = files.folder / "broken.yaml"
    if text is not None:
        path.write_text(text)
    done = files.run("-f", str(path))
    assert (done.exit_code, done.stdout) == (3, "")
    assert str(path) in done.stderr
    assert said in done.stderr


def test_offline_needs_files() -> None:
    refused = CliRunner().invoke(app, ["analyze", "--offline"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert refused.exit_code == 2
    assert "name them with -f" in refused.output


def test_messages_have_an_address_where_the_pages_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    files.write("access.yaml", model_access_body())
    page = "reference/messages/TG"
    monkeypatch.setenv("TIDEGATE_DOCS_URL", "https://docs.example.com/tidegate/")
    assert f" https://docs.example.com/tidegate/{page}" in files.run("-o", "wide").stdout
    monkeypatch.delenv("TIDEGATE_DOCS_URL")
    for folder in (ROOT, tmp_path):
        monkeypatch.chdir(folder)
        shown = [line.strip() for line in files.run("-o", "wide").stdout.splitlines() if page in line]
        assert shown
        assert all(Path(path).is_file() for path in shown)


def test_findings_are_shown_in_a_working_directory_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_DOCS_URL", raising=False)
    files = Files(tmp_path)
    files.write("access.yaml", model_access_body())
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert find_docs() == os.path.relpath(ROOT / "docs", gone)
    gone.rmdir()
    assert find_docs() == str(ROOT / "docs")
    answer = files.run("-o", "wide")
    assert not isinstance(answer.exception, OSError)
    assert f"{ROOT}/docs/reference/messages/TG" in answer.stdout


def test_an_installed_command_names_no_page_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_DOCS_URL", raising=False)
    installed = tmp_path / "site-packages" / "tidegate"
    assert find_docs(installed) is None
    monkeypatch.setenv("TIDEGATE_DOCS_URL", "https://docs.example.com/tidegate")
    assert find_docs(installed) == "https://docs.example.com/tidegate"

    text = REASON_MESSAGES[Reason.POOL_NOT_FOUND]
    finding = Finding(Reason.POOL_NOT_FOUND, text, "Inference", ObjectKey("ads", "ctr"), "no pool")
    report = report_findings([finding], 1)
    assert report.to_json()["docs"] is None
    lines = [line.strip() for line in report.render_lines(wide=True)]
    assert (text.meaning in lines, "reference/messages" in " ".join(lines)) == (True, False)
    assert text.meaning not in [line.strip() for line in report.render_lines(wide=False)]
