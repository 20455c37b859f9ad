"""Reads MovieLens-100k out of the wheel, and splits it by time."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FOLDER: Final = "recbole/dataset_example/ml-100k"
LIKED_STARS: Final = 4
"""A rating of 4 or 5 stars is a positive label: 55 % of the ratings."""
TRAIN_SHARE: Final = 0.8

Ids = NDArray[np.int64]
Labels = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class User:
    """One person who rated films."""

    user_id: int
    age: int
    gender: str
    occupation: str


@dataclass(frozen=True, slots=True)
class Item:
    """One film; genre is the first of those that the data set names."""

    item_id: int
    title: str
    release_year: int | None
    genre: str


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings in order of time, one row each.

    user_ids, item_ids: int64 [rows]; stars: int64 [rows], 1 to 5; timestamps: int64 [rows], seconds since 1970.
    """

    user_ids: Ids
    item_ids: Ids
    stars: Ids
    timestamps: Ids

    @property
    def labels(self) -> Labels:
        """float32 [rows]: 1 where the film was liked."""
        return (self.stars >= LIKED_STARS).astype(np.float32)

    def __len__(self) -> int:
        return len(self.user_ids)

    def rows(self, chosen: slice | NDArray[Any]) -> Ratings:
        """The chosen rows, in their order."""
        return Ratings(
            self.user_ids[chosen], self.item_ids[chosen], self.stars[chosen], self.timestamps[chosen]
        )


@dataclass(frozen=True, slots=True)
class MovieLens:
    """The parts of the data set that the example uses."""

    users: tuple[User, ...]
    items: tuple[Item, ...]
    ratings: Ratings


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Ratings before `at` (seconds since 1970) and from `at` on."""

    train: Ratings
    test: Ratings
    at: int


def read_movielens(wheel: Path) -> MovieLens:
    """Parses users, films and ratings from the recbole wheel."""
    with zipfile.ZipFile(wheel) as archive:
        users = tuple(
            User(int(row["user_id"]), int(row["age"]), row["gender"], row["occupation"])
            for row in _rows(archive, "ml-100k.user")
        )
        items = tuple(
            Item(int(row["item_id"]), row["movie_title"], _year(row["release_year"]), _genre(row["class"]))
            for row in _rows(archive, "ml-100k.item")
        )
        ratings = ratings_of(
            [
                (int(row["user_id"]), int(row["item_id"]), int(row["rating"]), int(float(row["timestamp"])))
                for row in _rows(archive, "ml-100k.inter")
            ]
        )
    return MovieLens(users, items, ratings)


def ratings_of(rows: Sequence[tuple[int, int, int, int]]) -> Ratings:
    """Ratings from (user id, item id, stars, seconds since 1970), put in order of time."""
    ordered = sorted(rows, key=lambda row: (row[3], row[0], row[1]))
    return Ratings(
        user_ids=np.array([row[0] for row in ordered], dtype=np.int64),
        item_ids=np.array([row[1] for row in ordered], dtype=np.int64),
        stars=np.array([row[2] for row in ordered], dtype=np.int64),
        timestamps=np.array([row[3] for row in ordered], dtype=np.int64),
    )


def split_by_time(ratings: Ratings, train_share: float = TRAIN_SHARE) -> TimeSplit:
    """Cuts at one moment for everybody, as a model in production is trained on the past and asked about the future."""
    at = int(ratings.timestamps[int(len(ratings) * train_share)])
    cut = int(np.searchsorted(ratings.timestamps, at, side="left"))
    return TimeSplit(train=ratings.rows(slice(0, cut)), test=ratings.rows(slice(cut, None)), at=at)


def _rows(archive: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    """Rows of one tab-separated file, with recbole's `:type` taken off the column names."""
    with archive.open(f"{FOLDER}/{name}") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE)
        header = [column.partition(":")[0] for column in next(reader)]
        for row in reader:
            yield dict(zip(header, row, strict=True))


def _year(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _genre(text: str) -> str:
    return text.split(" ")[0]
