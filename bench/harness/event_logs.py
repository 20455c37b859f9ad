"""Events that really happened, with the features over them that a bench compares: ratings of films, and impressions of a shop."""

from __future__ import annotations

import csv
import io
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from builders.events import DAY, HOUR, MINUTE
from harness.event_pod import STREAM, SUBJECT
from movielens_din.archive import cache_root, downloaders, fetch_wheel, sha256_of
from movielens_din.data import read_movielens
from tidegate_dataplane.contract import (
    Aggregate,
    Bucketize,
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
    NatsEvents,
    Ratio,
    SessionMeasure,
    TensorSpec,
    TimeSince,
    ValueOrigin,
    Window,
    WindowRef,
)

LATENESS_MS: Final = HOUR
OBP: Final = "obp==0.4.1"
OBP_WHEEL: Final = "obp-0.4.1-py3-none-any.whl"
"""The newest release with a wheel; the Open Bandit Dataset's sample in it is licensed under CC BY 4.0 (ZOZO, Inc.)."""
OBP_SHA256: Final = "87dec9caf4283c25ab13036532e0a24566f1c7bdcad1653a8ded43b2f5ef8208"
OBP_LOGS: Final = tuple(
    (policy, campaign) for policy in ("bts", "random") for campaign in ("all", "men", "women")
)

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EventLog:
    """Events in the order of their times, and the plan of features over them.

    `columns` [n] have the fields that producers send, keys among them; `ts` in milliseconds since 1970. Strings are objects.
    """

    columns: Mapping[str, Column]
    keys: tuple[str, ...]
    """The columns that are keys: of a user, and of an item."""
    make_plan: Callable[[str], FeaturePlan]
    """Gets the URL of the broker that has the events."""

    @property
    def times(self) -> NDArray[np.int64]:
        """Return the times, [n]."""
        return self.columns["ts"]

    def message(self, position: int) -> Mapping[str, Any]:
        """Return what a producer sends."""
        return {
            name: column[position] if column.dtype == object else column[position].item()
            for name, column in self.columns.items()
        }


def read_ratings(count: int) -> EventLog:
    """Return the last `count` ratings of MovieLens-100k, from the wheel recbole, shifted to end an hour ago."""
    ratings = read_movielens(fetch_wheel(cache_root())).ratings.rows(slice(-count, None))
    random = np.random.default_rng(3)
    # Numbers whose sums depend on the order in which they are added.
    stars = np.round(ratings.labels * 2 + 2.5 + random.random(len(ratings.timestamps)), 3)
    columns: Mapping[str, Column] = {
        "user_id": ratings.user_ids,
        "item_id": ratings.item_ids,
        "rating": stars,
        "liked": (stars >= 4).astype(np.int64),
        "ts": _end_lately(ratings.timestamps * 1000),
    }
    return EventLog(columns, ("user_id", "item_id"), _plan_ratings)


def read_impressions(count: int) -> EventLog:
    """Return the last `count` logged impressions of the Open Bandit Dataset's sample, shifted to end an hour ago.

    60,000 in all, of a week, three campaigns and two policies; users are known by four features, whose texts are the key.
    """
    rows = sorted(_read_obp_rows(), key=lambda row: row[0])[-count:]
    times, users, items, clicked, positions, propensities, policies = zip(*rows, strict=True)
    columns: Mapping[str, Column] = {
        "user_id": np.array(users, dtype=object),
        "item_id": np.array(items, dtype=np.int64),
        "click": np.array(clicked, dtype=np.int64),
        "position": np.array(positions, dtype=np.int64),
        "propensity": np.array(propensities, dtype=np.float64),
        "policy": np.array(policies, dtype=object),
        "ts": _end_lately(np.array(times, dtype=np.int64)),
    }
    return EventLog(columns, ("user_id", "item_id"), _plan_impressions)


LOGS: Final[Mapping[str, Callable[[int], EventLog]]] = {
    "movielens": read_ratings,
    "open-bandit": read_impressions,
}


def _end_lately(times: NDArray[np.int64]) -> NDArray[np.int64]:
    return times + (int(time.time() * 1000) - HOUR - int(times[-1]))


def _read_obp_rows() -> Sequence[tuple[int, str, int, int, int, float, str]]:
    rows: list[tuple[int, str, int, int, int, float, str]] = []
    with zipfile.ZipFile(_fetch_obp(cache_root())) as wheel:
        for number, (policy, campaign) in enumerate(OBP_LOGS):
            with wheel.open(f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv") as file:
                for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
                    moment = datetime.fromisoformat(row["timestamp"])
                    rows.append(
                        (
                            int(moment.timestamp() * 1000),
                            "/".join(row[f"user_feature_{feature}"] for feature in range(4)),
                            # Each campaign numbers its items from 0.
                            number % 3 * 1000 + int(row["item_id"]),
                            int(row["click"]),
                            int(row["position"]),
                            float(row["propensity_score"]),
                            f"{policy}/{campaign}",
                        )
                    )
    return rows


def _fetch_obp(home: Path) -> Path:
    """Return the pinned wheel in the cache, downloaded if it is not there (1.3 MB)."""
    target = home / "downloads" / OBP_WHEEL
    if target.exists() and sha256_of(target) == OBP_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    for downloader in downloaders():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            # It is of older Pythons, and nothing of its code is run.
            options = ("--quiet", "--no-deps", "--ignore-requires-python", "--only-binary=:all:")
            command = [*downloader.command, "download", *options, "--dest", folder, OBP]
            subprocess.run(command, check=False, capture_output=True, timeout=300)
            wheel = Path(folder) / OBP_WHEEL
            if wheel.exists() and sha256_of(wheel) == OBP_SHA256:
                return wheel.replace(target)
    raise SystemExit(
        f"{OBP} could not be downloaded: put {OBP_WHEEL} (sha256 {OBP_SHA256}) into {target.parent}"
    )


def _plan_ratings(url: str) -> FeaturePlan:
    fields = {
        "item_id": EventFieldType.INT64,
        "rating": EventFieldType.FLOAT64,
        "liked": EventFieldType.INT64,
    }
    likes = _refer("ratings", "liked")
    features: tuple[Feature, ...] = (
        EventSequence(name="hist_items", field=_refer("ratings", "item_id"), last=50),
        EventSequence(name="hist_ratings", field=_refer("ratings", "rating"), last=50),
        Window(name="rated_1d", window=_window(_refer("ratings", "item_id"), Aggregate.COUNT, DAY)),
        Window(
            name="mean_30d",
            window=_window(_refer("ratings", "rating"), Aggregate.MEAN, 30 * DAY, MINUTE),
            default="3",
        ),
        _rate("user_likes", likes, 30 * DAY, prior=0.55),
        Window(name="item_mean", window=_window(_refer("of_item", "rating"), Aggregate.MEAN, 30 * DAY)),
        Window(name="item_sum", window=_window(_refer("of_item", "rating"), Aggregate.SUM, 7 * DAY)),
        *_features_of_time("ratings"),
    )
    floats = {"hist_ratings", "mean_30d", "user_likes", "item_mean", "item_sum", "idle"}
    streams = (_stream(url, "ratings", "user", fields), _stream(url, "of_item", "item", fields))
    return _make_plan(EntityKeyType.INT64, streams, features, floats)


def _plan_impressions(url: str) -> FeaturePlan:
    fields = {
        "item_id": EventFieldType.INT64,
        "click": EventFieldType.INT64,
        "position": EventFieldType.INT64,
        "propensity": EventFieldType.FLOAT64,
        "policy": EventFieldType.STRING,
    }
    of_item = {name: fields[name] for name in ("click", "propensity")}
    clicked = EventFilter(column="click", values=("1",))
    shown = _refer("shown", "item_id")
    features: tuple[Feature, ...] = (
        EventSequence(name="hist_items", field=shown, last=20),
        EventSequence(name="clicked_items", field=shown, last=5, pad="-1", filter=clicked),
        EventSequence(name="policies", field=_refer("shown", "policy"), last=10, buckets=64),
        Window(name="shown_1h", window=_window(shown, Aggregate.COUNT, HOUR)),
        Window(
            name="policies_1d", window=_window(_refer("shown", "policy"), Aggregate.DISTINCT, DAY, MINUTE)
        ),
        _rate("user_ctr", _refer("shown", "click"), 7 * DAY, prior=0.005),
        _rate("item_ctr", _refer("of_item", "click"), 7 * DAY, prior=0.005),
        Window(name="propensity", window=_window(_refer("of_item", "propensity"), Aggregate.MEAN, DAY)),
        EventSession(
            name="session", entity="user", stream="shown", gap_ms=30 * MINUTE, measure=SessionMeasure.EVENTS
        ),
        Dwell(name="dwell", entity="user", stream="shown", last=5, limit_ms=10 * MINUTE),
        *_features_of_time("shown"),
    )
    floats = {"user_ctr", "item_ctr", "propensity", "dwell", "idle"}
    streams = (_stream(url, "shown", "user", fields), _stream(url, "of_item", "item", of_item))
    return _make_plan(EntityKeyType.STRING, streams, features, floats)


def _features_of_time(stream: str) -> tuple[Feature, ...]:
    return (
        TimeSince(name="idle", entity="user", stream=stream),
        Bucketize(
            name="idle_bucket",
            field=FieldRef(origin=ValueOrigin.FEATURE, column="idle"),
            boundaries=(60, 3600, 86_400),
        ),
        Cross(
            name="idle_x_item",
            fields=(
                FieldRef(origin=ValueOrigin.FEATURE, column="idle_bucket"),
                FieldRef(entity="item", column="item_id"),
            ),
            buckets=100_000,
        ),
    )


def _stream(url: str, name: str, entity: str, fields: Mapping[str, EventFieldType]) -> EventStream:
    return EventStream(
        name=name,
        entity=entity,
        nats=NatsEvents(url=url, stream=STREAM, subject=SUBJECT),
        event_time="ts",
        # The key of the item is no field of its own stream.
        fields=tuple(
            EventField(name=field, type=kind)
            for field, kind in fields.items()
            if (entity, field) != ("item", "item_id")
        ),
        lateness_ms=LATENESS_MS,
        ttl_ms=1000 * DAY,
        # More than any key has: what the newest ones displace would depend on when a row is asked.
        max_events=4096,
    )


def _refer(stream: str, column: str) -> FieldRef:
    entity = "item" if stream == "of_item" else "user"
    return FieldRef(entity=entity, origin=ValueOrigin.STREAM, stream=stream, column=column)


def _window(field: FieldRef, aggregate: Aggregate, over_ms: int, every_ms: int = 0) -> WindowRef:
    return WindowRef(field=field, aggregate=aggregate, over_ms=over_ms, every_ms=every_ms)


def _rate(name: str, field: FieldRef, over_ms: int, *, prior: float) -> Ratio:
    return Ratio(
        name=name,
        numerator=_window(field, Aggregate.SUM, over_ms),
        denominator=_window(field, Aggregate.COUNT, over_ms),
        prior=prior,
        weight=20,
    )


def _make_plan(
    user_key: EntityKeyType,
    streams: tuple[EventStream, ...],
    features: tuple[Feature, ...],
    floats: set[str],
) -> FeaturePlan:
    user = Entity(name="user", key="user_id", type=user_key)
    item = Entity(name="item", key="item_id", type=EntityKeyType.INT64)
    dtypes = {EntityKeyType.INT64: "INT64", EntityKeyType.STRING: "BYTES"}
    plan = FeaturePlan(
        entities=(user, item),
        streams=streams,
        features=features,
        inputs=tuple(
            TensorSpec(name=entity.key, dtype=dtypes[entity.type], shape=(-1, 1)) for entity in (user, item)
        ),
        outputs=tuple(
            TensorSpec(
                name=feature.name,
                dtype="FP32" if feature.name in floats else "INT64",
                shape=(-1, feature.last if isinstance(feature, EventSequence | Dwell) else 1),
            )
            for feature in features
        ),
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})
