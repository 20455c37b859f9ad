"""Builds streams of events as sources, and the features of each operation over them, for a test."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid


def stream_source(
    name: str = "clicks", *, kafka: dict[str, Any] | None = None, **stream: Any
) -> dict[str, Any]:
    """A source of entity user that is a stream; keywords lay over the stream, and `kafka` makes that the broker."""
    nats = {"url": "nats://nats.ads:4222", "stream": "EVENTS", "subject": "events.clicks"}
    topic = {"bootstrapServers": ["kafka.ads:9092"], "topic": "clicks"}
    body: dict[str, Any] = {
        "nats": nats,
        "eventTime": "ts",
        "fields": [
            {"name": "item_id", "type": "int64"},
            {"name": "click", "type": "int64"},
            {"name": "price", "type": "float64"},
            {"name": "page", "type": "string"},
        ],
    }
    if kafka is not None:
        body = {**body, "nats": None, "kafka": {**topic, **kafka}}
    return {"name": name, "entity": "user", "stream": overlaid({}, overlaid(body, stream))}


def live_features_spec(**changes: Any) -> dict[str, Any]:
    """A spec with a table, a stream, a field of the request and a feature of each operation over them."""
    clicks = {"field": "clicks.click", "aggregate": "Sum", "over": "24h"}
    spec: dict[str, Any] = {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "request": [{"name": "position", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": "file:///models/tables/users.parquet"}},
            stream_source(),
        ],
        "features": [
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}},
            {"name": "hist_items", "sequence": {"field": "clicks.item_id", "last": 50, "buckets": 16384}},
            {
                "name": "clicks_1h",
                "window": {"field": "clicks.click", "aggregate": "Sum", "over": "1h", "every": "1m"},
            },
            {
                "name": "ctr_1d",
                "ratio": {
                    "numerator": clicks,
                    "denominator": {**clicks, "aggregate": "Count"},
                    "prior": "0.02",
                    "weight": "100",
                },
            },
            {"name": "idle", "timeSince": {"source": "clicks"}},
            {"name": "idle_log", "log": {"field": "feature.idle"}},
            {"name": "idle_clip", "clip": {"field": "feature.idle", "min": 0, "max": 3600}},
            {"name": "idle_bucket", "bucketize": {"field": "feature.idle", "boundaries": [60, 3600]}},
            {"name": "place", "clip": {"field": "request.position", "min": 0, "max": 100}},
            {"name": "age_x_place", "cross": {"fields": ["feature.age", "request.position"], "buckets": 100}},
        ],
    }
    return overlaid(spec, changes)
