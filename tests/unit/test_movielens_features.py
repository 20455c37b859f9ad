"""The example's FeatureCompute over its tables: what the model gets, offline as online."""

from pathlib import Path

import numpy as np
import pytest

from builders.movielens import EXAMPLE, a_movielens
from movielens_din.data import final_histories
from movielens_din.features import OfflineFeatures
from movielens_din.tables import write_tables

MANIFEST = EXAMPLE / "feature-compute.yaml"


@pytest.fixture
def features(tmp_path: Path) -> OfflineFeatures:
    data = a_movielens()
    write_tables(tmp_path, data.users, data.items, final_histories(data.ratings))
    return OfflineFeatures.compile(MANIFEST, tmp_path)


def test_every_output_is_int64_with_the_width_of_the_plan(features: OfflineFeatures) -> None:
    computed = features.compute(np.array([1, 2, 3]), np.array([4, 5, 6]))
    assert {name: (values.dtype, values.shape) for name, values in computed.items()} == {
        output.name: (np.dtype(np.int64), (3, output.shape[1])) for output in features.plan.outputs
    }


def test_values_fit_the_embeddings(features: OfflineFeatures) -> None:
    rows = [(user, item) for user in range(1, 31) for item in range(1, 41)]
    users, items = (np.array(column) for column in zip(*rows, strict=True))
    computed = features.compute(users, items)
    for feature in features.plan.features:
        limit = features.embedding_rows("item" if feature.name == "hist_items" else feature.name)
        assert computed[feature.name].min() >= 0
        assert computed[feature.name].max() < limit, feature.name


def test_known_keys_get_their_rows(features: OfflineFeatures) -> None:
    computed = features.compute(np.array([6, 7]), np.array([10, 11]))
    assert computed["item"].ravel().tolist() == [10, 11]
    assert computed["genre"].ravel().tolist() == [1, 2]
    assert computed["gender"].ravel().tolist() == [1, 2]
    assert computed["age_bucket"].ravel().tolist() == [1, 1]


def test_nobody_knows_them_and_they_get_an_answer(features: OfflineFeatures) -> None:
    computed = features.compute(np.array([10**12]), np.array([-1]))
    assert computed["item"].tolist() == [[0]]
    assert computed["hist_items"].tolist() == [[0] * 50]
    assert 0 <= int(computed["user"][0, 0]) < 16_384


def test_a_row_does_not_depend_on_its_neighbours(features: OfflineFeatures) -> None:
    together = features.compute(np.array([1, 2, 99]), np.array([3, 4, 99]))
    alone = features.compute(np.array([2]), np.array([4]))
    for name, values in alone.items():
        np.testing.assert_array_equal(values[0], together[name][1])
