from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from builders.desired import a_desired_state
from builders.features import USER_KEY, Bucketize, Hash, Lookup, LookupType, a_plan, of_user
from tidegate_dataplane.contract import DesiredState, StreamReport, VersionMemory


def test_json_is_camel_case_and_comes_back() -> None:
    order = a_desired_state(sha256="a" * 64, max_queue_delay_us=5, allowed_hosts=("models.example.com",))

    text = order.to_json()

    assert {"maxQueueDelayUs", "maxArtefactBytes", "allowedHosts", "allowPython"} <= set(json.loads(text))
    assert DesiredState.model_validate_json(text) == order


def test_fields_of_a_newer_side_are_ignored() -> None:
    fields = json.loads(a_desired_state().to_json()) | {"deltas": [1, 2]}

    assert DesiredState.model_validate(fields) == a_desired_state()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "../ctr"},
        {"model": "a/b"},
        {"model": ""},
        {"model": ".incoming"},
        {"version": 0},
        {"version": 10**9},
        {"sha256": "A" * 64},
        {"sha256": "abc"},
        {"max_batch_size": 0},
        {"keep_versions": 0},
        {"format": "SavedModel"},
    ],
)
def test_what_could_leave_the_repository_or_means_nothing_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        a_desired_state(**change)


@pytest.mark.parametrize("count", [2**64, -(2**63) - 1, 10**400])
def test_an_integer_that_no_float_could_be_computed_with_is_refused(count: int) -> None:
    report = f'{{"count": {{"unsettled": 1, "arrived": 1, "ageS": 0}}, "extra": {count}}}'
    assert StreamReport.model_validate_json(report).count is not None
    with pytest.raises(ValidationError, match="arrived"):
        StreamReport.model_validate_json(report.replace('"arrived": 1', f'"arrived": {count}'))
    with pytest.raises(ValidationError):
        VersionMemory.model_validate({"version": count, "bytes": 1})


class TestPlanDigest:
    PLAN = a_plan(
        Lookup(name="age", field=of_user("age"), type=LookupType.INT64),
        Bucketize(name="bucket", field=of_user("age"), boundaries=(18, 25)),
    )

    def test_it_does_not_contain_itself(self) -> None:
        assert self.PLAN.model_copy(update={"hash": "other"}).compute_digest() == self.PLAN.compute_digest()

    def test_another_feature_has_another(self) -> None:
        assert (
            a_plan(Hash(name="h", field=USER_KEY, buckets=3)).compute_digest() != self.PLAN.compute_digest()
        )

    def test_it_is_pinned(self) -> None:
        # Pods are told apart by it: a changed digest means new pods for every FeatureCompute.
        assert (
            self.PLAN.compute_digest() == "ffb2aa0f052763ec07fa1fb319db173a4436a63e3bd60bef4f9b60d703f30a5c"
        )
