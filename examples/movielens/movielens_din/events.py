"""The ratings as events: what a film service sends to a stream when somebody rates a film."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types

from movielens_din.data import Ids, Ratings

EVENTS: Final = "events.parquet"
TIME: Final = "ts"
COLUMNS: Final = ("user_id", TIME, "item_row", "stars")


class EventsError(RuntimeError):
    """A file has no events of this example."""


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
    columns = (ratings.user_ids, ratings.timestamps * 1000, ratings.item_ids, ratings.stars)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), partial)
    partial.replace(path)


def read_events(path: Path) -> list[dict[str, int]]:
    """The events of a file that `write_events` wrote, oldest first, at least one; `ts` in milliseconds since 1970.

    Raises EventsError when there is no such file, or it is not Parquet, has other columns or no rows.
    """
    if not path.is_file():
        raise EventsError(f"{path} is not a file; train.py writes it as DIR/{EVENTS}")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise EventsError(f"{path} cannot be read as Parquet: {error}") from error
    if set(table.column_names) != set(COLUMNS):
        raise EventsError(
            f"{path} has the columns {', '.join(table.column_names)}, not {', '.join(COLUMNS)}: "
            f"give the {EVENTS} of train.py"
        )
    rows: list[dict[str, int]] = table.to_pylist()
    if not rows:
        raise EventsError(f"{path} has no events; train.py writes 100,000")
    return rows
