"""The record of a fleet: read as of another time, and its series at other steps."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.recorded.record import RecordedFleet, read_fleet
from tidegate.recorded.server import RecordedCluster
from tidegate.telemetry.prometheus_api import RangeSeries
from tidegate.telemetry.traffic_series import inference_query, release_query
from tidegate.web.charts import pool_query

POOL_QUERY = 'max by (tier) ({__name__=~"tidegate_pool_slices",pool="fleet"})'


def a_fleet(*values: tuple[float, str]) -> RecordedFleet:
    series: list[RangeSeries] = [{"metric": {"tier": "realtime"}, "values": list(values)}]
    return RecordedFleet(datetime.now(UTC), {}, {}, {"pool": series}, {})


def test_a_record_is_read_as_if_it_were_of_now() -> None:
    recorded, now = read_fleet(), datetime(2030, 5, 4, 3, 2, 1, tzinfo=UTC)
    shifted = read_fleet(now=now)
    assert shifted.time == now
    assert (
        recorded.bodies["inferences"][0]["metadata"]["name"]
        == shifted.bodies["inferences"][0]["metadata"]["name"]
    )
    [earlier, later] = [
        datetime.fromisoformat(fleet.bodies["inferences"][0]["metadata"]["creationTimestamp"])
        for fleet in (recorded, shifted)
    ]
    assert later - earlier == now - recorded.time
    [earlier_s, later_s] = [fleet.series["pool"][0]["values"][-1][0] for fleet in (recorded, shifted)]
    assert later_s - earlier_s == pytest.approx((now - recorded.time).total_seconds())
    assert timedelta(0) <= now - datetime.fromtimestamp(later_s, UTC) < timedelta(minutes=2)


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", *(gzip.compress(text, mtime=0) for text in (b"{", b'{"at": 3}', b"[]"))],
    ids=["empty", "no archive", "no JSON", "no time", "a list"],
)
def test_what_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.json.gz"
    path.write_bytes(content)
    with pytest.raises(PermanentError, match=r"fleet\.json\.gz is no record of a fleet"):
        read_fleet(path, now=datetime.now(UTC))
    with pytest.raises(PermanentError, match=r"missing\.gz is no record"):
        read_fleet(tmp_path / "missing.gz")


@pytest.mark.parametrize(
    ("window", "sampled"),
    [
        ((100.0, 120.0, 10.0), [(100.0, "1"), (110.0, "2"), (120.0, "3")]),
        ((105.0, 115.0, 5.0), [(105.0, "1"), (110.0, "2"), (115.0, "2")]),
        ((80.0, 100.0, 10.0), [(100.0, "1")]),
        ((120.0, 150.0, 10.0), [(120.0, "3"), (130.0, "3"), (140.0, "3")]),
        ((100.0, 160.0, 60.0), [(100.0, "1"), (160.0, "3")]),
    ],
    ids=["as recorded", "finer", "before it", "after it", "coarser"],
)
def test_series_are_sampled_at_the_steps_of_a_chart(
    window: tuple[float, float, float], sampled: list[tuple[float, str]]
) -> None:
    cluster = RecordedCluster(a_fleet((100.0, "1"), (110.0, "2"), (120.0, "3")))
    [series] = cluster.sample_series(POOL_QUERY, *window)
    assert series == {"metric": {"tier": "realtime"}, "values": sampled}
    assert cluster.sample_series("up", *window) == []


@pytest.mark.parametrize(
    ("query", "is_recorded"),
    [
        (pool_query("fleet"), True),
        (inference_query(ObjectKey("fleet", "ctr-000"), "1m"), True),
        (inference_query(ObjectKey("fleet", "ctr-001"), "1m"), False),
        (inference_query(ObjectKey("ads", "ctr-000"), "1m"), False),
        (release_query(ObjectKey("fleet", "home"), "ctr-001", "1m"), True),
        (release_query(ObjectKey("fleet", "other"), "ctr-001", "1m"), False),
    ],
)
def test_the_queries_of_the_pages_get_the_series_that_were_recorded(query: str, is_recorded: bool) -> None:
    fleet = read_fleet()
    end = fleet.time.timestamp()
    series = RecordedCluster(fleet).sample_series(query, end - 900, end, 15.0)
    assert bool(series) is is_recorded
    assert not is_recorded or max(len(answer["values"]) for answer in series) > 15
