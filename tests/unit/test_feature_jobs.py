"""`tidegate features list` and `explain` name the batches and backfills that compute features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.backfill import backfill_spec
from builders.batch import batch_spec
from builders.feature_compute import a_feature_compute, feature_compute_body
from builders.inference import an_inference, inference_body
from builders.live_features import live_features_spec
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.shared_names import SHARED_WITH_ANNOTATION
from tidegate.reports.feature_usage import FeatureUsage
from tidegate.services.feature_catalogue import (
    FeatureCatalogue,
    explain_feature,
    find_usage,
    list_features,
    load_catalogue,
)

KEY = ObjectKey("ads", "user-features")
BACKFILL = "backfill of featurecompute/ads/user-features, from s3://lake/labels to s3://lake/training"
BATCH = "batch of inference/ads/scores, from s3://lake/users to s3://lake/scores"


def a_batch(name: str = "scores", namespace: str = "ads", compute: str = "user-features") -> Inference:
    batch = batch_spec(features={"name": compute})
    return an_inference(name, namespace, tier="offline", batch=batch)


def a_catalogue(*inferences: Inference) -> FeatureCatalogue:
    """A FeatureCompute with a backfill, another one, and batches."""
    features = (
        a_feature_compute(**live_features_spec(backfill=backfill_spec())),
        a_feature_compute("other"),
    )
    return FeatureCatalogue("ads", features, find_usage(features, (), inferences))


def test_features_have_the_jobs_that_compute_them_as_users() -> None:
    report = list_features(a_catalogue(a_batch(), an_inference("ctr")))

    users = {
        (row.feature_compute, tuple(job.format_user() for job in row.computed_by_jobs))
        for row in report.items
    }
    assert users == {("user-features", ("backfill", "batch scores")), ("other", ())}
    lines = list(report.render_lines(wide=False))
    assert next(line for line in lines if line.startswith("place ")).endswith("   backfill, batch scores")
    assert next(line for line in report.render_lines(wide=True) if line.startswith("place ")).endswith(
        f"   {BACKFILL}, {BATCH}"
    )


@pytest.mark.parametrize("batch", [a_batch(namespace="shop"), a_batch(compute="gone")])
def test_a_batch_of_another_namespace_or_name_is_no_user(batch: Inference) -> None:
    report = list_features(a_catalogue(batch))

    jobs = {job.format_user() for row in report.items for job in row.computed_by_jobs}
    assert jobs == {"backfill"}


@pytest.mark.parametrize(("namespace", "unknown"), [("ads", True), ("", False)])
def test_users_in_namespaces_that_were_not_read_are_unknown(namespace: str, unknown: bool) -> None:
    metadata = {"annotations": {SHARED_WITH_ANNOTATION: "video, shop"}}
    shared = a_feature_compute("other", metadata=metadata)
    usage = FeatureUsage(namespace=namespace)
    report = list_features(FeatureCatalogue(namespace, (shared,), usage))
    explained = explain_feature(FeatureCatalogue(namespace, (shared,), usage), shared.key, "")
    alone = list_features(FeatureCatalogue(namespace, (a_feature_compute("other"),), usage))

    rows = list(report.render_lines(wide=False))[1:]
    assert {row.endswith("other namespaces unknown") for row in rows} == {unknown}
    line = "shared with shop, video: what uses it there is unknown without -A"
    assert (line in explained.render_lines(wide=False)) == unknown
    assert not any("unknown" in row for row in alone.render_lines(wide=False))


def test_an_explanation_has_the_files_of_the_jobs() -> None:
    report = explain_feature(a_catalogue(a_batch()), KEY, "idle")

    assert [(job.kind.value, job.owner, job.results) for job in report.jobs] == [
        ("Backfill", "ads/user-features", "s3://lake/training"),
        ("Batch", "ads/scores", "s3://lake/scores"),
    ]
    assert list(report.render_lines(wide=False))[-3:] == ["", BACKFILL, BATCH]


def test_manifests_have_jobs_although_their_models_are_unknown(tmp_path: Path) -> None:
    backfill = feature_compute_body(**live_features_spec(backfill=backfill_spec()))
    batch = inference_body("scores", tier="offline", batch=batch_spec(features={"name": "user-features"}))
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [backfill, batch]}))

    report = explain_feature(load_catalogue([path], "ads"), KEY, "idle")

    assert [job.format_text() for job in report.jobs] == [BACKFILL, BATCH]
    assert not report.usage_known


def test_without_jobs_there_is_none() -> None:
    catalogue = FeatureCatalogue("ads", (a_feature_compute("other"),), FeatureUsage())
    assert explain_feature(catalogue, ObjectKey("ads", "other"), "age").jobs == ()
