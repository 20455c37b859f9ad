"""Converted tables: by value against Parquet, and files that were cut short, are foreign or do not fit on the disk."""

from __future__ import annotations

import asyncio
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.features import (
    ITEM_KEY,
    Bucketize,
    Hash,
    Lookup,
    LookupType,
    a_plan,
    of_item,
    of_user,
    write_table,
)
from builders.waiting import eventually
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.table_convert import convert_in_process
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import Feature
from tidegate_dataplane.features import convert, key_writer, mapped_table, table_keys, tables
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult, DiskBound
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.table_file import RECORDS_OFFSET, is_converted

AGE = Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1")
PRICE = Lookup(name="price", field=of_item("price"), type=LookupType.FLOAT32, default="-1")


def an_order(parquet: Path, target: Path, *features: Feature) -> ConversionOrder:
    plan = a_plan(*(features or (AGE,)))
    (table,) = plan.tables
    return ConversionOrder(
        plan=plan, table=table.name, parquet=parquet, sha256=hash_file(parquet), target=target
    )


def converted(parquet: Path, *features: Feature) -> FeatureEngine:
    """The engine over the converted table of all these features."""
    order = an_order(parquet, parquet.with_suffix(".table"), *features)
    result = convert.convert_file(order)
    assert result == ConversionResult(size=order.target.stat().st_size)
    return FeatureEngine.from_files(order.plan, {order.table: order.target})


def ages(engine: FeatureEngine, *keys: int) -> list[int]:
    return engine.compute_features({"user_id": np.array(keys, dtype=np.int64)})["age"][:, 0].tolist()


def prices(engine: FeatureEngine, *keys: str) -> list[float]:
    inputs = {"item_id": np.array([key.encode() for key in keys], dtype=object)}
    return engine.compute_features(inputs)["price"][:, 0].tolist()


# --- values ---

KEYS = {
    "dense": list(range(-700, 800)),
    "sparse": [number * 7_919_191_919 - 2**40 for number in range(1500)],
    "far apart": [-(2**63), 2**63 - 1, 0, 1, -1, *(2**40 * number for number in range(2, 1497))],
    "equal low halves": [number << 32 for number in range(1500)],
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("window", [64, 1 << 21])
def test_integer_keys_are_found_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, window: int
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", window)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 100)
    keys = KEYS[kind]
    random.Random(3).shuffle(keys)
    parquet = write_table(tmp_path / "t.parquet", user_id=keys, age=list(range(len(keys))))
    engine = converted(parquet, AGE)
    others = sorted({key + step for key in keys for step in (-3, 3, 2**35)} - set(keys))
    others = [key for key in others if -(2**63) <= key < 2**63]

    assert ages(engine, *keys) == list(range(len(keys)))
    assert ages(engine, *others) == [-1] * len(others)


@pytest.mark.parametrize("longest", [7, 8, 39, 40, 300])
@pytest.mark.parametrize("window", [64, 1 << 21])
def test_string_keys_are_compared_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, window: int
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", window)
    keys = ["", "\0", "\0\0", "a", "a\0", "a\1", "ä", "x" * longest, "x" * (longest - 1)]
    keys += [f"{number}".rjust(longest, "k")[:longest] for number in range(1000)]
    keys = sorted(set(keys))
    random.Random(4).shuffle(keys)
    parquet = write_table(
        tmp_path / "t.parquet", item_id=keys, price=[float(row) for row in range(len(keys))]
    )
    engine = converted(parquet, PRICE)
    others = {key + end for key in keys for end in ("\0", "\1", "\1zzzzzzz", "\2", "y" * 8)} - set(keys)

    assert prices(engine, *keys) == list(range(len(keys)))
    assert prices(engine, *others) == [-1] * len(others)
    assert prices(engine) == []


def test_keys_that_are_remembered_are_found_as_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_table, "RECENT_KEYS", 10)
    keys = [f"k{number}" for number in range(40)] + ["long" * 100]
    parquet = write_table(
        tmp_path / "t.parquet", item_id=keys, price=[float(row) for row in range(len(keys))]
    )
    engine, draw = converted(parquet, PRICE), random.Random(6)

    for _ in range(60):
        asked = draw.choices([*keys, "other", "long" * 99], k=draw.randrange(25))
        wanted = [float(keys.index(key)) if key in keys else -1.0 for key in asked]
        assert prices(engine, *asked) == wanted


@pytest.mark.parametrize(("instances", "searched"), [(1, 0), (2, 0), (4, 20)])
def test_the_processes_of_a_version_remember_so_many_keys_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instances: int, searched: int
) -> None:
    monkeypatch.setattr(mapped_table, "RECENT_KEYS", 40)
    keys = [f"k{number}" for number in range(20)]
    parquet = write_table(tmp_path / "t.parquet", item_id=keys, price=[float(row) for row in range(20)])
    order = an_order(parquet, tmp_path / "t.table", PRICE)
    convert.convert_file(order)
    engine = FeatureEngine.from_files(order.plan, {order.table: order.target}, instances=instances)
    for key in keys:
        prices(engine, key)
    make_words, counts = mapped_table.make_words, list[int]()

    def count_words(texts: Any, words: int) -> Any:
        counts.append(len(texts))
        return make_words(texts, words)

    monkeypatch.setattr(mapped_table, "make_words", count_words)

    assert [prices(engine, key) for key in keys] == [[float(row)] for row in range(20)]
    assert sum(counts) == searched


def test_two_keys_with_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_words, seeds = table_keys.hash_words, set[int]()

    def collide(words: Any, seed: int) -> Any:
        seeds.add(seed)
        return hash_words(words, seed) if seed else np.full(len(words), 7, dtype=np.uint64)

    monkeypatch.setattr(convert, "hash_words", collide)
    parquet = write_table(tmp_path / "t.parquet", item_id=["a", "b", "c"], price=[1.0, 2.0, 3.0])

    assert prices(converted(parquet, PRICE), "c", "b", "a", "d") == [3, 2, 1, -1]
    assert seeds == {0, 1}


def test_a_hash_of_a_stored_key_is_no_stored_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = write_table(tmp_path / "t.parquet", item_id=["a"], price=[1.0])
    engine = converted(parquet, PRICE)
    (token,) = table_keys.hash_words(table_keys.make_words([b"a"], 1)[0], 0)
    monkeypatch.setattr(mapped_table, "hash_words", lambda words, seed: np.full(len(words), token))

    assert prices(engine, "a", "other") == [1, -1]


def test_values_are_those_of_the_file_bit_by_bit(tmp_path: Path) -> None:
    floats = [math.pi, -0.0, math.nan, math.inf, 1e-45, None]
    numbers = [2**63 - 1, -(2**63), 0, 2**53 + 1, None, 5]
    lists = [[1.5, -0.0, math.nan], [], None, [None, 2.5], [1.0, 2.0, 3.0, 4.0], [7.0]]
    parquet = write_table(
        tmp_path / "t.parquet",
        user_id=[3, 1, 2, 5, 4, 0],
        score=pa.array(floats, pa.float32()),
        age=pa.array(numbers, pa.int64()),
        vector=pa.array(lists, pa.list_(pa.float32())),
        city=["x", None, "", "ä", "x", "y"],
    )
    score = Lookup(name="score", field=of_user("score"), type=LookupType.FLOAT32, default="0.1")
    vector = Lookup(name="vector", field=of_user("vector"), type=LookupType.FLOAT32, length=3, default="9")
    bucket = Bucketize(name="bucket", field=of_user("age"), boundaries=(0, 6))
    city = Hash(name="city", field=of_user("city"), buckets=2**62)
    order = np.array([3, 1, 2, 5, 4, 0, 77])

    computed = converted(parquet, score, AGE, vector, bucket, city).compute_features({"user_id": order})

    tenth = np.float32(0.1)
    wanted = np.array([*(tenth if value is None else value for value in floats), tenth], dtype=np.float32)
    assert np.ascontiguousarray(computed["score"]).tobytes() == wanted.tobytes()
    assert computed["age"][:, 0].tolist() == [2**63 - 1, -(2**63), 0, 2**53 + 1, -1, 5, -1]
    rows = [[1.5, -0.0, math.nan], [9] * 3, [9] * 3, [9, 2.5, 9], [1, 2, 3], [7, 9, 9], [9] * 3]
    assert np.ascontiguousarray(computed["vector"]).tobytes() == np.array(rows, dtype=np.float32).tobytes()
    assert computed["bucket"][:, 0].tolist() == [2, 0, 1, 2, 0, 1, 0]
    hashes = computed["city"][:, 0].tolist()
    assert hashes[0] == hashes[4]
    assert hashes[1] == hashes[6]
    assert len(set(hashes)) == 5


@pytest.mark.parametrize("features", [(AGE,), (PRICE, Hash(name="h", field=ITEM_KEY, buckets=9))])
def test_an_empty_table_answers_with_defaults(tmp_path: Path, features: tuple[Feature, ...]) -> None:
    columns: dict[str, Any] = {"user_id": pa.array([], pa.int64()), "age": pa.array([], pa.int64())}
    columns |= {"item_id": pa.array([], pa.string()), "price": pa.array([], pa.float32())}
    engine = converted(write_table(tmp_path / "t.parquet", **columns), *features)

    assert (ages(engine, 5) if features == (AGE,) else prices(engine, "a")) == [-1]


def test_a_folder_with_several_files_and_row_groups_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for start in (0, 500):
        keys = list(range(start, start + 500))
        table = pa.table({"user_id": keys, "age": [key * 3 for key in keys]})
        pq.write_table(table, folder / f"{start}.parquet", row_group_size=70)
    opened = convert.open_parquet_tables(a_plan(AGE), {"profiles": folder})

    assert ages(FeatureEngine(a_plan(AGE), opened), 0, 499, 500, 999, 1000) == [0, 1497, 1500, 2997, -1]


def test_a_column_may_be_in_the_names_of_folders(tmp_path: Path) -> None:
    for age, users in ((30, [1, 2]), (40, [3])):
        (tmp_path / "folder" / f"age={age}").mkdir(parents=True)
        write_table(tmp_path / "folder" / f"age={age}" / "part.parquet", user_id=users)
    opened = convert.open_parquet_tables(a_plan(AGE), {"profiles": tmp_path / "folder"})

    assert ages(FeatureEngine(a_plan(AGE), opened), 1, 2, 3, 4) == [30, 30, 40, -1]


HASHED = Hash(name="age", field=of_user("age"), buckets=2**62)


def ages_of_folder(folder: Path, feature: Feature, *files: dict[str, Any]) -> list[int]:
    """The feature of users 0 to 3 from a folder with these files."""
    folder.mkdir()
    for number, columns in enumerate(files):
        write_table(folder / f"{number}.parquet", **columns)
    opened = convert.open_parquet_tables(a_plan(feature), {"profiles": folder})
    return ages(FeatureEngine(a_plan(feature), opened), 0, 1, 2, 3)


def test_all_files_of_a_folder_have_the_types_of_the_first(tmp_path: Path) -> None:
    doubles = {"user_id": [0, 1], "age": pa.array([30.0, 40.0])}
    integers = {"user_id": [2, 3], "age": pa.array([30, 40])}
    first, second, *rest = ages_of_folder(tmp_path / "hashed", HASHED, doubles, integers)

    assert rest == [first, second]
    assert first != second
    with pytest.raises(FeatureError, match=r"table 'profiles' cannot be read as Parquet: .*30\.5"):
        ages_of_folder(
            tmp_path / "truncated", AGE, integers, {"user_id": [0, 1], "age": pa.array([30.5, 40.0])}
        )


def test_a_column_that_a_later_file_of_a_folder_does_not_have_is_null_there(tmp_path: Path) -> None:
    first = {"user_id": [0, 1], "age": [30, 40]}
    for name, second in (("none", {"user_id": [2]}), ("null", {"user_id": [2], "age": pa.nulls(1)})):
        assert ages_of_folder(tmp_path / name, AGE, first, second) == [30, 40, -1, -1]

    with pytest.raises(FeatureError, match="table 'profiles', key column 'user_id' has 1 nulls of 3 rows"):
        ages_of_folder(tmp_path / "keys", AGE, first, {"age": [50]})
    with pytest.raises(FeatureError, match="table 'profiles' has no column 'age'; it has user_id"):
        ages_of_folder(tmp_path / "first", AGE, {"user_id": [2]}, first)


def test_tables_are_read_at_once_if_all_of_them_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"profiles": 5000, "catalogue": 9000}
    write_table(tmp_path / "profiles.parquet", user_id=list(range(5000)), age=list(range(5000)))
    write_table(tmp_path / "catalogue.parquet", item_id=[str(row) for row in range(9000)], price=[1.0] * 9000)
    plan = a_plan(AGE, PRICE)
    paths = {name: tmp_path / f"{name}.table" for name in rows}
    for name, target in paths.items():
        order = ConversionOrder(
            plan=plan, table=name, parquet=tmp_path / f"{name}.parquet", sha256="", target=target
        )
        assert not convert.convert_file(order).error
    sizes = {name: target.stat().st_size for name, target in paths.items()}
    assert sizes["profiles"] < sizes["catalogue"]

    for room, read in (
        (sum(sizes.values()), {"profiles", "catalogue"}),
        (sizes["catalogue"], {"profiles"}),
        (1, set[str]()),
    ):
        monkeypatch.setattr(mapped_table, "_read_available_bytes", lambda room=room: 2 * room)
        engine = FeatureEngine.from_files(plan, paths)
        resident = {
            name for name, target in paths.items() if measure_resident(target) * 1024 > sizes[name] // 2
        }
        assert resident == read
        del engine


def measure_resident(path: Path) -> int:
    """KiB of a mapped file that are in this process's page table."""
    lines = Path("/proc/self/smaps").read_text().split(str(path))[1].splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_table_that_is_read_when_it_is_used_has_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(mapped_table, "READ_AHEAD_SHARE", share)
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(5000)), age=list(range(5000)))

    engine = converted(parquet, AGE)

    assert (measure_resident(tmp_path / "t.table") >= 5000 * 8 // 1024) == (share > 0)
    assert ages(engine, 0, 4999, 5000) == [0, 4999, -1]


@pytest.mark.parametrize("window", [64, 1 << 21])
def test_keys_in_several_rows_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", window)
    sparse = [number * 10**9 for number in range(1000)]
    for parquet, message in (
        (
            write_table(tmp_path / "a", user_id=[*range(1000), *range(990, 1000)], age=[0] * 1010),
            "10 keys in more than one row, such as 990, 991, 992:",
        ),
        (
            write_table(tmp_path / "b", user_id=[*sparse, *sparse[5:9], *sparse[5:9]], age=[0] * 1008),
            "4 keys in more than one row, such as 5000000000, 6000000000, 7000000000:",
        ),
    ):
        result = convert.convert_file(an_order(parquet, tmp_path / "t.table"))
        assert f"table 'profiles' has {message}" in result.error

    long = "l" * 50
    parquet = write_table(tmp_path / "c", item_id=["b", "a", long, "b", "a", long], price=[0.0] * 6)
    result = convert.convert_file(an_order(parquet, tmp_path / "t.table", PRICE))
    assert "has 3 keys in more than one row, such as b, a, one of more than 39 bytes:" in result.error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("step", [1, 10**9], ids=["dense", "hashed"])
@pytest.mark.parametrize("window", [64, 1 << 21])
def test_keys_are_read_twice_and_no_more_however_many_windows_an_index_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, window: int
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", window)
    passes: list[int] = []

    class CountedSpill(key_writer.KeySpill):
        def read_chunks(self) -> Iterator[tuple[int, Any]]:
            passes.append(1)
            return super().read_chunks()

    spill = CountedSpill(tmp_path)
    spill.append_tokens(np.arange(0, 4000 * step, step, dtype=np.uint64))
    with (tmp_path / "index").open("w+b", buffering=0) as file:
        key_writer.write_index(file, spill, are_keys=True)
    spill.free_disk()

    assert len(passes) == (2 if window == 64 else 1)


@pytest.mark.parametrize("far", [2, 10**12], ids=["dense", "hashed"])
def test_a_key_in_most_rows_is_named_and_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: int
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", 64)
    monkeypatch.setattr(key_writer, "_CHUNK_KEYS", 32)
    held: list[int] = []
    keep_pairs = key_writer._keep_pairs

    def measure_pairs(tokens: Any, rows: Any) -> Any:
        held.append(len(tokens))
        return keep_pairs(tokens, rows)

    monkeypatch.setattr(key_writer, "_keep_pairs", measure_pairs)
    parquet = write_table(tmp_path / "t", user_id=[5] * 3000 + [6, far, 6] + [5] * 1000, age=[0] * 4003)

    result = convert.convert_file(an_order(parquet, tmp_path / "t.table"))

    assert "has 2 keys in more than one row, such as 5, 6:" in result.error
    assert max(held, default=0) <= 2 * 64 + 32
    assert bool(held) == (far > 2)


def test_a_table_has_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MAX_ROWS", 9)
    for rows, error in (
        (9, ""),
        (10, "table 'profiles' has 10 rows, and 9 are possible: split it into several tables"),
    ):
        parquet = write_table(tmp_path / f"{rows}.parquet", user_id=list(range(rows)), age=[1] * rows)
        assert convert.convert_file(an_order(parquet, tmp_path / f"{rows}.table")).error == error


# --- files that are not what they should be ---


def a_file(tmp_path: Path, rows: int = 3000) -> ConversionOrder:
    """A converted table in which user n is n years old."""
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(rows)), age=list(range(rows)))
    order = an_order(parquet, tmp_path / "t.table")
    assert not convert.convert_file(order).error
    return order


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def lose_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(RECORDS_OFFSET))


def change_header(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"rows": 3000', b'"rows": 3001'))


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def put_parquet(path: Path) -> None:
    path.write_bytes(path.with_suffix(".parquet").read_bytes())


@pytest.mark.parametrize("spoil", [cut_short, empty_file, lose_header, change_header, grow, put_parquet])
def test_a_damaged_file_is_neither_taken_for_a_table_nor_mapped(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    order = a_file(tmp_path)
    assert is_converted(order.target, order.sha256)
    spoil(order.target)

    assert not is_converted(order.target, order.sha256)
    with pytest.raises(FeatureError, match="the converted table 'profiles' cannot be read: it"):
        FeatureEngine.from_files(order.plan, {"profiles": order.target})


def test_a_file_of_another_table_or_plan_is_refused(tmp_path: Path) -> None:
    order = a_file(tmp_path)
    other = a_plan(AGE.model_copy(update={"default": "-2"}))

    assert not is_converted(order.target, "0" * 64)
    with pytest.raises(FeatureError, match="it was converted for another plan"):
        FeatureEngine.from_files(other, {"profiles": order.target})


KILL = """
import os, signal, sys
from pathlib import Path
from tidegate_dataplane.features import convert
from tidegate_dataplane.features.conversion import ConversionOrder
place, count = sys.argv[1], int(sys.argv[2])
calls = 0
def dying(work):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls > count:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)
    return call
owner, name = {
    "write": (convert, "write_all"),
    "header": (convert, "write_header"),
    "sync": (os, "fsync"),
    "rename": (Path, "replace"),
}[place]
setattr(owner, name, dying(getattr(owner, name)))
convert.convert_file(ConversionOrder.model_validate_json(sys.stdin.read()))
"""


@pytest.mark.parametrize(
    ("place", "calls"),
    [("write", 0), ("write", 2), ("header", 0), ("sync", 0), ("sync", 1), ("rename", 0), ("sync", 2)],
)
def test_a_conversion_that_is_killed_leaves_nothing_that_is_taken_for_a_table(
    tmp_path: Path, place: str, calls: int
) -> None:
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(30_000)), age=list(range(30_000)))
    order = an_order(parquet, tmp_path / "t.table")
    process = subprocess.run(
        [sys.executable, "-c", KILL, place, str(calls)], input=order.model_dump_json().encode(), check=False
    )
    assert process.returncode == -signal.SIGKILL

    # Only the last sync, that of the folder, comes after the rename.
    is_renamed = (place, calls) == ("sync", 2)
    assert is_converted(order.target, order.sha256) == order.target.exists() == is_renamed
    assert not convert.convert_file(order).error
    assert ages(FeatureEngine.from_files(order.plan, {"profiles": order.target}), 29_999, 30_000) == [
        29_999,
        -1,
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.parquet", "t.table"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [RECORDS_OFFSET + 100, RECORDS_OFFSET + 8 * 3000 + 100])
def test_a_disk_that_gets_full_is_reported_with_both_numbers(tmp_path: Path, size: int) -> None:
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(3000)), age=list(range(3000)))
    order = an_order(parquet, tmp_path / "t.table")
    with files_of_at_most(size):
        result = convert.convert_file(order)

    assert result.needed_bytes == 185_544
    assert result.error.startswith("table 'profiles' needs 185,544 bytes of disk when it is converted, and ")
    assert "free: free space on the disk, or read fewer columns of the table" in result.error
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert not convert.convert_file(order).error


@pytest.mark.parametrize(
    ("window", "keys", "is_divided"),
    [
        (13_024, range(3000), False),
        (13_023, range(3000), True),
        (1 << 21, range(3000), False),
        (13_023, range(0, 3000 * 10**6, 10**6), True),
        (1 << 21, range(0, 3000 * 10**6, 10**6), False),
    ],
)
def test_partitions_are_in_the_needed_disk_where_there_may_be_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, keys: range, is_divided: bool
) -> None:
    monkeypatch.setattr(key_writer, "WINDOW_KEYS", window)
    parquet = write_table(tmp_path / "t.parquet", user_id=list(keys), age=[1] * 3000)
    order = an_order(parquet, tmp_path / "t.table")
    usage = shutil.disk_usage(tmp_path)._replace(total=10_000_000, free=1)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: usage)
        needed = convert.convert_file(order).needed_bytes

    assert needed == 185_544 + (12 * 3000 if is_divided else 0)
    assert convert.convert_file(order).size + 8 * 3000 <= needed


def test_a_table_that_does_not_fit_beside_the_reserve_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = write_table(tmp_path / "t.parquet", user_id=[1], age=[2])
    usage = shutil.disk_usage(tmp_path)._replace(total=10_000_000, free=1_001_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    order = an_order(parquet, tmp_path / "t.table")
    reserved = order.model_copy(update={"disk": DiskBound(reserve_share=0.1)})

    result = convert.convert_file(reserved)

    assert result.needed_bytes == 65_584
    assert "and 1,000 are free beside a reserve of 10% of the disk:" in result.error
    assert not convert.convert_file(order).error


@pytest.mark.parametrize("keys", [range(3000), range(0, 3000 * 10**6, 10**6)])
def test_a_table_may_have_as_many_bytes_as_allowed_and_no_more(tmp_path: Path, keys: range) -> None:
    parquet = write_table(tmp_path / "t.parquet", user_id=list(keys), age=[1] * 3000)
    order = an_order(parquet, tmp_path / "t.table")
    size = convert.convert_file(order).size
    bound = DiskBound(
        max_bytes=size - 4096, allowed="of the 9 for all tables (spec.x)", size_remedy="raise spec.x"
    )

    refused = convert.convert_file(order.model_copy(update={"disk": bound}))
    allowed = convert.convert_file(order.model_copy(update={"disk": DiskBound(max_bytes=size)}))

    assert refused.error.startswith("table 'profiles' takes at least ")
    assert refused.error.endswith(
        f"and {size - 4096:,} are left to it of the 9 for all tables (spec.x): raise spec.x"
    )
    assert not refused.needed_bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.parquet", "t.table"]
    assert allowed.size == size


def test_long_lists_are_converted_in_blocks_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all, sizes = convert.write_all, list[int]()

    def record_size(file: Any, values: Any) -> None:
        sizes.append(values.nbytes)
        write_all(file, values)

    monkeypatch.setattr(convert, "write_all", record_size)
    long = Lookup(name="age", field=of_user("age"), type=LookupType.INT64, length=4096, default="-1")
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(600)), age=[[key] for key in range(600)])

    assert ages(converted(parquet, long), *range(600), 600) == [*range(600), -1]
    assert max(sizes) <= tables.BLOCK_BYTES < sum(sizes)


CONVERT = """
import sys
from tidegate_dataplane.features import convert
convert.MEMORY_BYTES = int(sys.argv[1]) << 20
sys.exit(convert._convert_order())
"""


@pytest.mark.parametrize(("mebibytes", "fits"), [(24, False), (512, True)])
def test_a_table_that_needs_too_much_memory_is_refused_with_the_bound(
    tmp_path: Path, mebibytes: int, fits: bool
) -> None:
    lists = pa.ListArray.from_arrays([0, 4 << 20], pa.repeat(pa.scalar(7), 4 << 20))
    parquet = write_table(tmp_path / "t.parquet", user_id=[1], age=lists)
    first = Lookup(name="age", field=of_user("age"), type=LookupType.INT64, length=1, default="-1")
    order = an_order(parquet, tmp_path / "t.table", first)
    process = subprocess.run(
        [sys.executable, "-c", CONVERT, str(mebibytes)],
        input=order.model_dump_json().encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        check=True,
    )

    result = ConversionResult.model_validate_json(process.stdout)
    message = "table 'profiles' needs more than 24 MiB of memory when it is converted: write shorter lists"
    assert (result.error.startswith(message), order.target.exists()) == (not fits, fits)


def conversions() -> list[int]:
    """The processes that convert for this one."""
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return [int(pid) for pids in children for pid in pids if b"features.convert" in read_command(pid)]


def read_command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_conversion_ends_with_its_order_and_its_end_is_reported(tmp_path: Path) -> None:
    order = an_order(write_table(tmp_path / "t.parquet", user_id=[1], age=[2]), tmp_path / "t.table")
    assert (await convert_in_process(order)).size == order.target.stat().st_size
    # Nobody writes to a pipe, so that the conversion waits for it.
    os.mkfifo(tmp_path / "pipe")
    stuck = order.model_copy(update={"parquet": tmp_path / "pipe"})

    task = asyncio.ensure_future(convert_in_process(stuck))
    await eventually(lambda: len(conversions()) == 1, what="the conversion runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert conversions() == []

    task = asyncio.ensure_future(convert_in_process(stuck))
    await eventually(lambda: len(conversions()) == 1, what="the conversion runs")
    os.kill(conversions()[0], signal.SIGKILL)
    with pytest.raises(
        ArtefactError, match="of table 'profiles' was ended by signal 9, most likely"
    ) as raised:
        await task
    assert not raised.value.refusal.is_transient


# --- what processes share ---

READ = """
import sys
from pathlib import Path
import numpy as np
from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.features.engine import FeatureEngine
plan = FeaturePlan.model_validate_json(sys.stdin.readline())
engine = FeatureEngine.from_files(plan, {"profiles": Path(sys.argv[1])})
keys = np.arange(200_000)
ages = engine.compute_features({"user_id": keys})["age"][:, 0]
assert (ages == keys).all()
assert "pyarrow" not in sys.modules
maps = Path("/proc/self/smaps").read_text().split(sys.argv[1])[1]
print(next(line for line in maps.splitlines() if line.startswith("Shared_Clean")).split()[1], flush=True)
sys.stdin.readline()
assert (engine.compute_features({"user_id": keys})["age"][:, 0] == keys).all()
"""


def test_two_processes_share_one_file_and_read_on_when_it_is_gone(tmp_path: Path) -> None:
    order = a_file(tmp_path, rows=200_000)
    shared: list[int] = []
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(order.target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(order.plan.to_json() + "\n")
        reader.stdin.flush()
        shared.append(int(reader.stdout.readline()))
    order.target.unlink()
    for reader in readers:
        reader.communicate("\n", timeout=60)

    assert [reader.returncode for reader in readers] == [0, 0]
    # The second one has the pages of the first: all records, in KiB.
    assert shared[1] > 200_000 * 8 // 1024
