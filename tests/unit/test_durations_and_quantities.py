"""Durations and quantities: read exactly, written in one way, refused clearly."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.durations import format_duration, parse_duration
from tidegate.api.quantities import canonicalize_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("500us", timedelta(microseconds=500)),
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("0s", timedelta()),
    ],
)
def test_a_duration_is_read(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "1.5s", "-1s", "1h30m", "1 s", "1s\n", "1d", "1S", "1000000s", "١s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(0, 999_999), st.sampled_from(["us", "ms", "s", "m", "h"]))
def test_a_duration_reads_back_the_same(number: int, unit: str) -> None:
    length = parse_duration(f"{number}{unit}")
    assert parse_duration(format_duration(length)) == length


def test_a_duration_is_written_in_its_largest_unit() -> None:
    assert format_duration(timedelta(minutes=90)) == "90m"
    assert format_duration(timedelta(hours=2)) == "2h"


@pytest.mark.parametrize("length", [timedelta(seconds=-1), timedelta(days=365_000, microseconds=1)])
def test_a_length_that_no_text_can_say_is_refused(length: timedelta) -> None:
    with pytest.raises(ValueError, match="duration"):
        format_duration(length)


@given(st.text(max_size=20))
def test_parsers_only_ever_raise_value_error(text: str) -> None:
    for parse in (parse_duration, parse_quantity):
        with suppress(ValueError):
            parse(text)


def test_more_than_any_cluster_has_is_read_as_that() -> None:
    """Kubernetes stores each of these as it is, for anybody who may create a pod."""
    for text in ("1e30", "1e90", "1e300", "1e999999999", f"{'9' * 60}e3", f"{'9' * 61}Ei"):
        assert parse_quantity(text) == Decimal(10) ** 30
        assert parse_quantity(f"-{text}") == -(Decimal(10) ** 30)
    assert parse_quantity("1e-999999999") == Decimal("1e-9")
    assert parse_quantity("0e999999999") == 0


# From apimachinery's own tables (resource.Quantity), and what an API server answered.
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("2", "2"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("2048Mi", "2Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("0.5Ki", "512"),
        ("1Ki", "1Ki"),
        ("1025Ki", "1025Ki"),
        ("128974848", "128974848"),
        ("129e6", "129e6"),
        ("129M", "129M"),
        ("0", "0"),
        ("0Gi", "0"),
        ("0.0001", "100u"),
        ("1E", "1E"),
        ("100000", "100k"),
        ("1e3", "1e3"),
        ("12e2", "1200"),
    ],
)
def test_a_quantity_is_written_as_the_api_server_stores_it(text: str, stored: str) -> None:
    assert canonicalize_quantity(text) == stored


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("4Gi", str(4 * 1024**3)),
        ("1e3", "1000"),
        ("0.1n", "1e-9"),
        ("-1", "-1"),
        (".5", "0.5"),
    ],
)
def test_a_quantity_is_read_exactly(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "two", "1 Gi", "1gi", "1KiB", "--1", "1e", "NaN", "Infinity", "1" * 65])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


QUANTITIES = st.builds(
    lambda number, suffix: f"{number}{suffix}",
    st.decimals(min_value=0, max_value=10**9, places=3).map(lambda value: format(value, "f")),
    st.sampled_from(["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E2"]),
)


@given(QUANTITIES)
def test_the_stored_form_means_the_same_and_is_final(text: str) -> None:
    assert parse_quantity(canonicalize_quantity(text)) == parse_quantity(text)
    assert canonicalize_quantity(canonicalize_quantity(text)) == canonicalize_quantity(text)
