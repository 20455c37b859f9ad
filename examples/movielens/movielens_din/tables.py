"""Writes what FeatureCompute looks up: one Parquet file of users and one of films."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types

from movielens_din.data import Item, User

USERS: Final = "users.parquet"
ITEMS: Final = "items.parquet"
GENDERS: Final[Mapping[str, int]] = {"F": 1, "M": 2}
"""0 is left for somebody who is not in the table."""

Columns = dict[str, Any]
"""Arrow arrays by name; pyarrow publishes no types."""


def user_columns(users: Sequence[User]) -> Columns:
    """One row per user."""
    return {
        "user_id": pa.array([user.user_id for user in users], pa.int64()),
        "age": pa.array([user.age for user in users], pa.int64()),
        "gender": pa.array([user.gender for user in users], pa.string()),
        "gender_id": pa.array([GENDERS[user.gender] for user in users], pa.int64()),
        "occupation": pa.array([user.occupation for user in users], pa.string()),
    }


def item_columns(items: Sequence[Item]) -> Columns:
    """One row per film; `row` is its place in the item embedding, where 0 stands for a film nobody knows.

    MovieLens numbers its films from 1 without gaps, so the id serves as the row.
    """
    genres = {genre: number for number, genre in enumerate(sorted({item.genre for item in items}), start=1)}
    return {
        "item_id": pa.array([item.item_id for item in items], pa.int64()),
        "row": pa.array([item.item_id for item in items], pa.int64()),
        "genre": pa.array([item.genre for item in items], pa.string()),
        "genre_id": pa.array([genres[item.genre] for item in items], pa.int64()),
        "title": pa.array([item.title for item in items], pa.string()),
        "release_year": pa.array([item.release_year for item in items], pa.int64()),
    }


def write_tables(folder: Path, users: Sequence[User], items: Sequence[Item]) -> None:
    """Writes users.parquet and items.parquet, each appearing whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in ((USERS, user_columns(users)), (ITEMS, item_columns(items))):
        partial = folder / f".{name}.partial"
        pq.write_table(pa.table(columns), partial)
        partial.replace(folder / name)
