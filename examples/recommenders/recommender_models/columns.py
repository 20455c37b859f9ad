"""Turn MovieLens' ratings into the columns that the models read: what was known of user and film just before each rating."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from movielens_din.data import MovieLens, Ratings

Inputs = dict[str, NDArray[Any]]
"""Of a model, by name; the first dimension of each is the rows."""
InputSpecs = Mapping[str, tuple[Any, tuple[int | str, ...]]]
"""Type and dimensions after the rows of each input; a name stands for a dimension that is free."""

HISTORY_LENGTH: Final = 50
SESSION_S: Final = 3600
SMOOTHING: Final = 20.0
"""Ratings of average value that are added to a mean, so that few ratings say little."""

USERS, ITEMS, GENRES, OCCUPATIONS, AGES = 1000, 1700, 20, 24, 7
AGE_BOUNDS: Final = (18, 25, 35, 45, 50, 56)
USER_COLUMNS: Final = {
    "user": USERS, "age": AGES, "gender": 3, "occupation": OCCUPATIONS, "age_x_gender": AGES * 3,
    "age_x_occupation": AGES * OCCUPATIONS, "activity": 16, "generosity": 12, "hour": 24, "weekday": 7,
    "last_liked_1": ITEMS, "last_liked_2": ITEMS, "last_liked_3": ITEMS,
}  # fmt: skip
ITEM_COLUMNS: Final = {"item": ITEMS, "genre": GENRES, "year": 80, "popularity": 16, "acclaim": 12}
CROSS_COLUMNS: Final = {
    "gender_x_genre": 3 * GENRES, "age_x_genre": AGES * GENRES, "occupation_x_genre": OCCUPATIONS * GENRES,
}  # fmt: skip
COLUMNS: Final = {**USER_COLUMNS, **ITEM_COLUMNS, **CROSS_COLUMNS}
"""Ids of every categorical column: how many entries its embedding needs."""
NUMBERS: Final = (
    "age", "user_ratings", "user_mean", "user_pause", "item_ratings", "item_mean", "item_age", "user_liked_genre",
)  # fmt: skip
"""Dense columns, each between about -1 and 3."""


@dataclass(frozen=True, slots=True)
class Events:
    """Ratings in order of time with what was known before each of them."""

    ids: dict[str, NDArray[np.int64]]
    """By column, int64 [rows]."""
    numbers: NDArray[np.float32]
    """float32 [rows, len(NUMBERS)]."""
    history: NDArray[np.int64]
    """Films that the user had liked, newest first, 0 where there is none: int64 [rows, HISTORY_LENGTH]."""
    liked: NDArray[np.float32]
    """float32 [rows]: the user gave at least 4 stars."""
    stayed: NDArray[np.float32]
    """float32 [rows]: the user rated another film within an hour."""

    def __len__(self) -> int:
        return len(self.liked)

    def select_rows(self, rows: slice | NDArray[Any]) -> Events:
        """Return these rows."""
        return Events(
            {name: column[rows] for name, column in self.ids.items()},
            self.numbers[rows],
            self.history[rows],
            self.liked[rows],
            self.stayed[rows],
        )


@dataclass(slots=True)
class _Past:
    """What one user, film or taste has done so far."""

    ratings: int = 0
    liked: float = 0.0
    last_s: int = 0

    @property
    def mean(self) -> float:
        """Return the smoothed share of liked ratings."""
        return (self.liked + 0.55 * SMOOTHING) / (self.ratings + SMOOTHING)

    def add_rating(self, label: float, at_s: int) -> None:
        """Count one more rating."""
        self.ratings, self.liked, self.last_s = self.ratings + 1, self.liked + label, at_s


@dataclass(slots=True)
class _Pasts:
    users: defaultdict[int, _Past] = field(default_factory=lambda: defaultdict(_Past))
    items: defaultdict[int, _Past] = field(default_factory=lambda: defaultdict(_Past))
    tastes: defaultdict[tuple[int, int], _Past] = field(default_factory=lambda: defaultdict(_Past))
    """By user and genre."""


def read_events(data: MovieLens) -> Events:
    """Return all ratings as events."""
    ratings = data.ratings
    history = list_histories(ratings, HISTORY_LENGTH)
    users = {user.user_id: user for user in data.users}
    items = {item.item_id: item for item in data.items}
    genres = {name: number for number, name in enumerate(sorted({item.genre for item in data.items}), 1)}
    jobs = {name: number for number, name in enumerate(sorted({user.occupation for user in data.users}), 1)}
    pasts = _count_pasts(ratings, np.array([genres[items[int(item)].genre] for item in ratings.item_ids]))
    people = [users[int(user)] for user in ratings.user_ids]
    films = [items[int(item)] for item in ratings.item_ids]
    years = np.array([film.release_year or 1990 for film in films])
    ids = {
        "user": ratings.user_ids,
        "age": np.searchsorted(AGE_BOUNDS, [user.age for user in people], side="right"),
        "gender": np.array([{"F": 1, "M": 2}.get(user.gender, 0) for user in people]),
        "occupation": np.array([jobs[user.occupation] for user in people]),
        "activity": _bucket_counts(pasts[:, 0]),
        "generosity": (pasts[:, 1] * 11).astype(np.int64),
        "hour": ratings.timestamps // 3600 % 24,
        "weekday": ratings.timestamps // 86_400 % 7,
        **{f"last_liked_{number + 1}": history[:, number] for number in range(3)},
        "item": ratings.item_ids,
        "genre": np.array([genres[film.genre] for film in films]),
        "year": np.clip(years - 1920, 0, 79),
        "popularity": _bucket_counts(pasts[:, 3]),
        "acclaim": (pasts[:, 4] * 11).astype(np.int64),
    }
    for first, second in (("age", "gender"), ("age", "occupation"), ("gender", "genre"), ("age", "genre")):
        ids[f"{first}_x_{second}"] = ids[first] * COLUMNS[second] + ids[second]
    ids["occupation_x_genre"] = ids["occupation"] * GENRES + ids["genre"]
    numbers = [
        np.array([user.age for user in people]) / 50,
        np.log1p(pasts[:, 0]) / 3,
        pasts[:, 1],
        np.log1p(pasts[:, 2]) / 6,
        np.log1p(pasts[:, 3]) / 3,
        pasts[:, 4],
        (1998 - years) / 20,
        pasts[:, 5],
    ]
    return Events(
        # A hash by remainder, which changes nothing in MovieLens-100k.
        {name: ids[name].astype(np.int64) % entries for name, entries in COLUMNS.items()},
        np.stack(numbers, axis=1).astype(np.float32),
        history % ITEMS,
        ratings.labels,
        _read_stayed(ratings),
    )


def list_histories(ratings: Ratings, length: int) -> NDArray[np.int64]:
    """Return for each rating the films that its user had liked strictly before it, newest first: [rows, length], 0 pads.

    Ratings of the same second do not see each other: a person who rates a page of films at once would otherwise leak
    the answer.
    """
    histories = np.zeros((len(ratings), length), dtype=np.int64)
    liked: dict[int, list[int]] = {}
    pending: dict[int, list[int]] = {}
    second: dict[int, int] = {}
    labels = ratings.labels
    for row in range(len(ratings)):
        user, at = int(ratings.user_ids[row]), int(ratings.timestamps[row])
        if second.get(user) != at:
            liked.setdefault(user, []).extend(pending.pop(user, ()))
            second[user] = at
        newest = liked.get(user, [])[-length:][::-1]
        histories[row, : len(newest)] = newest
        if labels[row] > 0:
            pending.setdefault(user, []).append(int(ratings.item_ids[row]))
    return histories


def _count_pasts(ratings: Ratings, genres: NDArray[Any]) -> NDArray[np.float64]:
    """Return for each rating: the user's ratings, mean and pause in minutes, the film's ratings and mean, the taste's mean.

    Ratings of the same user and second are counted after all of them, as in the histories.
    """
    counted = np.zeros((len(ratings), 6))
    pasts = _Pasts()
    labels = ratings.labels
    start = 0
    for stop in range(1, len(ratings) + 1):
        if stop < len(ratings) and ratings.timestamps[stop] == ratings.timestamps[start]:
            continue
        rows = range(start, stop)
        for row in rows:
            user, item = int(ratings.user_ids[row]), int(ratings.item_ids[row])
            own, film, taste = pasts.users[user], pasts.items[item], pasts.tastes[user, int(genres[row])]
            pause = (int(ratings.timestamps[row]) - own.last_s) / 60 if own.ratings else 0.0
            counted[row] = own.ratings, own.mean, pause, film.ratings, film.mean, taste.mean
        for row in rows:
            user, item = int(ratings.user_ids[row]), int(ratings.item_ids[row])
            for past in (pasts.users[user], pasts.items[item], pasts.tastes[user, int(genres[row])]):
                past.add_rating(float(labels[row]), int(ratings.timestamps[row]))
        start = stop
    return counted


def _bucket_counts(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0 for none, 1 for one, 2 for two or three, 3 for four to seven and so on."""
    return np.asarray(np.floor(np.log2(counts + 1)), dtype=np.int64)


def _read_stayed(ratings: Ratings) -> NDArray[np.float32]:
    stayed = np.zeros(len(ratings), dtype=np.float32)
    order = np.lexsort((ratings.timestamps, ratings.user_ids))
    users, times = ratings.user_ids[order], ratings.timestamps[order]
    goes_on = (users[1:] == users[:-1]) & (times[1:] - times[:-1] <= SESSION_S)
    stayed[order[:-1]] = goes_on
    return stayed
