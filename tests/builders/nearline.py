"""`spec.nearline` for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any


def nearline_spec(
    *,
    nats: dict[str, Any] | None = None,
    kafka: dict[str, Any] | None = None,
    consume: dict[str, Any] | None = None,
    bucket: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The block in the API's spelling; keywords lay over its parts, and `kafka` makes that the broker."""
    if kafka is not None:
        topic = {"bootstrapServers": ["kafka.ads:9092"], "topic": "work", **kafka}
        store = {"url": "nats://nats.ads:4222", "bucket": "results", "ttl": "1h", **(bucket or {})}
        return {
            "consume": {"kafka": topic, **(consume or {})},
            "produce": {"store": {"nats": store}},
            "deadLetters": {"topic": "work-dead"},
            **changes,
        }
    server = {"url": "nats://nats.ads:4222", "stream": "WORK", "subject": "work.rank", **(nats or {})}
    return {
        "consume": {"nats": server, **(consume or {})},
        "produce": {"store": {"nats": {"bucket": "results", "ttl": "1h", **(bucket or {})}}},
        "deadLetters": {"subject": "dead.rank"},
        **changes,
    }
