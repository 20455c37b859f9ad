"""What a route's pipeline is compiled to, and what is said where its parts do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.live_features import live_features_spec
from builders.model_access import a_model_access, a_route
from builders.pipeline import a_loaded_inference, a_tensor, some_callees
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.pipeline_plan import Callees, compile_pipeline
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.resources.pipeline import CompiledPipeline
from tidegate_dataplane.contract import DEFAULTED, NOT_CURRENT, CandidateCut

EXAMPLES = Path(__file__).parents[2] / "examples"
CTR = {"inference": "ctr", "as": "pctr"}
CVR = {"inference": "cvr", "as": "pcvr"}
OPTIONAL = {"optional": True, "timeout": "20ms", "default": "0.5"}


def scene(*models: dict[str, Any], **pipeline: Any) -> ModelAccess:
    route = {"name": "home", "pipeline": {"models": list(models), **pipeline}}
    return a_model_access("scene", routes=[route])


def compiled(access: ModelAccess, callees: Callees) -> CompiledPipeline | PlanRefusal:
    route = access.spec.routes[0]
    assert route.pipeline is not None
    return compile_pipeline(access, route, route.pipeline, callees, "gateway:8080")


def test_models_get_features_by_name_and_clients_send_keys_and_the_rest() -> None:
    found = compiled(scene(CTR, {**CVR, **OPTIONAL}, features="user-features"), some_callees())

    assert isinstance(found, CompiledPipeline)
    plan = found.plan
    assert plan.features is not None
    assert [one.name for one in plan.features.outputs] == ["age"]
    assert [(one.name, one.dtype) for one in plan.inputs] == [("user_id", "INT64"), ("price", "FP32")]
    assert [one.name for one in plan.outputs] == ["pctr", "pcvr", DEFAULTED]
    assert [part.call.timeout_us for part in plan.parts] == [900_000, 20_000]
    assert plan.parts[0].call.headers == {
        "x-tidegate-access": "pipeline/of/uid-ads-scene",
        "x-tidegate-part": "ctr",
    }
    assert found.max_batch_size == 64
    assert plan.hash == plan.compute_digest()


def test_without_features_or_optional_models_clients_send_all_and_nothing_is_marked() -> None:
    found = compiled(scene(CTR), some_callees())

    assert isinstance(found, CompiledPipeline)
    assert [one.name for one in found.plan.inputs] == ["age", "price"]
    assert [one.name for one in found.plan.outputs] == ["pctr"]


REDIS = {"redis": {"address": "redis.ads:6379"}}


@pytest.mark.parametrize(
    ("taken", "dtype", "store", "is_marked"),
    [
        ("clicks_1h", "INT64", REDIS, True),
        # It reads events by way of another feature.
        ("idle_log", "FP32", REDIS, True),
        ("age", "INT64", REDIS, False),
        ("clicks_1h", "INT64", None, False),
    ],
)
def test_clients_see_that_features_are_not_current_where_a_model_takes_events_of_a_redis(
    taken: str, dtype: str, store: Any, is_marked: bool
) -> None:
    features = a_feature_compute(**live_features_spec(**({"store": store} if store else {})))
    model = a_loaded_inference("ctr", [a_tensor(taken, dtype)])
    callees = Callees({"ctr": model}, {"user-features": features}, {})
    found = compiled(scene({**CTR, **OPTIONAL}, features="user-features"), callees)

    assert isinstance(found, CompiledPipeline)
    assert found.plan.features is not None
    marks = [NOT_CURRENT] if is_marked else []
    assert [spec.name for spec in found.plan.features.outputs] == [taken]
    assert [spec.name for spec in found.plan.features.optional_outputs] == marks
    assert [spec.name for spec in found.plan.outputs] == ["pctr", DEFAULTED, *marks]
    assert NOT_CURRENT not in {spec.name for spec in found.plan.inputs}


def test_an_access_is_called_by_its_own_name_and_by_what_its_targets_serve() -> None:
    found = compiled(scene({"access": "cvr", "as": "pcvr"}), some_callees())

    assert isinstance(found, CompiledPipeline)
    (part,) = found.plan.parts
    assert (part.call.headers, part.call.model) == ({"x-tidegate-access": "ads/cvr"}, "cvr")
    assert found.calls == ()


def test_calls_of_an_access_fit_a_target_that_a_release_has_yet_to_give_weight() -> None:
    targets = [{"inference": "ctr"}, {"inference": "cvr", "weight": 0}]
    inner = a_model_access("inner", routes=[{"name": "default", "targets": targets}])
    found = compiled(
        scene({"access": "inner", "as": "p"}), Callees(some_callees().inferences, {}, {"inner": inner})
    )

    assert isinstance(found, CompiledPipeline)
    assert found.max_batch_size == 64


ctr = a_loaded_inference("ctr")


@pytest.mark.parametrize(
    ("models", "inferences", "says"),
    [
        ([CTR, CVR], [ctr, a_loaded_inference("cvr", [a_tensor("age")])], "input age is INT64 [-1, 1] for pctr and FP32"),
        ([CTR], [a_loaded_inference("ctr", [a_tensor("x", "FP32", 4)])], "Inference ctr does not take batches: x has shape [4]"),
        ([CTR], [a_loaded_inference("ctr", [a_tensor("x", "BF16")])], "x is BF16, which pipelines cannot carry"),
        ([CTR], [a_loaded_inference("ctr", None, [a_tensor("a"), a_tensor("b")])], "has outputs a, b: name one as output of pctr"),
        ([{**CTR, "output": "c"}], [ctr], "has no output c, only score"),
        ([{**CTR, **OPTIONAL}], [a_loaded_inference("ctr", None, [a_tensor("s", "FP32", -1, -1)])], "pctr cannot be optional"),
        ([{**CTR, **OPTIONAL}], [a_loaded_inference("ctr", None, [a_tensor("s", "INT64")])], "give a whole number"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_are_named(models: list[Any], inferences: list[Inference], says: str) -> None:
    found = compiled(scene(*models), some_callees(*inferences))

    assert isinstance(found, PlanRefusal)
    assert (found.reason, found.stalled) == (Reason.PIPELINE_INVALID, True)
    assert found.message.startswith("pipeline of route home: ")
    assert says in found.message


@pytest.mark.parametrize(
    ("dtype", "default", "values"),
    [
        ("BOOL", "5", "0 to 1"),
        ("INT8", "300", "-128 to 127"),
        ("INT8", "-129", "-128 to 127"),
        ("UINT8", "-1", "0 to 255"),
        ("UINT64", "-1", "0 to 18446744073709551615"),
        ("INT32", "2147483648", "-2147483648 to 2147483647"),
        ("FP16", "99999", "-65504 to 65504"),
    ],
)
def test_a_default_that_its_output_cannot_hold_is_refused(dtype: str, default: str, values: str) -> None:
    callees = some_callees(a_loaded_inference("ctr", None, [a_tensor("s", dtype)]))
    found = compiled(scene({**CTR, **OPTIONAL, "default": default}), callees)

    assert isinstance(found, PlanRefusal)
    assert (found.reason, found.stalled) == (Reason.PIPELINE_INVALID, True)
    assert found.message == (
        f"pipeline of route home: the default of pctr is {default}, but output s of Inference ctr is {dtype}: "
        f"give a value from {values}"
    )


@pytest.mark.parametrize(
    ("dtype", "default"),
    [
        ("BOOL", "1"),
        ("INT8", "-128"),
        ("UINT8", "255"),
        ("UINT8", "-0"),
        ("INT64", "-999999999999999"),
        ("FP16", "65504"),
        ("FP32", "999999999999999.5"),
    ],
)
def test_a_default_at_the_end_of_its_outputs_range_is_taken(dtype: str, default: str) -> None:
    callees = some_callees(a_loaded_inference("ctr", None, [a_tensor("s", dtype)]))
    assert isinstance(compiled(scene({**CTR, **OPTIONAL, "default": default}), callees), CompiledPipeline)


@pytest.mark.parametrize(
    ("spec", "routes", "says"),
    [
        ({"features": "user-features"}, None, "feature age is INT64 [-1, 1], but pctr takes FP32 [-1, 1]"),
        ({}, [{"name": "p", "pipeline": {"models": [CTR]}}], "has a pipeline itself"),
        (
            {},
            [a_route("vip", "ctr", match={"headers": [{"name": "x-a", "exact": "b"}]})],
            "has no route without match",
        ),
    ],
)
def test_features_and_accesses_that_do_not_fit_are_named(spec: Any, routes: Any, says: str) -> None:
    callees = some_callees(a_loaded_inference("ctr", [a_tensor("age")]))
    if routes is not None:
        callees = Callees(callees.inferences, {}, {"inner": a_model_access("inner", routes=routes)})
    models = [CTR] if routes is None else [{"access": "inner", "as": "some"}]
    found = compiled(scene(*models, **spec), callees)

    assert isinstance(found, PlanRefusal)
    assert (found.reason, says in found.message) == (Reason.PIPELINE_INVALID, True), found.message


def test_an_access_with_callers_of_its_own_is_no_part() -> None:
    inner = a_model_access(
        "inner", auth={"apiKeys": {"secret": "callers"}}, routes=[a_route("default", "ctr")]
    )
    callees = Callees(some_callees().inferences, {}, {"inner": inner})
    found = compiled(scene({"access": "inner", "as": "some"}), callees)

    assert isinstance(found, PlanRefusal)
    assert found.reason is Reason.PIPELINE_INVALID
    assert "ModelAccess inner lets only known callers in" in found.message


@pytest.mark.parametrize(
    ("models", "features", "reason"),
    [
        ([{"inference": "gone", "as": "p"}], None, Reason.TARGET_NOT_FOUND),
        ([{"access": "gone", "as": "p"}], None, Reason.TARGET_NOT_FOUND),
        ([CTR], "gone", Reason.TARGET_NOT_FOUND),
        ([{"inference": "new", "as": "p"}], None, Reason.TARGET_NOT_READY),
    ],
)
def test_what_is_not_there_yet_is_waited_for(models: list[Any], features: str | None, reason: Reason) -> None:
    callees = some_callees(ctr, an_inference("new"))
    found = compiled(scene(*models, **({"features": features} if features else {})), callees)

    assert isinstance(found, PlanRefusal)
    assert (found.reason, found.stalled) == (reason, False)


def test_the_example_asks_clients_for_keys_alone() -> None:
    """Its model takes one input for each feature, as the recipe exports it."""

    def example(path: str) -> Any:
        return yaml.safe_load((EXAMPLES / path).read_text())

    features = FeatureCompute.parse(example("movielens/feature-compute.yaml"))
    inner, scene_ = (
        ModelAccess.parse(example(f"{one}/model-access.yaml")) for one in ("movielens", "pipelines")
    )
    outputs = compile_plan(features).outputs
    din = a_loaded_inference("din", [a_tensor(spec.name, spec.dtype, *spec.shape) for spec in outputs])
    found = compiled(scene_, Callees({"din": din}, {"din-features": features}, {"din": inner}))

    assert isinstance(found, CompiledPipeline), found
    assert [one.name for one in found.plan.inputs] == ["user_id", "item_id"]
    assert [one.name for one in found.plan.outputs] == ["like", "second", DEFAULTED]


RANK = {"inference": "cvr", "as": "rank", "default": "-1.5", "candidates": {"by": "pctr", "max": 60}}


def test_a_model_with_candidates_gets_a_cut_and_is_not_optional() -> None:
    fewer = {**RANK, "candidates": {"by": "pctr", "max": 60, "min": 20}}
    for model, min_rows in ((RANK, 60), (fewer, 20)):
        found = compiled(scene(CTR, model), some_callees())
        assert isinstance(found, CompiledPipeline)
        first, last = found.plan.parts
        assert (first.cut, last.default) == (None, None)
        assert last.cut == CandidateCut(by="pctr", max_rows=60, min_rows=min_rows, filler="-1.5")
        assert [one.name for one in found.plan.outputs] == ["pctr", "rank"]


def test_models_without_candidates_limit_requests_and_those_with_them_their_calls() -> None:
    found = compiled(scene(CTR, RANK), some_callees())
    assert isinstance(found, CompiledPipeline)
    assert found.max_batch_size == 128
    assert [part.call.max_rows for part in found.plan.parts] == [None, 64]


def test_candidates_must_fit_into_one_call_of_their_model() -> None:
    limit = {"by": "pctr", "max": 64}
    assert isinstance(compiled(scene(CTR, {**RANK, "candidates": limit}), some_callees()), CompiledPipeline)
    found = compiled(scene(CTR, {**RANK, "candidates": {**limit, "max": 65}}), some_callees())
    assert isinstance(found, PlanRefusal)
    assert (found.reason, found.stalled) == (Reason.PIPELINE_INVALID, True)
    assert found.message == (
        "pipeline of route home: rank gets up to 65 candidates, but Inference cvr takes at most 64 rows at once: "
        "set its spec.batching.maxBatchSize to 65 or more, or lower candidates.max"
    )


@pytest.mark.parametrize(
    "models", [(RANK, CTR), ({**RANK, "as": "pctr"},)], ids=["a later model", "the model itself"]
)
def test_candidates_are_selected_by_a_model_further_up(models: tuple[dict[str, Any], ...]) -> None:
    found = compiled(scene(*models), some_callees())
    assert isinstance(found, PlanRefusal)
    assert (found.reason, found.stalled) == (Reason.PIPELINE_INVALID, True)
    assert "selected by pctr, which must be the output (as) of a model further up" in found.message


def test_candidates_are_selected_by_one_number_for_each_row() -> None:
    wide = a_loaded_inference("ctr", [a_tensor("age", "FP32")], [a_tensor("p", "FP32", -1, 2)])
    callees = some_callees()
    found = compiled(scene(CTR, RANK), Callees({**callees.inferences, "ctr": wide}))
    assert isinstance(found, PlanRefusal)
    assert "its output FP32 [-1, 2] is not one number for each row" in found.message
