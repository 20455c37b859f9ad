"""The example's data: what is read, and the split in time."""

import zipfile
from pathlib import Path

import numpy as np

from builders.movielens import a_movielens
from movielens_din.data import FOLDER, ratings_of, read_movielens, split_by_time


def test_ratings_are_in_order_of_time_and_liked_from_four_stars_on() -> None:
    ratings = ratings_of([(1, 10, 3, 20), (2, 11, 4, 10), (1, 12, 5, 30)])
    assert ratings.item_ids.tolist() == [11, 10, 12]
    assert ratings.labels.tolist() == [1.0, 0.0, 1.0]


def test_the_split_puts_one_moment_on_one_side() -> None:
    ratings = ratings_of([(user, 1, 5, second) for second in (1, 2, 3, 3, 3, 4) for user in (1,)])
    split = split_by_time(ratings, train_share=0.5)
    assert split.at == 3
    assert split.train.timestamps.tolist() == [1, 2]
    assert split.test.timestamps.tolist() == [3, 3, 3, 4]


def test_no_rating_of_training_is_as_late_as_a_test_row() -> None:
    split = split_by_time(a_movielens().ratings)
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
    np.testing.assert_array_equal(found.ratings.stars, [5, 3])
