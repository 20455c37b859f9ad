"""A pipeline that calls a FeatureCompute of another namespace, which has to list the namespace of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.model_access import a_model_access
from builders.pipeline import a_loaded_inference, a_tensor
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.callees import CalleeLookup, find_callees
from tidegate.planning.access.feature_uses import find_pipeline_uses
from tidegate.planning.access.pipelines import PipelinesObserved, PipelinesPlan, plan_pipelines
from tidegate.resources.settings import ServingSettings
from tidegate.routing.access_index import AccessIndex
from tidegate_dataplane.contract import DesiredState

SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", gateway="gateway:8080")
FEATURES = ObjectKey("ads", "user-features")


def a_scene(features: str = "ads/user-features") -> ModelAccess:
    pipeline = {"models": [{"inference": "ctr", "as": "pctr"}], "features": features}
    return a_model_access("scene", "feed", routes=[{"name": "home", "pipeline": pipeline}])


def a_lookup(*, shared_with: str | None, exists: bool = True) -> CalleeLookup:
    """The model is the pipeline's, and the FeatureCompute another namespace's."""
    annotations = {} if shared_with is None else {"tidegate.io/shared-with": shared_with}
    features = a_feature_compute(metadata={"annotations": annotations})
    ctr = a_loaded_inference("ctr", [a_tensor("age", "INT64")])
    ctr = ctr.parse({**ctr.dump(), "metadata": {**ctr.dump()["metadata"], "namespace": "feed"}})
    return CalleeLookup({ctr.key: ctr}.get, {FEATURES: features}.get if exists else {}.get, {}.get)


def plan(access: ModelAccess, lookup: CalleeLookup) -> PipelinesPlan:
    """The plan with a Deployment of the route that runs."""
    deployment = {
        "metadata": {
            "name": "mac-scene-home",
            "namespace": "feed",
            "uid": "u-1",
            "labels": {"tidegate.io/pipeline": "scene.home"},
            "ownerReferences": [{"uid": access.metadata.uid}],
        }
    }
    observed = PipelinesObserved(callees=find_callees(access, lookup), children={"Deployment": [deployment]})
    return plan_pipelines(access, observed, SETTINGS)


@pytest.mark.parametrize("shared_with", ["feed", "shop, feed"])
def test_a_shared_feature_compute_is_called_in_its_own_namespace(shared_with: str) -> None:
    planned = plan(a_scene(), a_lookup(shared_with=shared_with))

    assert (
        planned.verdict is None or planned.verdict.reason is not Reason.TARGET_NOT_FOUND,
        planned.delete,
    ) == (
        True,
        (),
    )
    config: Any = next(manifest for manifest in planned.apply if manifest["kind"] == "ConfigMap")
    pipeline = DesiredState.model_validate_json(config["data"]["desired.json"]).pipeline
    assert pipeline is not None
    assert pipeline.features is not None
    assert pipeline.features.headers == {"x-tidegate-features": "ads/user-features"}
    assert (pipeline.features.model, pipeline.features.title) == (
        "user-features",
        "FeatureCompute ads/user-features",
    )


@pytest.mark.parametrize("shared_with", [None, "", "feeds", "fee,d", "*"])
def test_without_consent_the_pipeline_ends_and_the_condition_names_both(shared_with: str | None) -> None:
    planned = plan(a_scene(), a_lookup(shared_with=shared_with))

    assert planned.apply == ()
    assert [(item.kind, item.key.name) for item in planned.delete] == [("Deployment", "mac-scene-home")]
    assert planned.verdict is not None
    assert planned.verdict.reason is Reason.TARGET_NOT_FOUND
    assert planned.verdict.message == (
        "pipeline of route home: FeatureCompute ads/user-features does not exist, or does not share with namespace feed: "
        "its owner can add feed to its annotation, with kubectl annotate featurecompute user-features -n ads "
        "tidegate.io/shared-with=feed"
    )


def test_the_message_does_not_show_whether_the_object_exists() -> None:
    withheld = plan(a_scene(), a_lookup(shared_with=None))
    absent = plan(a_scene(), a_lookup(shared_with=None, exists=False))

    assert withheld.verdict == absent.verdict
    # What is absent may be created again at once, as in the pipeline's own namespace.
    assert absent.delete == ()


def test_an_object_of_the_same_namespace_needs_no_consent() -> None:
    access = a_scene("ads/user-features")
    own = access.parse({**access.dump(), "metadata": {**access.dump()["metadata"], "namespace": "ads"}})
    lookup = a_lookup(shared_with=None)

    assert set(find_callees(own, lookup).features) == {"ads/user-features"}


def test_a_changed_feature_compute_wakes_its_users_of_other_namespaces() -> None:
    index = AccessIndex()
    index.put(ObjectKey("feed", "scene"), a_scene())

    assert index.accesses_for_features(FEATURES) == (ObjectKey("feed", "scene"),)
    assert index.accesses_for_features(ObjectKey("feed", "user-features")) == ()


def test_the_catalogue_has_users_of_other_namespaces() -> None:
    (use,) = find_pipeline_uses([a_scene()], a_lookup(shared_with="feed"))

    assert use.feature_compute == FEATURES
    assert [(model.access, model.features) for model in use.models] == [
        (ObjectKey("feed", "scene"), ("age",))
    ]
