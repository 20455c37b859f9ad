"""A tiny DIN, trained: the ONNX graph says what the jax function says, and what the resources promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
import yaml

from builders.movielens import EXAMPLE, a_movielens
from movielens_din.archive import sha256_of
from tidegate.api.feature_compute import FeatureCompute
from tidegate.planning.features.feature_plan import compile_plan

if TYPE_CHECKING:
    from movielens_din.recipe import Prepared

pytestmark = [pytest.mark.slow("trains a model; the tutorial does so too"), pytest.mark.integration]
MANIFEST = EXAMPLE / "feature-compute.yaml"
RATINGS = 6_000
"""Enough for several steps of training in one epoch."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    from movielens_din.recipe import make_version, prepare  # imports jax, which no other test here needs

    made = prepare(a_movielens(ratings=RATINGS), MANIFEST, tmp_path_factory.mktemp("recipe"))
    for version in ("1", "2"):
        make_version(made, version, lambda _: None)
    return made


def model_of(prepared: Prepared, version: str) -> onnx.ModelProto:
    return onnx.load(prepared.output / version / "model.onnx")


def test_inputs_are_the_outputs_of_the_feature_compute(prepared: Prepared) -> None:
    plan = compile_plan(FeatureCompute.parse(yaml.safe_load(MANIFEST.read_text())))
    kinds = {onnx.TensorProto.INT64: "INT64", onnx.TensorProto.FLOAT: "FP32"}
    found = {}
    for one in model_of(prepared, "1").graph.input:
        kind = one.type.tensor_type
        assert kind.shape.dim[0].dim_param, "the batch dimension is symbolic"
        found[one.name] = (kinds[kind.elem_type], kind.shape.dim[1].dim_value)
    assert found == {output.name: (output.dtype, output.shape[1]) for output in plan.outputs}


def test_every_embedding_is_read_by_a_gather(prepared: Prepared) -> None:
    gathers = [node for node in model_of(prepared, "1").graph.node if node.op_type == "Gather"]
    indices = {name for name, values in prepared.test_inputs.items() if values.dtype == np.int64}
    assert len(gathers) == len(indices)
    assert {node.input[1] for node in gathers} == indices


def test_a_reported_version_is_the_file_and_equals_the_trained_function(prepared: Prepared) -> None:
    from movielens_din import export

    report = json.loads((prepared.output / "training" / "1.json").read_text())
    assert report["sha256"] == sha256_of(prepared.output / "1" / "model.onnx")
    assert 0 <= report["maxAbsDifference"] <= export.TOLERANCE
    assert report["auc"] > 0.6, "the tiny data set has something to learn"


def test_scores_do_not_depend_on_the_batch(prepared: Prepared) -> None:
    from movielens_din import export

    path = prepared.output / "2" / "model.onnx"
    whole = export.run_onnx(path, prepared.test_inputs)
    in_parts = export.run_onnx(path, prepared.test_inputs, batch_rows=7)
    np.testing.assert_allclose(in_parts, whole, rtol=0, atol=1e-6)


def test_held_out_rows_carry_the_scores_of_both_versions(prepared: Prepared) -> None:
    table = pq.read_table(prepared.output / "held-out.parquet")
    assert table.column_names == ["user_id", "item_id", "as_of", "label", "score_v1", "score_v2"]
    assert len(table) == len(prepared.split.test)
    first, second = (table.column(f"score_v{version}").to_numpy() for version in (1, 2))
    assert np.abs(first - second).max() > 0.01, "the versions are really different"


def test_an_altered_graph_is_not_published(prepared: Prepared) -> None:
    import jax.numpy as jnp

    from movielens_din import export

    model = model_of(prepared, "1")
    bias = next(one for one in model.graph.initializer if one.name == "top.2.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([0.5], dtype=np.float32), bias.name))
    parameters = {
        one.name: jnp.asarray(onnx.numpy_helper.to_array(one))
        for one in model_of(prepared, "1").graph.initializer
    }
    with pytest.raises(export.ExportError, match="differs from the trained function by"):
        export.largest_difference(
            model.SerializeToString(), prepared.architecture, parameters, prepared.test_inputs
        )


def test_the_same_seed_gives_the_same_file(prepared: Prepared, tmp_path: Path) -> None:
    from movielens_din.recipe import make_version, prepare

    again = prepare(a_movielens(ratings=RATINGS), MANIFEST, tmp_path)
    make_version(again, "1", lambda _: None)
    assert sha256_of(tmp_path / "1" / "model.onnx") == sha256_of(prepared.output / "1" / "model.onnx")
