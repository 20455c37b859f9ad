"""`tidegate convert kserve`: what it refuses, by object and field, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from builders.overlay import overlaid
from tidegate.main import app

SERVICE: dict[str, Any] = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "ctr", "namespace": "ads"},
    "spec": {
        "predictor": {"model": {"modelFormat": {"name": "onnx"}, "storageUri": "s3://models/all"}},
    },
}


def convert(*bodies: dict[str, Any], arguments: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(app, ["convert", "kserve", "-", *arguments], input=yaml.safe_dump_all(bodies))


def with_predictor(predictor: dict[str, Any]) -> dict[str, Any]:
    return overlaid(SERVICE, {"spec": {"predictor": predictor}})


def with_storage(uri: str) -> dict[str, Any]:
    return with_predictor({"model": {"storageUri": uri}})


REFUSED = {
    "a format that Triton's server here lacks": (
        with_predictor({"model": {"modelFormat": {"name": "sklearn"}}}),
        "spec.predictor.model.modelFormat.name: format sklearn is not served: export the model to ONNX",
    ),
    "the older field of such a format": (
        {**SERVICE, "spec": {"predictor": {"xgboost": {"storageUri": "s3://models/x"}}}},
        "spec.predictor.xgboost: format xgboost is not served",
    ),
    "a transformer": (
        overlaid(SERVICE, {"spec": {"transformer": {"containers": []}}}),
        "spec.transformer: has no counterpart",
    ),
    "containers of one's own": (
        {**SERVICE, "spec": {"predictor": {"containers": [{"image": "example.com/model"}]}}},
        "spec.predictor: has no model",
    ),
    "a storage of another kind": (with_storage("hdfs://models/ctr"), "spec.predictor.model.storageUri"),
    "an Azure container": (
        with_storage("https://ads.blob.core.windows.net/models"),
        "is Azure storage, which Tidegate does not list",
    ),
    "no storageUri": (
        {
            **SERVICE,
            "spec": {"predictor": {"model": {"modelFormat": {"name": "onnx"}, "storage": {"key": "k"}}}},
        },
        "spec.predictor.model.storageUri: is missing",
    ),
    "an address that is no URL": (
        {**SERVICE, "status": {"url": "http://[x"}},
        'status.url: "http://[x" is not a URL',
    ),
    "a value of another type": (with_predictor({"minReplicas": "two"}), "spec.predictor.minReplicas"),
    "a value that our field refuses": (
        with_predictor({"batcher": {"maxBatchSize": 100_000}}),
        "would become the invalid Inference field spec.batching.maxBatchSize",
    ),
}


@pytest.mark.parametrize(("body", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_counterpart_is_refused_by_object_and_field(body: dict[str, Any], problem: str) -> None:
    other = overlaid(SERVICE, {"metadata": {"name": "other"}})

    refused = convert(body, other)

    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert "InferenceService ads/ctr in stdin" in line
    assert problem in line
    names = {document["metadata"]["name"] for document in yaml.safe_load_all(refused.stdout) if document}
    assert names == {"other"}, "the others are converted all the same"


@pytest.mark.parametrize(
    ("uri", "converted"),
    [
        ("s3://models/resnet50-v1.5", "s3://models/resnet50-v1.5/ctr"),
        ("s3://my.bucket", "s3://my.bucket/ctr"),
        ("s3://bucket.onnx/", "s3://bucket.onnx/ctr"),
        ("https://models.example.com", "https://models.example.com/ctr"),
        ("s3://models/rank.ONNX", "s3://models/ctr"),
        ("gs://models/v1.5/rank.tar.gz", "gs://models/v1.5/ctr"),
    ],
)
def test_a_dot_in_the_name_of_a_folder_or_a_bucket_makes_no_file_of_it(uri: str, converted: str) -> None:
    printed = convert(with_storage(uri), arguments=("-o", "json"))
    report = json.loads(printed.stdout)
    assert report["objects"][0]["spec"]["model"]["uri"] == converted
    is_file = any("names a file" in note for note in report["notes"]["ads/ctr"])
    assert is_file == uri.lower().endswith((".onnx", ".tar.gz"))


def test_defaults_that_differ_from_those_of_kserve_are_noted() -> None:
    absent = convert(SERVICE).stdout
    assert "spec.predictor.timeout: absent: KServe waits 60 s (300 s with Knative), a route here 1s" in absent
    assert "spec.predictor.model.resources: absent: spec.resources is 1 CPU and 2Gi then" in absent
    limits = {"cpu": "2", "memory": "4Gi"}
    named = convert(with_predictor({"timeout": 3, "model": {"resources": {"limits": limits}}})).stdout
    assert "absent" not in named


def test_labels_by_which_a_tool_deletes_objects_are_left_out() -> None:
    set_by_tools = {
        "app.kubernetes.io/instance": "ads",
        "app.kubernetes.io/managed-by": "Helm",
        "argocd.argoproj.io/instance": "ads",
    }
    body = overlaid(SERVICE, {"metadata": {"labels": {**set_by_tools, "app.kubernetes.io/name": "ctr"}}})

    report = json.loads(convert(body, arguments=("-o", "json")).stdout)

    labels = [document["metadata"]["labels"] for document in report["objects"]]
    assert labels == [{"app.kubernetes.io/name": "ctr"}] * 2
    (note,) = [note for note in report["notes"]["ads/ctr"] if note.startswith("metadata.labels")]
    assert note.endswith(
        ": app.kubernetes.io/instance, app.kubernetes.io/managed-by, argocd.argoproj.io/instance"
    )


def test_a_second_service_of_the_same_name_has_its_own_notes() -> None:
    second = with_predictor({"minReplicas": 0})
    notes = json.loads(convert(with_predictor({"maxReplicas": 8}), second, arguments=("-o", "json")).stdout)[
        "notes"
    ]
    assert [note.partition(":")[0] for note in notes["ads/ctr"] if "Replicas" in note] == [
        "spec.predictor.maxReplicas",
        "spec.predictor.minReplicas",
    ]


def test_an_image_by_digest_is_pinned() -> None:
    digest = f"sha256:{'a' * 64}"
    printed = convert(with_storage(f"oci://registry:5000/ads/ctr@{digest}"), arguments=("-o", "json"))
    model = json.loads(printed.stdout)["objects"][0]["spec"]["model"]
    assert model == {
        "uri": "oci://registry:5000/ads/ctr",
        "version": "1",
        "revision": "latest",
        "sha256": "a" * 64,
    }


def test_a_value_with_a_line_break_adds_no_object() -> None:
    body = overlaid(SERVICE, {"metadata": {"annotations": {"a\n---\nkind: Secret": "b"}}})
    printed = convert(body)
    assert [document["kind"] for document in yaml.safe_load_all(printed.stdout) if document] == [
        "Inference",
        "ModelAccess",
    ]


def test_the_exit_status_is_1_without_an_inference_service_2_without_a_file_and_3_for_one_that_is_missing(
    tmp_path: Path,
) -> None:
    nothing = convert({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})
    assert (nothing.exit_code, nothing.stderr) == (1, "tidegate: no InferenceService found in the files\n")
    assert CliRunner().invoke(app, ["convert", "kserve"]).exit_code == 2
    missing = CliRunner().invoke(app, ["convert", "kserve", str(tmp_path / "missing.yaml")])
    assert missing.exit_code == 3
    assert "missing.yaml" in missing.stderr
