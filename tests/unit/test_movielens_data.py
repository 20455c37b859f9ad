"""The example's data: the split in time, and histories that do not see the future."""

import zipfile
from pathlib import Path

import numpy as np

from builders.movielens import a_movielens
from movielens_din.data import (
    FOLDER,
    final_histories,
    histories_before,
    ratings_of,
    read_movielens,
    split_by_time,
)


def test_ratings_are_in_order_of_time_and_liked_from_four_stars_on() -> None:
    ratings = ratings_of([(1, 10, 3.0, 20), (2, 11, 4.0, 10), (1, 12, 5.0, 30)])
    assert ratings.item_ids.tolist() == [11, 10, 12]
    assert ratings.labels.tolist() == [1.0, 0.0, 1.0]


def test_the_split_puts_one_moment_on_one_side() -> None:
    ratings = ratings_of([(user, 1, 5.0, second) for second in (1, 2, 3, 3, 3, 4) for user in (1,)])
    split = split_by_time(ratings, train_share=0.5)
    assert split.at == 3
    assert split.train.timestamps.tolist() == [1, 2]
    assert split.test.timestamps.tolist() == [3, 3, 3, 4]


def test_a_history_holds_what_was_liked_strictly_before_newest_first() -> None:
    ratings = ratings_of(
        [(1, 10, 5.0, 1), (1, 11, 2.0, 2), (1, 12, 4.0, 3), (1, 13, 5.0, 4), (2, 14, 5.0, 5)]
    )
    assert histories_before(ratings, length=3).tolist() == [
        [0, 0, 0],
        [10, 0, 0],
        [10, 0, 0],
        [12, 10, 0],
        [0, 0, 0],
    ]


def test_ratings_of_the_same_second_do_not_see_each_other() -> None:
    ratings = ratings_of([(1, 10, 5.0, 1), (1, 11, 5.0, 1), (1, 12, 5.0, 2)])
    histories = histories_before(ratings, length=2)
    assert histories[:2].tolist() == [[0, 0], [0, 0]]
    assert sorted(histories[2].tolist()) == [10, 11]


def test_a_long_history_keeps_the_newest() -> None:
    ratings = ratings_of([(1, item, 5.0, item) for item in range(1, 8)])
    assert histories_before(ratings, length=3)[-1].tolist() == [6, 5, 4]
    assert final_histories(ratings, length=3) == {1: (7, 6, 5)}


def test_final_histories_are_padded_and_leave_out_who_liked_nothing() -> None:
    ratings = ratings_of([(1, 10, 5.0, 1), (2, 11, 1.0, 2)])
    assert final_histories(ratings, length=3) == {1: (10, 0, 0)}


def test_no_history_of_training_reaches_into_the_test_rows() -> None:
    split = split_by_time(a_movielens().ratings)
    at = {
        (int(user), int(item)) for user, item in zip(split.train.user_ids, split.train.item_ids, strict=True)
    }
    for user, items in final_histories(split.train).items():
        assert all((user, item) in at for item in items if item)
    assert split.train.timestamps.max() < split.at <= split.test.timestamps.min()


def test_the_wheel_is_read_without_its_column_types(tmp_path: Path) -> None:
    wheel = tmp_path / "recbole.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{FOLDER}/ml-100k.user",
            "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\ttechnician\t85711\n",
        )
        archive.writestr(
            f"{FOLDER}/ml-100k.item",
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
            '1\tToy "Story"\t1995\tAnimation Children\'s Comedy\n2\tUnknown\tunkonwn\tunknown\n',
        )
        archive.writestr(
            f"{FOLDER}/ml-100k.inter",
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t2\t3\t20\n1\t1\t5\t10\n",
        )
    found = read_movielens(wheel)
    assert (found.users[0].age, found.users[0].occupation) == (24, "technician")
    assert (found.items[0].title, found.items[0].genre) == ('Toy "Story"', "Animation")
    assert (found.items[0].release_year, found.items[1].release_year) == (1995, None)
    np.testing.assert_array_equal(found.ratings.item_ids, [1, 2])
