from __future__ import annotations

import bisect
import gc
import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.features import (
    ITEM_KEY,
    USER_KEY,
    Bucketize,
    Cross,
    Hash,
    Lookup,
    LookupType,
    a_plan,
    compute_parquet,
    of_item,
    of_user,
    write_table,
)
from stages.examples import examples
from tidegate_dataplane.contract import Feature, FeaturePlan, FieldRef
from tidegate_dataplane.features import offline, tables
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError

MASK = (1 << 64) - 1
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT64 = st.floats(width=64)


# --- the reference: one row at a time, in plain Python ---


def naive_mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def naive_hash(value: Any) -> int:
    if value is None:
        return 0x7469646567617465
    if isinstance(value, str):
        return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
    if isinstance(value, float):
        canonical = math.nan if math.isnan(value) else value + 0.0
        return naive_mix(int.from_bytes(struct.pack("<d", canonical), "little"))
    return naive_mix(int(value) & MASK)


def naive(feature: Feature, row: dict[FieldRef, Any]) -> list[float]:
    """The feature of one row; `row` holds the value of each field, None where there is none."""
    if isinstance(feature, Lookup):
        default = int(feature.default) if feature.type is LookupType.INT64 else float(feature.default)
        value = row[feature.field]
        if feature.length is None:
            return [default if value is None else value]
        cut = [default if element is None else element for element in (value or [])[: feature.length]]
        return cut + [default] * (feature.length - len(cut))
    if isinstance(feature, Bucketize):
        value = row[feature.field]
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return [0 if missing else bisect.bisect_right(feature.boundaries, value)]
    if isinstance(feature, Hash):
        return [naive_hash(row[feature.field]) % feature.buckets]
    combined = naive_hash(row[feature.fields[0]])
    for field in feature.fields[1:]:
        combined = naive_mix((combined + naive_hash(row[field])) & MASK)
    return [combined % feature.buckets]


FEATURES: tuple[Feature, ...] = (
    Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1"),
    Lookup(name="score", field=of_user("score"), type=LookupType.FLOAT32, default="0.5"),
    Lookup(name="history", field=of_user("history"), type=LookupType.INT64, length=3),
    Lookup(name="vector", field=of_item("vector"), type=LookupType.FLOAT32, length=2, default="-1.5"),
    Bucketize(name="age_bucket", field=of_user("age"), boundaries=(-5.5, 0, 18, 25.5, 1e18)),
    Bucketize(name="score_bucket", field=of_user("score"), boundaries=(-1.0, 0.0, 0.25)),
    Bucketize(name="id_bucket", field=USER_KEY, boundaries=(0, 2.5, 2**53 + 2)),
    Hash(name="user_hash", field=USER_KEY, buckets=1000),
    Hash(name="item_hash", field=ITEM_KEY, buckets=997),
    Hash(name="city_hash", field=of_user("city"), buckets=50),
    Hash(name="score_hash", field=of_user("score"), buckets=1_000_003),
    Cross(name="user_x_item", fields=(USER_KEY, ITEM_KEY), buckets=2**40),
    Cross(name="item_x_user", fields=(ITEM_KEY, USER_KEY), buckets=2**40),
    Cross(name="four", fields=(of_user("city"), of_user("age"), ITEM_KEY, of_item("price")), buckets=10**12),
)

PROFILE = st.fixed_dictionaries(
    {
        "age": st.none() | INT64,
        "score": st.none() | st.floats(width=32),
        "city": st.none() | st.text(max_size=5),
        "history": st.none() | st.lists(st.none() | INT64, max_size=5),
    }
)
GOOD = st.fixed_dictionaries(
    {
        "price": st.none() | FLOAT64,
        "vector": st.none() | st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=4),
    }
)
NEAR = st.integers(-3, 12)
USERS = st.dictionaries(NEAR | INT64, PROFILE, max_size=12)
ITEMS = st.dictionaries(st.text(max_size=4), GOOD, max_size=8)


def make_engine(plan: FeaturePlan, paths: Mapping[str, Path]) -> FeatureEngine:
    return offline.make_engine(plan, paths, {})


def engine_for(folder: Path, users: dict[int, Any], items: dict[str, Any]) -> FeatureEngine:
    profiles = write_table(
        folder / "users.parquet",
        user_id=pa.array(list(users), pa.int64()),
        age=pa.array([row["age"] for row in users.values()], pa.int64()),
        score=pa.array([row["score"] for row in users.values()], pa.float32()),
        city=pa.array([row["city"] for row in users.values()], pa.string()),
        history=pa.array([row["history"] for row in users.values()], pa.list_(pa.int64())),
        unused=pa.array([0] * len(users)),
    )
    catalogue = write_table(
        folder / "items.parquet",
        item_id=pa.array(list(items), pa.string()),
        price=pa.array([row["price"] for row in items.values()], pa.float64()),
        vector=pa.array([row["vector"] for row in items.values()], pa.list_(pa.float32())),
    )
    return make_engine(a_plan(*FEATURES), {"profiles": profiles, "catalogue": catalogue})


@settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(users=USERS, items=ITEMS, data=st.data())
def test_the_engine_equals_a_reference_row_by_row(
    tmp_path: Path, users: dict[int, Any], items: dict[str, Any], data: st.DataObject
) -> None:
    user_keys = st.sampled_from(sorted(users)) | NEAR | INT64 if users else NEAR | INT64
    item_keys = st.sampled_from(sorted(items)) | st.text(max_size=4) if items else st.text(max_size=4)
    keys = data.draw(st.lists(st.tuples(user_keys, item_keys), max_size=20))

    computed = engine_for(tmp_path, users, items).compute_features(
        {
            "user_id": np.array([[user] for user, _ in keys], dtype=np.int64).reshape(-1, 1),
            "item_id": np.array([item.encode() for _, item in keys], dtype=object),
        }
    )

    for feature, output in zip(FEATURES, a_plan(*FEATURES).outputs, strict=True):
        values = computed[feature.name]
        assert values.shape == (len(keys), output.shape[1])
        assert values.dtype == (np.float32 if output.dtype == "FP32" else np.int64)
        for (user, item), got in zip(keys, values.tolist(), strict=True):
            row = {
                USER_KEY: user,
                ITEM_KEY: item,
                **{
                    of_user(column): users.get(user, {}).get(column)
                    for column in ("age", "score", "city", "history")
                },
                **{of_item(column): items.get(item, {}).get(column) for column in ("price", "vector")},
            }
            np.testing.assert_equal(got, naive(feature, row), err_msg=feature.name)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0xE220A8397B1DCDAF),
        (1, 0x910A2DEC89025CC1),
        (-1, 0xE4D971771B652C20),
        ("tidegate", int.from_bytes(hashlib.blake2b(b"tidegate", digest_size=8).digest(), "little")),
    ],
)
def test_the_reference_itself_is_pinned(value: int | str, expected: int) -> None:
    # The first two are the published outputs of splitmix64 for the seeds 0 and 1.
    assert naive_hash(value) == expected


def test_a_value_on_a_boundary_falls_into_the_bucket_above(tmp_path: Path) -> None:
    feature = Bucketize(name="b", field=USER_KEY, boundaries=(18, 25))

    computed = make_engine(a_plan(feature), {}).compute_features({"user_id": np.array([17, 18, 24, 25])})

    assert computed["b"].ravel().tolist() == [0, 1, 1, 2]


def test_a_batch_computes_what_its_rows_compute(tmp_path: Path) -> None:
    users = {
        key: {"age": key, "score": key / 3, "city": f"c{key % 7}", "history": [key]} for key in range(300)
    }
    items = {f"i{key}": {"price": float(key), "vector": [float(key)]} for key in range(50)}
    engine = engine_for(tmp_path, users, items)
    inputs = {
        "user_id": np.arange(-5, 305, dtype=np.int64),
        "item_id": np.array([f"i{key % 60}".encode() for key in range(310)], dtype=object),
    }

    whole = engine.compute_features(inputs)

    for name, values in whole.items():
        parts = [
            engine.compute_features({key: array[row : row + 1] for key, array in inputs.items()})[name]
            for row in range(310)
        ]
        np.testing.assert_array_equal(values, np.concatenate(parts))


def test_offline_over_files_equals_online(tmp_path: Path) -> None:
    users = {
        key: {"age": key, "score": key / 3, "city": "x", "history": [key, key]} for key in range(0, 90, 7)
    }
    items = {f"i{key}": {"price": float(key), "vector": [float(key)]} for key in range(5)}
    engine = engine_for(tmp_path, users, items)
    keys = {"user_id": list(range(100)), "item_id": [f"i{key % 7}" for key in range(100)]}
    write_table(tmp_path / "keys.parquet", **keys)

    rows = compute_parquet(
        a_plan(*FEATURES),
        {"profiles": tmp_path / "users.parquet", "catalogue": tmp_path / "items.parquet"},
        tmp_path / "keys.parquet",
        tmp_path / "out.parquet",
    )

    assert rows == 100
    written = pq.read_table(tmp_path / "out.parquet")
    online = engine.compute_features(
        {
            "user_id": np.array(keys["user_id"]),
            "item_id": np.array([key.encode() for key in keys["item_id"]], dtype=object),
        }
    )
    for name, values in online.items():
        column = np.array(written.column(name).to_pylist(), dtype=values.dtype).reshape(values.shape)
        np.testing.assert_array_equal(column, values, err_msg=name)


@pytest.mark.parametrize("block_rows", [1, 2, 4, 100])
def test_lists_are_the_same_however_many_are_decoded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_rows: int
) -> None:
    monkeypatch.setattr(tables, "BLOCK_ROWS", block_rows)
    lists = [[1, 2, 3], None, [4], [], [5, None, 6, 7], [None], [8, 9]]
    path = write_table(tmp_path / "t", user_id=list(range(len(lists))), c=lists)
    lookup = Lookup(name="f", field=of_user("c"), type=LookupType.INT64, length=3, default="-1")
    engine = make_engine(a_plan(lookup), {"profiles": path})

    answer = engine.compute_features({"user_id": np.arange(len(lists) + 1)})["f"]

    assert answer.tolist() == [
        [1, 2, 3],
        [-1, -1, -1],
        [4, -1, -1],
        [-1, -1, -1],
        [5, -1, 6],
        [-1, -1, -1],
        [8, 9, -1],
        [-1, -1, -1],
    ]


def test_what_was_read_of_a_table_is_freed_when_its_features_are_prepared(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t", user_id=list(range(10_000)), c=[1] * 10_000)
    gc.collect()
    before = pa.total_allocated_bytes()

    engine = make_engine(
        a_plan(Lookup(name="f", field=of_user("c"), type=LookupType.INT64)), {"profiles": path}
    )

    gc.collect()
    assert pa.total_allocated_bytes() <= before
    assert engine.compute_features({"user_id": np.array([1])})["f"].tolist() == [[1]]


class TestWhatDoesNotFit:
    def test_keys_in_two_rows(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=[1, 2, 1, 2, 3], age=[1, 2, 3, 4, 5])

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert "table 'profiles' has 2 keys in more than one row, such as 1, 2" in message

    def test_string_keys_in_two_rows(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", item_id=["a", "b", "a"], price=[1, 2, 3])
        feature = Lookup(name="p", field=of_item("price"), type=LookupType.INT64)

        with pytest.raises(FeatureError, match="has 1 keys in more than one row, such as a"):
            make_engine(a_plan(feature), {"catalogue": path})

    def test_a_column_that_is_not_there(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=[1], aeg=[1])

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert message == "table 'profiles' has no column 'age'; it has aeg, user_id"

    @pytest.mark.parametrize(
        ("column", "feature"),
        [
            ([0.5], Lookup(name="f", field=of_user("c"), type=LookupType.INT64)),
            (["x"], Lookup(name="f", field=of_user("c"), type=LookupType.FLOAT32)),
            ([1], Lookup(name="f", field=of_user("c"), type=LookupType.INT64, length=2)),
            ([[1]], Lookup(name="f", field=of_user("c"), type=LookupType.INT64)),
            (["x"], Bucketize(name="f", field=of_user("c"), boundaries=(1,))),
            ([[1]], Hash(name="f", field=of_user("c"), buckets=3)),
        ],
    )
    def test_a_column_of_another_type(self, tmp_path: Path, column: list[Any], feature: Feature) -> None:
        message = self.refused(write_table(tmp_path / "t.parquet", user_id=[1], c=column), feature)

        assert "table 'profiles', column 'c' holds" in message

    def test_a_key_column_of_another_type(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=["1"], age=[1])

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert "key column 'user_id' holds string, and entity 'user' has int64 keys" in message

    def test_null_keys(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=[1, None, None], age=[1, 2, 3])

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert "has 2 nulls of 3 rows" in message

    def test_integers_beyond_int64(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=[1], age=pa.array([2**64 - 1], pa.uint64()))

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert "table 'profiles', column 'age'" in message

    def test_a_file_that_is_not_parquet(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        path.write_text("user_id,age\n1,2\n")

        message = self.refused(path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64))

        assert "table 'profiles' cannot be read as Parquet" in message

    @pytest.mark.parametrize("default", ["x", "0.5", "99999999999999999999"])
    def test_a_default_of_another_type(self, tmp_path: Path, default: str) -> None:
        path = write_table(tmp_path / "t.parquet", user_id=[1], age=[1])

        message = self.refused(
            path, Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default=default)
        )

        assert "feature 'age' has the default" in message

    def test_requests(self) -> None:
        engine = make_engine(a_plan(Cross(name="c", fields=(USER_KEY, ITEM_KEY), buckets=9)), {})
        users, items = np.array([1, 2]), np.array([b"a", b"b"], dtype=object)

        with pytest.raises(FeatureError, match="input 'item_id' is missing"):
            engine.compute_features({"user_id": users})
        with pytest.raises(FeatureError, match="differ in length"):
            engine.compute_features({"user_id": users, "item_id": items[:1]})
        with pytest.raises(FeatureError, match="has type float64; int64 is needed"):
            engine.compute_features({"user_id": users.astype(float), "item_id": items})
        with pytest.raises(FeatureError, match=r"has shape \[2, 2\]"):
            engine.compute_features({"user_id": np.ones((2, 2), dtype=np.int64), "item_id": items})

    def refused(self, path: Path, feature: Feature) -> str:
        with pytest.raises(FeatureError) as raised:
            make_engine(a_plan(feature), {"profiles": path})
        return str(raised.value)
