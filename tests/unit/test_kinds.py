"""The kinds: what parses, what does not, and whether the error leads to the field."""

from __future__ import annotations

import pytest

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference, inference_body
from builders.model_access import a_model_access
from builders.refusals import REFUSALS, Refusal
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import ArtefactFormat, DynamicBatchingMode, Inference, Tier
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError

KINDS: dict[str, type[CustomResource]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}


def test_wrong_objects_are_refused_by_name_of_their_field() -> None:
    def refused_at(refusal: Refusal) -> str:
        try:
            KINDS[refusal.body["kind"]].parse(refusal.body)
        except InvalidSpecError as error:
            return error.path
        return "accepted"

    found = {refusal.name: (refused_at(refusal), refusal.path) for refusal in REFUSALS}
    assert {name: paths for name, paths in found.items() if paths[0] != paths[1]} == {}


def test_defaults_are_those_of_the_api() -> None:
    spec = an_inference().spec
    assert spec.replicas == 1
    assert spec.tier is Tier.REALTIME
    assert spec.model.format is ArtefactFormat.ONNX
    assert (spec.own_resources.cpu, spec.own_resources.memory) == ("1", "2Gi")
    assert (spec.batching.mode, spec.batching.max_batch_size) == (DynamicBatchingMode.DISABLED, 128)
    route = a_model_access(routes=[{"name": "default", "targets": [{"inference": "ctr"}]}]).spec.routes[0]
    assert (route.timeout, route.targets[0].weight, route.retry, route.match) == ("1s", 100, None, None)
    assert a_feature_compute().spec.features[0].operation_name == "lookup"


def test_the_served_name_is_the_objects_own_unless_given() -> None:
    assert an_inference("ctr-v3").served_name == "ctr-v3"
    assert an_inference("ctr-v3", model={"name": "ctr"}).served_name == "ctr"


def test_cpu_may_be_written_as_a_bare_number() -> None:
    assert an_inference(resources={"cpu": 2}).spec.own_resources.cpu == "2"


@pytest.mark.parametrize("extra", [{"online": {}}, {"model": {"cutAt": "x"}}])
def test_a_field_that_is_not_served_yet_is_refused(extra: dict[str, object]) -> None:
    with pytest.raises(InvalidSpecError, match="Extra inputs are not permitted"):
        an_inference(**extra)


def test_the_error_counts_what_else_is_wrong() -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.model\.version: .* \(and 1 more\)$"):
        an_inference(model={"version": "0"}, replicas=-1)


def test_an_error_never_shows_the_value() -> None:
    with pytest.raises(InvalidSpecError) as caught:
        an_inference(model={"uri": "https://user:hunter2@models.example.com/ctr"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("status", [None, "ready", {"replicas": "many"}, {"conditions": [{"type": 5}]}])
def test_a_forged_status_counts_as_none(status: object) -> None:
    inference = Inference.parse({**inference_body(), "status": status})
    assert inference.status.replicas == 0
    assert inference.status.conditions == ()


def test_a_status_of_a_newer_operator_is_read_as_far_as_we_know_it() -> None:
    inference = an_inference(status={"readyReplicas": 2, "slices": {"granted": 4}})
    assert inference.status.ready_replicas == 2


def test_metadata_with_nulls_parses() -> None:
    inference = an_inference(metadata={"labels": None, "annotations": None, "managedFields": [{}]})
    assert inference.metadata.labels == {}
    assert inference.key == ObjectKey("ads", "ctr")


def test_a_dump_reads_back_the_same() -> None:
    access = a_model_access(hosts=["ctr.example.com"])
    assert ModelAccess.parse(access.dump()) == access


@pytest.mark.parametrize(
    ("text", "key"), [("ads/ctr", ObjectKey("ads", "ctr")), ("gpu-a", ObjectKey("", "gpu-a"))]
)
def test_a_key_reads_back_the_same(text: str, key: ObjectKey) -> None:
    assert ObjectKey.parse(text) == key
    assert str(key) == text


@pytest.mark.parametrize("text", ["", "/", "ads/", "/ctr", "a/b/c"])
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not name an object"):
        ObjectKey.parse(text)


def test_a_feature_names_the_fields_that_it_reads() -> None:
    features = a_feature_compute().spec.features
    assert [feature.field_references for feature in features] == [
        ("profiles.age",),
        ("profiles.age",),
        ("profiles.city",),
        ("user.user_id", "profiles.city"),
    ]
