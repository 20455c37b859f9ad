"""A plan over a stream of clicks, and the slow and plain way to its features."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate_dataplane.contract import (
    Aggregate,
    Bucketize,
    Clip,
    Cross,
    Dwell,
    Entity,
    EntityKeyType,
    EventField,
    EventFieldType,
    EventFilter,
    EventSequence,
    EventSession,
    EventStream,
    Feature,
    FeaturePlan,
    FieldRef,
    Hash,
    Log,
    NatsEvents,
    Ratio,
    RequestField,
    RequestFieldType,
    SessionMeasure,
    TensorSpec,
    TimeSince,
    ValueOrigin,
    Window,
    WindowRef,
)
from tidegate_dataplane.event_store.rows import encode_integer, merge_rows
from tidegate_dataplane.features.event_file import EventColumns, RecordedEvents
from tidegate_dataplane.features.hashing import hash_text

USER = Entity(name="user", key="user_id", type=EntityKeyType.INT64)
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NATS = NatsEvents(url="nats://broker:4222", stream="CLICKS", subject="clicks")


def clicks(**changes: Any) -> EventStream:
    """The stream: an item, whether it was clicked, a price and a page."""
    fields: dict[str, Any] = {
        "name": "clicks",
        "entity": "user",
        "nats": NATS,
        "event_time": "ts",
        "fields": (
            EventField(name="item_id", type=EventFieldType.INT64),
            EventField(name="click", type=EventFieldType.INT64),
            EventField(name="price", type=EventFieldType.FLOAT64),
            EventField(name="page", type=EventFieldType.STRING),
        ),
        "lateness_ms": MINUTE,
        "ttl_ms": 7 * DAY,
        "max_events": 64,
        **changes,
    }
    return EventStream(**fields)


def of_clicks(column: str) -> FieldRef:
    """A field of the clicks."""
    return FieldRef(entity="user", origin=ValueOrigin.STREAM, stream="clicks", column=column)


def of_feature(name: str) -> FieldRef:
    """Another feature."""
    return FieldRef(origin=ValueOrigin.FEATURE, column=name)


def of_request(name: str) -> FieldRef:
    """A field of the request."""
    return FieldRef(origin=ValueOrigin.REQUEST, column=name)


CLICKED = EventFilter(column="click", values=("1",))
AT_HOME = EventFilter(column="page", values=("home", "ä"))


def window(
    column: str,
    aggregate: Aggregate,
    over_ms: int,
    every_ms: int = 0,
    event_filter: EventFilter | None = None,
) -> WindowRef:
    """A window over the clicks."""
    return WindowRef(
        field=of_clicks(column), aggregate=aggregate, over_ms=over_ms, every_ms=every_ms, filter=event_filter
    )


CLICK_FEATURES: tuple[Feature, ...] = (
    EventSequence(name="items", field=of_clicks("item_id"), last=5, pad="-1"),
    EventSequence(name="prices", field=of_clicks("price"), last=3, pad="0.5"),
    EventSequence(name="pages", field=of_clicks("page"), last=4, buckets=100),
    Window(name="shown_1h", window=window("item_id", Aggregate.COUNT, HOUR)),
    Window(name="clicked_1h", window=window("click", Aggregate.SUM, HOUR, every_ms=MINUTE)),
    Window(name="spent_1d", window=window("price", Aggregate.SUM, DAY)),
    Window(name="mean_price", window=window("price", Aggregate.MEAN, DAY), default="2.5"),
    Window(name="low_price", window=window("price", Aggregate.MIN, DAY), default="-1"),
    Window(name="high_item", window=window("item_id", Aggregate.MAX, 10 * MINUTE), default="-1"),
    Window(name="last_item", window=window("item_id", Aggregate.LAST, 7 * DAY), default="-1"),
    Window(name="pages_1d", window=window("page", Aggregate.DISTINCT, DAY)),
    Ratio(
        name="ctr",
        numerator=window("click", Aggregate.SUM, DAY),
        denominator=window("click", Aggregate.COUNT, DAY),
        prior=0.02,
        weight=20,
    ),
    TimeSince(name="idle", entity="user", stream="clicks"),
    EventSequence(name="clicked_items", field=of_clicks("item_id"), last=4, filter=CLICKED),
    Window(
        name="clicked_at_home", window=window("price", Aggregate.MAX, DAY, event_filter=AT_HOME), default="-1"
    ),
    TimeSince(name="since_click", entity="user", stream="clicks", filter=CLICKED),
    EventSession(
        name="session_events",
        entity="user",
        stream="clicks",
        gap_ms=30 * MINUTE,
        measure=SessionMeasure.EVENTS,
    ),
    EventSession(
        name="session_seconds",
        entity="user",
        stream="clicks",
        gap_ms=30 * MINUTE,
        measure=SessionMeasure.SECONDS,
    ),
    Dwell(name="dwell", entity="user", stream="clicks", last=3, limit_ms=10 * MINUTE),
    Log(name="idle_log", field=of_feature("idle")),
    Clip(name="idle_minute", field=of_feature("idle"), minimum=0, maximum=60),
    Bucketize(name="idle_bucket", field=of_feature("idle"), boundaries=(1, 60, 3600)),
    Hash(name="position_hash", field=of_request("position"), buckets=50),
    Cross(name="last_x_position", fields=(of_feature("last_item"), of_request("position")), buckets=1000),
)


def a_click_plan(
    stream: EventStream | None = None, features: Sequence[Feature] = CLICK_FEATURES
) -> FeaturePlan:
    """A plan over the clicks, and the position of the request."""
    plan = FeaturePlan(
        entities=(USER,),
        streams=(stream or clicks(),),
        request=(RequestField(name="position", type=RequestFieldType.INT64),),
        features=tuple(features),
        inputs=(
            TensorSpec(name="user_id", dtype="INT64", shape=(-1, 1)),
            TensorSpec(name="position", dtype="INT64", shape=(-1, 1)),
        ),
        outputs=tuple(_describe(feature) for feature in features),
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})


@dataclass(frozen=True, slots=True, order=True)
class Click:
    """One event."""

    user: int
    ts: int
    item: int
    click: int
    price: float
    page: str

    @property
    def message(self) -> dict[str, Any]:
        """What producers send."""
        return {
            "user_id": self.user,
            "ts": self.ts,
            "item_id": self.item,
            "click": self.click,
            "price": self.price,
            "page": self.page,
        }

    @property
    def key(self) -> bytes:
        """The key in the store."""
        return encode_integer(self.user)

    @property
    def row(self) -> bytes:
        """The row in the store."""
        return struct.pack(
            "<qqqdQ", self.ts, self.item, self.click, self.price, hash_text(self.page.encode())
        )


def some_clicks(count: int, seed: int = 1) -> list[Click]:
    """Clicks of an hour that ended a minute ago, a few of each user, most of them in order."""
    order = random.Random(seed)
    first = int(time.time() * 1000) - HOUR - MINUTE
    return [
        Click(
            order.randrange(40),
            first + number * HOUR // count + order.randrange(-MINUTE // 3, MINUTE // 3),
            order.randrange(1000),
            order.randrange(2),
            order.randrange(10_000) / 64,
            order.choice(["home", "search"]),
        )
        for number in range(count)
    ]


def encode(events: Sequence[Click]) -> list[bytes]:
    """What producers send of them."""
    return [json.dumps(event.message).encode() for event in events]


def expected_rows(events: Sequence[Click], stream: EventStream) -> dict[bytes, bytes]:
    """The rows of each key that a store has after them."""
    keys = {event.key for event in events}
    return {
        key: merge_rows(
            b"",
            [event.row for event in events if event.key == key],
            row_bytes=8 * (1 + len(stream.fields)),
            limit=stream.max_events,
            after_ms=0,
            now_ms=int(time.time() * 1000),
        )
        for key in keys
    }


def to_columns(events: Sequence[Click]) -> Mapping[str, NDArray[Any]]:
    """The events as columns, as a file has them."""
    pages = np.empty(len(events), dtype=object)
    pages[:] = [event.page.encode() for event in events]
    return {
        "user_id": np.array([event.user for event in events], dtype=np.int64),
        "ts": np.array([event.ts for event in events], dtype=np.int64),
        "item_id": np.array([event.item for event in events], dtype=np.int64),
        "click": np.array([event.click for event in events], dtype=np.int64),
        "price": np.array([event.price for event in events], dtype=np.float64),
        "page": pages,
    }


def recorded(events: Sequence[Click], stream: EventStream | None = None) -> RecordedEvents:
    """The events as a source of the engine."""
    columns = to_columns(events)
    return RecordedEvents(stream or clicks(), USER, EventColumns(columns["user_id"], columns["ts"], columns))


def compute_plainly(events: Iterable[Click], user: int, as_of: int, stream: EventStream) -> dict[str, Any]:
    """The features over events of one row, in plain Python: what the engine has to answer."""
    seen = sorted(
        event for event in events if event.user == user and as_of - stream.ttl_ms < event.ts <= as_of
    )
    # The store orders events of one millisecond by the bits of their fields.
    seen.sort(key=lambda event: struct.unpack("<qqqqq", event.row))
    seen = seen[-stream.max_events :]

    def within(over_ms: int, every_ms: int = 0) -> list[Click]:
        end = as_of - as_of % every_ms if every_ms else as_of
        return [event for event in seen if end - over_ms < event.ts <= end]

    newest = seen[::-1]
    day, hour, recent = within(DAY), within(HOUR), within(10 * MINUTE)
    idle = np.float32((as_of - newest[0].ts) / 1000) if newest else np.float32(-1)
    clicked = sum(event.click for event in day)
    clicks = [event for event in newest if event.click == 1]
    session: list[Click] = []
    later_ms = as_of
    for event in newest:
        if later_ms - event.ts > 30 * MINUTE:
            break
        session, later_ms = [*session, event], event.ts
    dwell = [
        np.float32(min(later - event.ts, 10 * MINUTE) / 1000)
        for event, later in zip(newest, [as_of, *(event.ts for event in newest)], strict=False)
    ]
    return {
        "clicked_items": ([event.item for event in clicks] + [0] * 4)[:4],
        "clicked_at_home": [
            np.float32(max((event.price for event in day if event.page in ("home", "ä")), default=-1))
        ],
        "since_click": [np.float32((as_of - clicks[0].ts) / 1000) if clicks else np.float32(-1)],
        "session_events": [len(session)],
        "session_seconds": [np.float32((as_of - session[-1].ts) / 1000) if session else np.float32(0)],
        "dwell": (dwell + [np.float32(0)] * 3)[:3],
        "items": ([event.item for event in newest] + [-1] * 5)[:5],
        "prices": [np.float32(price) for price in ([event.price for event in newest] + [0.5] * 3)[:3]],
        "pages": ([1 + hash_text(event.page.encode()) % 99 for event in newest] + [0] * 4)[:4],
        "shown_1h": [len(hour)],
        "clicked_1h": [sum(event.click for event in within(HOUR, MINUTE))],
        "spent_1d": [sum(event.price for event in day)],
        "mean_price": [sum(event.price for event in day) / len(day) if day else 2.5],
        "low_price": [np.float32(min((event.price for event in day), default=-1))],
        "high_item": [max((event.item for event in recent), default=-1)],
        "last_item": [newest[0].item if newest else -1],
        "pages_1d": [len({event.page for event in day})],
        "ctr": [(clicked + 0.02 * 20) / (len(day) + 20)],
        "idle": [idle],
        "idle_log": [math.log1p(max(float(idle), 0.0))],
        "idle_minute": [np.float32(min(max(float(idle), 0.0), 60.0))],
        "idle_bucket": [sum(idle >= boundary for boundary in (1, 60, 3600))],
    }


APPROXIMATE = frozenset({"spent_1d", "mean_price", "ctr", "idle_log"})
"""Features whose floating-point numbers are added or computed in another way by `compute_plainly`."""


def _describe(feature: Feature) -> TensorSpec:
    floats = {"prices", "spent_1d", "mean_price", "low_price", "clicked_at_home", "session_seconds", "dwell"}
    is_float = feature.name in floats or isinstance(feature, Ratio | TimeSince | Log | Clip)
    length = feature.last if isinstance(feature, EventSequence | Dwell) else 1
    return TensorSpec(name=feature.name, dtype="FP32" if is_float else "INT64", shape=(-1, length))
