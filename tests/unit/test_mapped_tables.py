"""Converted tables: by value against Parquet, and files that were cut short, are foreign or do not fit on the disk."""

from __future__ import annotations

import asyncio
import math
import os
import random
import resource
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
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.table_file import RECORDS_OFFSET, is_converted

AGE = Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1")
PRICE = Lookup(name="price", field=of_item("price"), type=LookupType.FLOAT32, default="-1")
TABLES = {"user": "profiles", "item": "catalogue"}


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


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_table_that_is_read_when_it_is_used_has_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(mapped_table, "READ_AHEAD_SHARE", share)
    parquet = write_table(tmp_path / "t.parquet", user_id=list(range(5000)), age=list(range(5000)))

    engine = converted(parquet, AGE)

    lines = Path("/proc/self/smaps").read_text().split(str(tmp_path / "t.table"))[1].splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    assert (resident >= 5000 * 8 // 1024) == (share > 0)
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

    assert result.is_disk_full
    assert result.error.startswith("table 'profiles' needs 185,544 bytes of disk when it is converted, and ")
    assert "free: raise spec.tableStorage, free space on the node" in result.error
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert not convert.convert_file(order).is_disk_full


def test_a_table_that_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = write_table(tmp_path / "t.parquet", user_id=[1], age=[2])
    usage = convert.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda folder: usage)

    result = convert.convert_file(an_order(parquet, tmp_path / "t.table"))

    assert result.is_disk_full
    assert "and 1,000 are free" in result.error


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
        ArtefactError, match="the conversion of table 'profiles' ended with status -9"
    ) as raised:
        await task
    assert raised.value.refusal.is_transient


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
