"""The example's FeatureCompute over its tables and events: what the model gets, offline as online."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types
import pytest

from builders.movielens import EXAMPLE, a_movielens
from movielens_din.data import MovieLens, Ratings, ratings_of
from movielens_din.din import HISTORY, ITEM
from movielens_din.events import EventsError, moments_before, read_events, write_events
from movielens_din.features import OfflineFeatures
from movielens_din.tables import write_tables

MANIFEST = EXAMPLE / "feature-compute.yaml"
PRIOR, WEIGHT = 3.5, 5


def compile_features(folder: Path, data: MovieLens) -> OfflineFeatures:
    write_tables(folder / "tables", data.users, data.items)
    write_events(folder / "events.parquet", data.ratings)
    return OfflineFeatures.compile(MANIFEST, folder / "tables", folder / "events.parquet")


@pytest.fixture
def features(tmp_path: Path) -> OfflineFeatures:
    return compile_features(tmp_path, a_movielens())


def pairs(*rows: tuple[int, int]) -> Ratings:
    """Pairs of user and film before all events."""
    return ratings_of([(user, item, 3, 0) for user, item in rows])


def histories(folder: Path, rows: Sequence[tuple[int, int, int, int]], length: int) -> list[list[int]]:
    """The newest films that each rating's user had liked, of ratings in order of time."""
    data = a_movielens()
    ratings = ratings_of(rows)
    computed = compile_features(folder, MovieLens(data.users, data.items, ratings)).compute(ratings)
    return [row[:length] for row in computed[HISTORY].tolist()]


def test_every_output_has_the_type_and_the_width_of_the_plan(features: OfflineFeatures) -> None:
    computed = features.compute(pairs((1, 4), (2, 5), (3, 6)))
    types = {"INT64": np.dtype(np.int64), "FP32": np.dtype(np.float32)}
    assert {name: (values.dtype, values.shape) for name, values in computed.items()} == {
        output.name: (types[output.dtype], (3, output.shape[1])) for output in features.plan.outputs
    }


def test_values_fit_the_embeddings(features: OfflineFeatures) -> None:
    computed = features.compute(a_movielens().ratings)
    architecture = features.make_architecture(computed)
    limits = dict(architecture.vocabulary)
    assert architecture.history_length == computed[HISTORY].shape[1] == 50
    for name, limit in {**limits, HISTORY: limits[ITEM]}.items():
        assert computed[name].min() >= 0
        assert computed[name].max() < limit, name


def test_numbers_are_standardised_by_what_they_are_in_training(features: OfflineFeatures) -> None:
    computed = features.compute(a_movielens().ratings)
    (number,) = features.make_architecture(computed).numbers
    assert number.name == "mean_stars"
    standardised = (computed["mean_stars"] - number.mean) / number.deviation
    assert abs(float(standardised.mean())) < 1e-4
    assert abs(float(standardised.std()) - 1) < 1e-4


def test_known_keys_get_their_rows(features: OfflineFeatures) -> None:
    computed = features.compute(pairs((6, 10), (7, 11)))
    assert computed["item"].ravel().tolist() == [10, 11]
    assert computed["genre"].ravel().tolist() == [1, 2]
    assert computed["gender"].ravel().tolist() == [1, 2]
    assert computed["age_bucket"].ravel().tolist() == [1, 1]


def test_nobody_knows_them_and_they_get_an_answer(features: OfflineFeatures) -> None:
    computed = features.compute(pairs((10**12, -1)))
    assert computed["item"].tolist() == [[0]]
    assert computed[HISTORY].tolist() == [[0] * 50]
    assert computed["mean_stars"].tolist() == [[PRIOR]]
    assert 0 <= int(computed["user"][0, 0]) < 16_384


def test_a_history_has_what_was_liked_strictly_before_the_newest_first(tmp_path: Path) -> None:
    rows = [(1, 10, 5, 1), (1, 11, 2, 2), (1, 12, 4, 3), (1, 13, 5, 4), (2, 14, 5, 5)]
    assert histories(tmp_path, rows, length=3) == [[0, 0, 0], [10, 0, 0], [10, 0, 0], [12, 10, 0], [0, 0, 0]]


def test_ratings_of_the_same_second_do_not_see_each_other(tmp_path: Path) -> None:
    first, second, third = histories(tmp_path, [(1, 10, 5, 1), (1, 11, 5, 1), (1, 12, 5, 2)], length=2)
    assert first == second == [0, 0]
    assert sorted(third) == [10, 11]


def test_a_long_history_has_the_newest(tmp_path: Path) -> None:
    rows = [(1, 1 + number % 40, 5, number) for number in range(1, 61)]
    last = histories(tmp_path, rows, length=50)[-1]
    assert last == [1 + number % 40 for number in range(59, 9, -1)]


def test_the_mean_rating_begins_at_the_prior_and_sees_no_later_rating(tmp_path: Path) -> None:
    data = a_movielens()
    ratings = ratings_of([(1, 10, 5, 1), (1, 11, 1, 2), (1, 12, 4, 3)])
    computed = compile_features(tmp_path, MovieLens(data.users, data.items, ratings)).compute(ratings)
    np.testing.assert_allclose(
        computed["mean_stars"].ravel(),
        [PRIOR, (5 + PRIOR * WEIGHT) / (1 + WEIGHT), (6 + PRIOR * WEIGHT) / (2 + WEIGHT)],
        rtol=1e-6,
    )


def test_a_row_does_not_depend_on_its_neighbours(features: OfflineFeatures) -> None:
    ratings = a_movielens().ratings
    together = features.compute(ratings)
    alone = features.compute(ratings.rows(slice(700, 701)))
    for name, values in alone.items():
        np.testing.assert_array_equal(values[0], together[name][700])


def test_events_are_the_ratings_in_order_of_time(tmp_path: Path) -> None:
    ratings = ratings_of([(2, 11, 2, 20), (1, 10, 5, 10)])
    write_events(tmp_path / "events.parquet", ratings)
    assert read_events(tmp_path / "events.parquet") == [
        {"user_id": 1, "ts": 10_000, "item_row": 10, "stars": 5},
        {"user_id": 2, "ts": 20_000, "item_row": 11, "stars": 2},
    ]
    assert moments_before(ratings).tolist() == [9_999, 19_999]


def test_a_file_without_events_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    with pytest.raises(EventsError, match=rf"{path} is not a file; train.py writes it as DIR/events.parquet"):
        read_events(path)
    path.write_text("user_id,ts\n1,10\n")
    with pytest.raises(EventsError, match=rf"{path} cannot be read as Parquet: .*not a parquet file"):
        read_events(path)
    pq.write_table(pa.table({"user_id": [1], "ts": [10]}), path)
    with pytest.raises(
        EventsError, match=rf"{path} has the columns user_id, ts, not user_id, ts, item_row, stars"
    ):
        read_events(path)
    write_events(path, ratings_of([]))
    with pytest.raises(EventsError, match=rf"{path} has no events"):
        read_events(path)
