"""The ratings as events: what a film service sends to a stream when somebody rates a film."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types

from movielens_din.data import Ids, Ratings

EVENTS: Final = "events.parquet"
TIME: Final = "ts"


def moments_before(ratings: Ratings) -> Ids:
    """The last millisecond before each rating, int64 [rows] since 1970: the features of a rating are those of then.

    Ratings of the same second do not see each other: a person who rates a page of films at once would otherwise
    leak the answer.
    """
    return ratings.timestamps * 1000 - 1


def write_events(path: Path, ratings: Ratings) -> None:
    """Writes one row per rating, oldest first, with the columns of an event; the file appears whole or not at all.

    MovieLens numbers its films from 1 without gaps, so the id is the film's row in the item embedding.
    """
    columns = {
        "user_id": ratings.user_ids,
        TIME: ratings.timestamps * 1000,
        "item_row": ratings.item_ids,
        "stars": ratings.stars,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(pa.table(columns), partial)
    partial.replace(path)


def read_events(path: Path) -> list[dict[str, int]]:
    """The events of a file that `write_events` wrote, oldest first; `ts` in milliseconds since 1970."""
    rows: list[dict[str, int]] = pq.read_table(path).to_pylist()
    return rows
