"""Compiling features: names resolve to tables and keys, tensors are spelled out, and nothing leads nowhere."""

import pytest

from builders.feature_compute import a_feature_compute
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan


def test_every_operation_becomes_an_output_of_its_type_and_length() -> None:
    features = a_feature_compute(
        features=[
            {"name": "age", "lookup": {"field": "profiles.age", "type": "float32"}},
            {"name": "history", "lookup": {"field": "profiles.history", "type": "int64", "length": 50}},
            {"name": "bucket", "bucketize": {"field": "profiles.age", "boundaries": [18, 35]}},
            {"name": "who", "hash": {"field": "user.user_id", "buckets": 10}},
            {"name": "both", "cross": {"fields": ["user.user_id", "profiles.city"], "buckets": 10}},
        ]
    )
    plan = compile_plan(features)

    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in plan.outputs] == [
        ("age", "FP32", (-1, 1)),
        ("history", "INT64", (-1, 50)),
        ("bucket", "INT64", (-1, 1)),
        ("who", "INT64", (-1, 1)),
        ("both", "INT64", (-1, 1)),
    ]
    assert [(tensor.name, tensor.dtype) for tensor in plan.inputs] == [("user_id", "INT64")]
    assert plan.hash == plan.compute_digest()


def test_plan_hash_depends_on_what_is_computed_and_not_on_who_asks() -> None:
    one, other = a_feature_compute("one"), a_feature_compute("other", replicas=3)
    changed = a_feature_compute(features=[{"name": "who", "hash": {"field": "user.user_id", "buckets": 11}}])

    assert compile_plan(one).hash == compile_plan(other).hash
    assert compile_plan(one).hash != compile_plan(changed).hash


def test_tables_and_entities_that_no_feature_reads_are_left_out() -> None:
    features = a_feature_compute(
        entities=[
            {"name": "user", "key": "user_id", "type": "int64"},
            {"name": "item", "key": "item_id", "type": "string"},
        ],
        features=[{"name": "which", "hash": {"field": "item.item_id", "buckets": 5}}],
    )
    plan = compile_plan(features)

    assert [(tensor.name, tensor.dtype) for tensor in plan.inputs] == [("item_id", "BYTES")]
    assert plan.tables == ()


@pytest.mark.parametrize("field", ["nobody.x", "user.age"])
def test_reference_that_leads_nowhere_is_refused_before_anything_is_compiled(field: str) -> None:
    with pytest.raises(InvalidSpecError, match="declared"):
        a_feature_compute(features=[{"name": "bad", "hash": {"field": field, "buckets": 2}}])


def test_lookup_of_a_key_names_the_feature_and_the_way_out() -> None:
    features = a_feature_compute(
        features=[{"name": "bad", "lookup": {"field": "user.user_id", "type": "int64"}}]
    )

    with pytest.raises(InvalidSpecError, match="use hash, or name a source") as caught:
        compile_plan(features)
    assert caught.value.path == "spec.features[0].lookup.field"
