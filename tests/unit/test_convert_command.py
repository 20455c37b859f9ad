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
