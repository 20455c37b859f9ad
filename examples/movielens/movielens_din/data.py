"""Reads MovieLens-100k out of the wheel, splits it by time and gives every row the history its user had then."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FOLDER: Final = "recbole/dataset_example/ml-100k"
HISTORY_LENGTH: Final = 50
LIKED_RATING: Final = 4.0
"""A rating of 4 or 5 stars is a positive label: 55 % of the ratings."""
TRAIN_SHARE: Final = 0.8
PADDING_ITEM: Final = 0
"""Item ids start at 1, so 0 marks an empty place in a history and an unknown item."""

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

    user_ids, item_ids: int64 [rows]; labels: float32 [rows], 1 where the film was liked;
    timestamps: int64 [rows], seconds since 1970.
    """

    user_ids: Ids
    item_ids: Ids
    labels: Labels
    timestamps: Ids

    def __len__(self) -> int:
        return len(self.user_ids)

    def rows(self, chosen: slice | NDArray[Any]) -> Ratings:
        """The chosen rows, in their order."""
        return Ratings(
            self.user_ids[chosen], self.item_ids[chosen], self.labels[chosen], self.timestamps[chosen]
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
                (int(row["user_id"]), int(row["item_id"]), float(row["rating"]), int(float(row["timestamp"])))
                for row in _rows(archive, "ml-100k.inter")
            ]
        )
    return MovieLens(users, items, ratings)


def ratings_of(rows: Sequence[tuple[int, int, float, int]]) -> Ratings:
    """Ratings from (user id, item id, stars, seconds since 1970), put in order of time."""
    ordered = sorted(rows, key=lambda row: (row[3], row[0], row[1]))
    return Ratings(
        user_ids=np.array([row[0] for row in ordered], dtype=np.int64),
        item_ids=np.array([row[1] for row in ordered], dtype=np.int64),
        labels=np.array([row[2] >= LIKED_RATING for row in ordered], dtype=np.float32),
        timestamps=np.array([row[3] for row in ordered], dtype=np.int64),
    )


def split_by_time(ratings: Ratings, train_share: float = TRAIN_SHARE) -> TimeSplit:
    """Cuts at one moment for everybody, as a model in production is trained on the past and asked about the future."""
    at = int(ratings.timestamps[int(len(ratings) * train_share)])
    cut = int(np.searchsorted(ratings.timestamps, at, side="left"))
    return TimeSplit(train=ratings.rows(slice(0, cut)), test=ratings.rows(slice(cut, None)), at=at)


def histories_before(ratings: Ratings, length: int = HISTORY_LENGTH) -> Ids:
    """For every row the films its user had liked strictly before it: int64 [rows, length], newest first, 0 pads.

    Ratings of the same second do not see each other: a person who rates a page of films at once would otherwise
    leak the answer.
    """
    out = np.full((len(ratings), length), PADDING_ITEM, dtype=np.int64)
    liked: dict[int, list[int]] = {}
    pending: dict[int, list[int]] = {}
    second: dict[int, int] = {}
    for row in range(len(ratings)):
        user, at = int(ratings.user_ids[row]), int(ratings.timestamps[row])
        if second.get(user) != at:
            liked.setdefault(user, []).extend(pending.pop(user, ()))
            second[user] = at
        newest = liked.get(user, [])[-length:][::-1]
        out[row, : len(newest)] = newest
        if ratings.labels[row] > 0:
            pending.setdefault(user, []).append(int(ratings.item_ids[row]))
    return out


def final_histories(ratings: Ratings, length: int = HISTORY_LENGTH) -> Mapping[int, tuple[int, ...]]:
    """For every user the films liked in all of these ratings, newest first, padded with 0 to `length`."""
    liked: dict[int, list[int]] = {}
    for user, item, label in zip(ratings.user_ids, ratings.item_ids, ratings.labels, strict=True):
        if label > 0:
            liked.setdefault(int(user), []).append(int(item))
    padding = (PADDING_ITEM,) * length
    return {user: (*reversed(items[-length:]), *padding)[:length] for user, items in liked.items()}


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
