"""Rows of requests, the archive of clicks and a table of users in files, and what a pod would have answered for each row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from builders.batch_world import FakeModel, World
from builders.events import CLICK_FEATURES, DAY, HOUR, USER, Click, a_click_plan, clicks, to_columns
from builders.features import write_table
from tidegate_dataplane.contract import (
    AS_OF,
    FeaturePlan,
    FeatureTable,
    FieldRef,
    Lookup,
    LookupType,
    TensorSpec,
)
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.features.convert import open_parquet_tables
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.stored_events import StoredEvents

NOW = 1_700_000_000_000
STREAM = clicks(max_events=8, ttl_ms=2 * DAY)
AGE = Lookup(
    name="age",
    field=FieldRef(entity="user", table="profiles", column="age"),
    type=LookupType.INT64,
    default="-1",
)
ROWS = 40
USERS = 6
FEATURES = tuple(feature.name for feature in CLICK_FEATURES)


def a_plan(**table: Any) -> FeaturePlan:
    """The plan over the clicks, and a column of a table."""
    clicked = a_click_plan(STREAM)
    plan = clicked.model_copy(
        update={
            "tables": (FeatureTable(name="profiles", entity="user", uri="", **table),),
            "features": (*clicked.features, AGE),
            "outputs": (*clicked.outputs, TensorSpec(name="age", dtype="INT64", shape=(-1, 1))),
        }
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})


class FeatureWorld:
    """A table of requests, the archive of the clicks before and after them, and a table of users."""

    def __init__(self, folder: Path) -> None:
        draw = random.Random(5)
        self.world = World(
            folder,
            FakeModel(
                specs=(
                    TensorSpec(name="idle", dtype="FP32", shape=(-1, 1)),
                    TensorSpec(name="items", dtype="INT64", shape=(-1, 5)),
                    TensorSpec(name="bid", dtype="FP32", shape=(-1, 1)),
                )
            ),
        )
        self.models = folder / "models"
        self.events = [
            Click(
                draw.randrange(USERS),
                NOW + draw.randrange(-3 * DAY, HOUR),
                number,
                number % 2,
                draw.random(),
                draw.choice(["home", "ä", "search"]),
            )
            for number in range(300)
        ]
        self.users = [draw.randrange(USERS + 1) for _ in range(ROWS)]
        self.times = [NOW - draw.randrange(DAY) for _ in range(ROWS)]
        (self.models / "events").mkdir(parents=True)
        for number in range(3):
            self.write_events(f"events/{number}.parquet", self.events[number::3])
        ages = {"user_id": list(range(USERS)), "age": [20 + user for user in range(USERS)]}
        write_table(self.models / "users.parquet", **ages)
        self.write_rows(0, 23)
        self.write_rows(23, ROWS)

    def write_events(self, name: str, events: Sequence[Click]) -> None:
        columns = to_columns(events)
        pages = [page.decode() for page in columns["page"].tolist()]
        times = pa.array(columns["ts"], pa.timestamp("ms", tz="UTC"))
        table = pa.table({**columns, "page": pages, "ts": times, "unused": columns["ts"]})
        pq.write_table(table, self.models / name, row_group_size=20)

    def write_rows(self, start: int, end: int, **changed: Any) -> None:
        self.world.write(
            f"{start:02}.parquet",
            {
                "id": list(range(start, end)),
                "viewer": self.users[start:end],
                "shown_at": self.times[start:end],
                "position": pa.array(range(start, end), pa.int32()),
                "bid": [0.5] * (end - start),
                **changed,
            },
        )

    def order(self, plan: FeaturePlan | None = None, **sources: str) -> dict[str, Any]:
        """The fields of a BatchOrder, with the folders and files of this world."""
        return {
            "keep": ("id", *FEATURES, "age"),
            "columns": ({"input": "user_id", "column": "viewer"},),
            "features": {
                "compute": "live",
                "plan": (plan or a_plan()).model_dump(),
                "event_time": "shown_at",
                "sources": {
                    "clicks": f"file://{self.models}/events",
                    "profiles": f"file://{self.models}/users.parquet",
                    **sources,
                },
            },
        }

    def score(self, index: int = 0, **changes: Any) -> None:
        self.world.score(index, **{**self.order(), **changes})

    def answer_online(self, row: int, folder: Path) -> dict[str, Any]:
        """What a pod would have answered at the row's time, from the events that it had stored by then."""
        plan, as_of = a_plan(), self.times[row]
        store = EventStore(folder, [STREAM], max_bytes=1 << 24)
        try:
            by_key: dict[bytes, list[bytes]] = {}
            for event in self.events:
                if event.ts <= as_of:
                    by_key.setdefault(event.key, []).append(event.row)
            after = StreamState(positions={"0": 1})
            store.store_events("clicks", by_key, before=StreamState(), after=after, now_ms=as_of)
            profiles = open_parquet_tables(plan, {"profiles": self.models / "users.parquet"})
            stored = {"clicks": StoredEvents(store, STREAM, USER.type)}
            inputs = {"user_id": self.users[row], "position": row, AS_OF: as_of}
            answered = FeatureEngine(plan, profiles, stored).compute_features(
                {name: np.array([[value]], dtype=np.int64) for name, value in inputs.items()}
            )
            return {name: values.reshape(-1) for name, values in answered.items()}
        finally:
            store.close_file()

    def bytes_of_rows(self) -> list[dict[str, bytes]]:
        """The features of all rows as they are in the results."""
        parts = [pq.read_table(path) for path in sorted(self.world.results.glob("part-*.parquet"))]
        rows: list[dict[str, bytes]] = []
        for table in parts:
            columns = {name: table.column(name).combine_chunks() for name in (*FEATURES, "age")}
            rows += [
                {name: _to_bytes(column[row]) for name, column in columns.items()}
                for row in range(table.num_rows)
            ]
        return rows


def _to_bytes(value: Any) -> bytes:
    kind = value.type.value_type if pa.types.is_fixed_size_list(value.type) else value.type
    values = value.as_py() if pa.types.is_fixed_size_list(value.type) else [value.as_py()]
    return np.array(values, dtype=kind.to_pandas_dtype()).tobytes()
