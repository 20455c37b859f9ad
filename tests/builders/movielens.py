"""A small data set of the MovieLens example's shape."""

from pathlib import Path

import numpy as np

from movielens_din.data import Item, MovieLens, User, ratings_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "movielens"
HOUR_S = 3_600


def a_movielens(*, users: int = 30, items: int = 40, ratings: int = 1_200, seed: int = 7) -> MovieLens:
    """Users who like one of two genres, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    genres = ("Comedy", "Drama")
    people = tuple(
        User(number, 12 + number, ("F", "M")[number % 2], ("artist", "doctor", "student")[number % 3])
        for number in range(1, users + 1)
    )
    films = tuple(Item(number, f"Film {number}", 1990, genres[number % 2]) for number in range(1, items + 1))
    rows = []
    for row in range(ratings):
        user, item = int(generator.integers(1, users + 1)), int(generator.integers(1, items + 1))
        likes = user % 2 == item % 2
        rows.append((user, item, 5 if likes == bool(generator.random() < 0.9) else 2, row * HOUR_S))
    return MovieLens(people, films, ratings_of(rows))
