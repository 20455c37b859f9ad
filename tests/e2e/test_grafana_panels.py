"""Every query of every panel has series in the local cluster's own Prometheus, with the chart's rules in it, while all kinds of work go on."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.http_call import read_page
from builders.live_features import stream_source
from builders.nearline import nearline_spec
from builders.probe_model import publish_slow
from fixtures.grafana import every_query, series, without_series
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load
from fixtures.installed_stream import a_broker
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, a_message

pytestmark = [
    pytest.mark.slow(
        "ten kinds of work until each query has a series; names and syntax are checked in component/"
    ),
    pytest.mark.alone("takes the node of pools, and most of the machine"),
]

NO_GPU: Final = "no real GPU: Triton tells nothing of one"
NO_MPS: Final = "no node agent: nobody shares a GPU under MPS"
CANNOT: Final[Mapping[str, str]] = {
    "pool: GPU utilisation": NO_GPU,
    "pool: GPU memory in use": NO_GPU,
    "pool: Daemons responding": NO_MPS,
    "pool: Daemons not responding": NO_MPS,
    "pool: Clients": NO_MPS,
    "pool: MPS servers by state": NO_MPS,
    "pool: Requests that shared spares answer": "no spare: the pool has one node",
    "allocation: Forecast by Inference": "no forecast: it takes a day of history",
}
"""Panels that are empty on this cluster, and why; one that is not is a mistake here."""
PATIENCE_S: Final = 150.0
"""Budgets are recorded once in a minute; the rest is for two cores that have other work beside it."""
CLAIM: Final = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "kept"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
ROWS, ROUNDS, MESSAGES = 300_000, 10_000, 2_000
EVENTS, CLICKS = "EVENTS", "events.clicks"
EACH: Final = 4.0
"""x of a row: 64 of them take the slow model a tenth of a second, all of them minutes, also where nothing else is at work."""


@contextmanager
def all_kinds_of_work(space: Space) -> Generator[OwnPool]:
    """A pool whose slices move to a model that is asked, a release, a stream, events, a batch, and samples; each goes on for minutes."""
    space.publish("probe", 1)
    publish_slow(space.folder("slow"), 1, rounds=ROUNDS)
    space.kubectl.apply(json.dumps(CLAIM), space.namespace)
    policy = {"mode": "Auto", "interval": "2s", "dwell": "10s"}
    with (
        an_own_pool(space, "panels", "Auto", policy=policy) as pool,
        a_broker(space, "stream") as (url, work),
    ):
        home = {
            "scaling": {"minReplicas": 1, "maxReplicas": 2},
            "slo": {"latencyP99": "500ms"},
            "logging": {"sample": "1", "sink": {"files": {"uri": "pvc://kept/samples"}}},
        }
        space.apply("Inference", "home", pool.model("probe", 4, **home))
        space.apply("Inference", "next", pool.model("probe", 50, replicas=1))
        space.apply("Inference", "stream", _stream(pool, url))
        space.apply("Inference", "batch", _batch(space))
        work.nats.make_stream(EVENTS, CLICKS)
        space.apply("FeatureCompute", "live", _live_features(space, url))
        try:
            space.apply("ModelAccess", "home", _released())
            space.ready(
                "inference/home",
                "inference/next",
                "inference/stream",
                "modelaccess/home",
                "featurecompute/live",
            )
            work.publish([a_message(1, f"job-{number}") for number in range(MESSAGES)])
            with paced_load(space, "home"):
                yield pool
        finally:
            # A Job whose pod ends waits to make the next one, which it may not in a namespace that ends: neither would ever be gone.
            space.kubectl.run("delete", "inference", "batch", "-n", space.namespace)


def _released() -> Mapping[str, Any]:
    """Half of the requests go to the next model, for longer than the test lasts."""
    targets = [{"inference": "home", "weight": 100}, {"inference": "next", "weight": 0}]
    check = {"metric": "ErrorRate", "max": "0.5", "minRequests": 200}
    return {
        "routes": [{"name": "default", "targets": targets, "timeout": "10s"}],
        "release": {
            "route": "default",
            "target": "next",
            "steps": [50],
            "interval": "30m",
            "checks": [check],
        },
    }


def _stream(pool: OwnPool, url: str) -> Mapping[str, Any]:
    nearline = nearline_spec(
        nats={"url": url, "stream": STREAM, "subject": SUBJECT},
        bucket={"bucket": BUCKET},
        deadLetters={"subject": DEAD},
        maxDelay="10m",
    )
    return pool.model("slow", 5, tier="nearline", nearline=nearline, replicas=1)


def _live_features(space: Space, url: str) -> Mapping[str, Any]:
    """A feature over a stream without events, and one of a table that nothing refuses: lag and counters have series all the same."""
    folder = space.folder("profiles")
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"user_id": [1, 2], "age": [20, 30]}), folder / "users.parquet")
    table = {"uri": f"{space.uri('profiles')}/users.parquet", "refresh": "10s"}
    return {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            stream_source(nats={"url": url, "stream": EVENTS, "subject": CLICKS}),
            {"name": "profiles", "entity": "user", "table": table},
        ],
        "features": [
            {"name": "clicks_1h", "window": {"field": "clicks.click", "aggregate": "Count", "over": "1h"}},
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}},
        ],
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "replicas": 1,
    }


def _batch(space: Space) -> Mapping[str, Any]:
    folder = space.folder("table")
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"user_id": pa.array(range(ROWS), pa.int64()), "x": pa.array([EACH] * ROWS, pa.float32())}
    pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=3_000)
    return {
        "model": {"name": "probe", "uri": space.uri("slow"), "version": "1"},
        "tier": "offline",
        "replicas": 1,
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "batching": {"maxBatchSize": 64},
        "batch": {
            "input": {"uri": space.uri("table")},
            "output": {"uri": "pvc://kept/scores", "keep": ["user_id"], "rowsPerFile": 2_500},
            "shards": 1,
        },
    }


def look_at_the_dashboard(space: Space) -> None:
    """So that somebody has."""
    assert read_page(f"http://{space.installed.endpoints.dashboard}/")


def test_every_query_of_every_panel_has_series_but_those_that_cannot(space: Space) -> None:
    address = space.installed.endpoints.prometheus
    assert address is not None, "the local cluster has a Prometheus"
    url = f"http://{address}"
    asked = every_query()
    assert {*CANNOT} <= {each.name for each in asked}
    with all_kinds_of_work(space) as pool:
        look_at_the_dashboard(space)
        chosen = {"namespace": space.namespace, "pool": pool.name}
        can = [each for each in asked if each.name not in CANNOT]
        missing = without_series(url, can, PATIENCE_S, **chosen)
        assert sorted({each.name for each in missing}) == []
        # So that the rest can fail: one wrong letter, and everything else as it is.
        slices = next(each.chosen(**chosen) for each in asked if each.name == "pool: Slices by tier")
        assert series(url, slices) != []
        assert series(url, slices.replace("tidegate_pool_tier_slices", "tidegate_pool_tier_slicse")) == []
        cannot = [each for each in asked if each.name in CANNOT]
        assert [each.name for each in cannot if series(url, each.chosen(**chosen))] == []
