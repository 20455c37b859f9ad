"""Online features over events against the same features computed afterwards: how many of them differ.

    python bench/feature_parity.py [--events 100000] [--impressions 20000] [--store redis] [--output FILE]

Replays MovieLens-100k (from the wheel recbole, shifted to end an hour ago) into a NATS stream, once in the order of time and once
shuffled within the lateness, and kills the ingester and the broker twice each on the way. Along the way it asks a real Triton for
the features of impressions, as of their times; then it computes the rows of the same impressions from a file of all events, by
`compute_parquet`, and compares the bytes. At last an event in the future is published, and the last impressions asked again.
With --store redis the events are in a Redis, which is killed twice as well.

Prints one JSON document; exits 1 if a feature differs, an event was refused, or was counted twice or not at all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness.event_pod import STREAM, SUBJECT, EventPod, running_pod, say
from numpy.typing import NDArray

from builders.events import DAY, HOUR, MINUTE
from builders.features import compute_parquet, write_table
from movielens_din.archive import cache_root, fetch_wheel
from movielens_din.data import read_movielens
from tidegate_dataplane.contract import (
    AS_OF,
    Aggregate,
    Bucketize,
    Cross,
    Entity,
    EntityKeyType,
    EventField,
    EventFieldType,
    EventSequence,
    EventStream,
    Feature,
    FeaturePlan,
    FieldRef,
    NatsEvents,
    Ratio,
    TensorSpec,
    TimeSince,
    ValueOrigin,
    Window,
    WindowRef,
)

USER = Entity(name="user", key="user_id", type=EntityKeyType.INT64)
ITEM = Entity(name="item", key="item_id", type=EntityKeyType.INT64)
LATENESS_MS = HOUR
PORTIONS = 20
KILL_INGESTER, KILL_BROKER, KILL_REDIS = (3, 9), (6, 13), (5, 11)
"""Portions during which a process is killed."""


def make_plan(url: str) -> FeaturePlan:
    """Return a plan over the ratings of each user and of each item."""
    nats = NatsEvents(url=url, stream=STREAM, subject=SUBJECT)
    common: dict[str, Any] = {
        "nats": nats,
        "event_time": "ts",
        "lateness_ms": LATENESS_MS,
        "ttl_ms": 1000 * DAY,
        "max_events": 1024,
    }
    liked = EventField(name="liked", type=EventFieldType.INT64)
    rating = EventField(name="rating", type=EventFieldType.FLOAT64)
    by_user = EventStream(
        name="ratings",
        entity="user",
        fields=(EventField(name="item_id", type=EventFieldType.INT64), rating, liked),
        **common,
    )
    by_item = EventStream(name="item_ratings", entity="item", fields=(rating, liked), **common)

    def of(stream: str, column: str) -> FieldRef:
        entity = "user" if stream == "ratings" else "item"
        return FieldRef(entity=entity, origin=ValueOrigin.STREAM, stream=stream, column=column)

    def window(stream: str, column: str, aggregate: Aggregate, over_ms: int, every_ms: int = 0) -> WindowRef:
        return WindowRef(field=of(stream, column), aggregate=aggregate, over_ms=over_ms, every_ms=every_ms)

    features: tuple[Feature, ...] = (
        EventSequence(name="hist_items", field=of("ratings", "item_id"), last=50),
        EventSequence(name="hist_ratings", field=of("ratings", "rating"), last=50),
        Window(name="rated_1d", window=window("ratings", "item_id", Aggregate.COUNT, DAY)),
        Window(
            name="mean_30d", window=window("ratings", "rating", Aggregate.MEAN, 30 * DAY, MINUTE), default="3"
        ),
        Ratio(
            name="user_likes",
            numerator=window("ratings", "liked", Aggregate.SUM, 30 * DAY),
            denominator=window("ratings", "liked", Aggregate.COUNT, 30 * DAY),
            prior=0.55,
            weight=20,
        ),
        Window(name="item_mean", window=window("item_ratings", "rating", Aggregate.MEAN, 30 * DAY)),
        Window(name="item_sum", window=window("item_ratings", "rating", Aggregate.SUM, 7 * DAY)),
        TimeSince(name="idle", entity="user", stream="ratings"),
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
    floats = {"hist_ratings", "mean_30d", "user_likes", "item_mean", "item_sum", "idle"}
    plan = FeaturePlan(
        entities=(USER, ITEM),
        streams=(by_user, by_item),
        features=features,
        inputs=tuple(TensorSpec(name=entity.key, dtype="INT64", shape=(-1, 1)) for entity in (USER, ITEM)),
        outputs=tuple(
            TensorSpec(
                name=feature.name,
                dtype="FP32" if feature.name in floats else "INT64",
                shape=(-1, feature.last if isinstance(feature, EventSequence) else 1),
            )
            for feature in features
        ),
    )
    return plan.model_copy(update={"hash": plan.compute_digest()})


@dataclass(frozen=True, slots=True)
class Events:
    """All events in the order of their times, [n] each; times in milliseconds since 1970."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    ratings: NDArray[np.float64]
    times: NDArray[np.int64]

    def message(self, position: int) -> Mapping[str, Any]:
        """Return what a producer sends."""
        rating = float(self.ratings[position])
        return {
            "user_id": int(self.users[position]),
            "item_id": int(self.items[position]),
            "rating": rating,
            "liked": int(rating >= 4),
            "ts": int(self.times[position]),
        }


def load_events(count: int) -> Events:
    """Return the last `count` ratings, shifted to end an hour ago."""
    ratings = read_movielens(fetch_wheel(cache_root())).ratings.rows(slice(-count, None))
    times = ratings.timestamps * 1000
    random = np.random.default_rng(3)
    return Events(
        ratings.user_ids,
        ratings.item_ids,
        # Numbers whose sums depend on the order in which they are added.
        np.round(ratings.labels * 2 + 2.5 + random.random(len(times)), 3),
        times + (int(time.time() * 1000) - HOUR - int(times[-1])),
    )


@dataclass(frozen=True, slots=True)
class Impressions:
    """Rows to compute features for, [n] each."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    times: NDArray[np.int64]

    @property
    def inputs(self) -> Mapping[str, NDArray[np.int64]]:
        """Return the inputs of a request."""
        return {"user_id": self.users, "item_id": self.items, AS_OF: self.times}


def choose_impressions(events: Events, after: int, until: int, count: int, seed: int) -> Impressions:
    """Return rows of users and items with events between the times, as of times between them."""
    random = np.random.default_rng(seed)
    chosen = np.flatnonzero((events.times > after) & (events.times <= until))
    rows = random.choice(chosen, count) if len(chosen) else random.integers(0, len(events.times), count)
    times = np.clip(events.times[rows] + random.integers(-2, 3, count), after + 1, until)
    return Impressions(events.users[rows], events.items[random.permutation(rows)], times)


def replay(
    pod: EventPod, events: Events, arrival: NDArray[np.float64], total: int
) -> tuple[list[Impressions], list[Mapping[str, NDArray[Any]]], int]:
    """Publish in the order of `arrival`, ask on the way, and return what was asked and answered, and the kills."""
    order = np.argsort(arrival, kind="stable")
    asked: list[Impressions] = []
    answers: list[Mapping[str, NDArray[Any]]] = []
    kills = 0
    settled = int(events.times[0]) - 1
    read = 0
    for number, portion in enumerate(np.array_split(order, PORTIONS)):
        read += len(portion)
        pod.publish([events.message(int(position)) for position in portion])
        if number in KILL_INGESTER:
            pod.ingester.kill()
            pod.ingester.start()
            kills += 1
        if number in KILL_BROKER:
            pod.broker.kill()
            pod.broker.start()
            kills += 1
        if pod.redis is not None and number in KILL_REDIS:
            pod.redis.kill()
            pod.redis.start()
            kills += 1
        pod.wait_until_stored()
        # Whatever arrives later has a later time.
        rest = order[read:]
        horizon = int(events.times[rest].min()) - 1 if len(rest) else int(events.times[-1])
        if horizon > settled:
            rows = choose_impressions(events, settled, horizon, total // PORTIONS, seed=number)
            asked.append(rows)
            answers.append(pod.ask(rows.inputs))
            settled = horizon
        say(f"  {number + 1} of {PORTIONS} portions, {sum(len(rows.users) for rows in asked)} impressions")
    return asked, answers, kills


def compute_offline(plan: FeaturePlan, events: Events, rows: Impressions, folder: Path) -> Any:
    """Return the table of the same rows, computed from a file of all events."""
    path = write_table(
        folder / "events.parquet",
        user_id=events.users,
        item_id=events.items,
        rating=events.ratings,
        liked=(events.ratings >= 4).astype(np.int64),
        ts=events.times,
    )
    labels = write_table(
        folder / "labels.parquet", user_id=rows.users, item_id=rows.items, shown_at=rows.times
    )
    output = folder / "features.parquet"
    files = {stream.name: path for stream in plan.streams}
    compute_parquet(plan, {}, labels, output, events=files, time_column="shown_at")
    return pq.read_table(output)


def count_differences(
    plan: FeaturePlan, online: Mapping[str, NDArray[Any]], offline: Any
) -> Mapping[str, int]:
    """Return by feature the number of rows of which some bit differs."""
    differences: dict[str, int] = {}
    for spec in plan.outputs:
        values = online[spec.name]
        column = np.array(offline.column(spec.name).to_pylist(), dtype=values.dtype).reshape(values.shape)
        bits = np.int64 if values.dtype == np.int64 else np.int32
        different = values.view(bits) != column.view(bits)
        differences[spec.name] = int(different.any(axis=1).sum())
    return differences


def run_arm(events: Events, arrival: NDArray[np.float64], total: int, *, in_redis: bool) -> Mapping[str, Any]:
    """Replay once and compare; return the figures."""
    with running_pod(make_plan, in_redis=in_redis) as pod:
        pod.serve_plan()
        asked, answers, kills = replay(pod, events, arrival, total)
        last = answers[-1]
        some = events.message(0)
        # A minute ahead at most is taken, for clocks that differ.
        ahead = int(time.time() * 1000) + 30_000
        pod.publish([{**some, "user_id": int(user), "ts": ahead} for user in np.unique(asked[-1].users)])
        pod.wait_until_stored()
        again = pod.ask(asked[-1].inputs)
        reports = pod.read_reports()
        plan, published = pod.plan, pod.published
    rows = Impressions(
        *(
            np.concatenate([getattr(portion, name) for portion in asked])
            for name in ("users", "items", "times")
        )
    )
    online = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    with tempfile.TemporaryDirectory() as folder:
        differences = count_differences(plan, online, compute_offline(plan, events, rows, Path(folder)))
    return {
        "events": len(events.times),
        "impressions": len(rows.users),
        "features": len(plan.outputs),
        "values": int(sum(values.size for values in online.values())),
        "rows_that_differ": dict(differences),
        "changed_by_the_future": sum(int((last[name] != again[name]).any(axis=1).sum()) for name in last),
        "killed": kills,
        "stored_too_many": {report.source: report.stored - published for report in reports},
        "refused": {report.source: sum(report.refused.values()) for report in reports},
    }


def main() -> int:
    """Replay in both orders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000, help="the newest of so many ratings")
    parser.add_argument("--impressions", type=int, default=20_000, help="rows to compare, of each order")
    parser.add_argument("--store", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    events = load_events(options.events)
    delays = np.random.default_rng(4).uniform(0, LATENESS_MS - 1_000, len(events.times))
    arms: Mapping[str, NDArray[np.float64]] = {
        "in order": events.times.astype(np.float64),
        "shuffled": events.times + delays,
    }
    figures: dict[str, Any] = {}
    for name, arrival in arms.items():
        say(name)
        figures[name] = run_arm(events, arrival, options.impressions, in_redis=options.store == "redis")
    text = json.dumps(figures, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return int(any(_has_fault(arm) for arm in figures.values()))


def _has_fault(arm: Mapping[str, Any]) -> bool:
    counts: Sequence[int] = (
        *arm["rows_that_differ"].values(),
        *arm["stored_too_many"].values(),
        *arm["refused"].values(),
        arm["changed_by_the_future"],
    )
    return any(counts)


if __name__ == "__main__":
    sys.exit(main())
