"""Files through which runners report missed shapes, and the compiler returns what it compiled for them.

Every file appears by a rename. Both sides read a bounded number of bytes, and ignore what they cannot read.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate_dataplane.engines.bucket_shapes import BucketShape

MAX_FILE_BYTES = 8 << 20
MAX_RUNNERS = 64
MAX_NOTES_AGE_S = 300.0
"""After this time without a write, a runner's notes are those of a runner that is gone."""
INDEX_FILE = "buckets.json"
ENGINE_FILE = "engine"
"""The engine of a bucket as its process writes it; runners load it by its digest."""


@dataclass(frozen=True, slots=True)
class CompiledBucket:
    """What the compiler made of a bucket; `file` is empty if the original graph serves it, for the given reason.

    Without file and reason it is being compiled, or that was cut short; `attempts` counts how often it began.

    `lookups` is the digest of the graph that computes what the engine reads, empty if it reads the request alone; `checked` has
    the names of what it reads that must be finite.
    """

    shape: BucketShape
    engine: str = ""
    file: str = ""
    sha256: str = ""
    reason: str = ""
    speedup: float = 0.0
    max_error: float = 0.0
    cached: bool = False
    attempts: int = 0
    lookups: str = ""
    checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunnerNotes:
    """What one runner tells the compiler: the buckets that it misses, with their counts, and those that it refuses."""

    missed: tuple[tuple[BucketShape, int], ...] = ()
    refused: tuple[tuple[BucketShape, str], ...] = ()
    unpadded: tuple[str, ...] = ()
    """Kinds of dimensions whose padding changes the answers."""
    problem: str = ""
    """Why this runner loads no engine, or none for some shapes."""


class EngineFolder:
    """`buckets.json`, a file for each compiled engine and for the lookups that several share, `runner-<name>.json` of each runner."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read_buckets(self) -> tuple[CompiledBucket, ...]:
        """Return the buckets that were compiled or left out; none if the file is missing or damaged."""
        content = _read_json(self.root / INDEX_FILE)
        try:
            return tuple(_read_bucket(entry) for entry in content)
        except (TypeError, ValueError, KeyError, AttributeError):
            return ()

    def write_buckets(self, buckets: Iterable[CompiledBucket]) -> None:
        """Replace the list of buckets."""
        _write_json(self.root / INDEX_FILE, [asdict(bucket) for bucket in buckets])

    def lookups_path(self, digest: str) -> Path:
        """Return where the graph of lookups with this digest is."""
        return self.root / f"{digest}.lookups"

    def write_notes(self, runner: str, notes: RunnerNotes) -> None:
        """Replace what this runner tells the compiler."""
        _write_json(self._notes_path(runner), asdict(notes))

    def touch_notes(self, runner: str) -> bool:
        """Show that this runner still tells what it told before; return False if its notes are gone."""
        try:
            os.utime(self._notes_path(runner))
        except FileNotFoundError:
            return False
        return True

    def read_notes(self) -> RunnerNotes:
        """Return what all runners tell that are there, with the sums of their counts."""
        missed: dict[BucketShape, int] = {}
        refused: dict[BucketShape, str] = {}
        unpadded: set[str] = set()
        problem = ""
        for path in self._list_notes():
            content = _read_json(path)
            try:
                for shape, count in content["missed"]:
                    bucket = _read_shape(shape)
                    missed[bucket] = missed.get(bucket, 0) + int(count)
                refused.update({_read_shape(shape): str(reason) for shape, reason in content["refused"]})
                unpadded.update(map(str, content["unpadded"]))
                problem = str(content["problem"]) or problem
            except (TypeError, ValueError, KeyError):
                continue
        frequent = sorted(missed.items(), key=lambda entry: -entry[1])
        return RunnerNotes(tuple(frequent), tuple(refused.items()), tuple(sorted(unpadded)), problem)

    def _notes_path(self, runner: str) -> Path:
        return self.root / f"runner-{runner}.json"

    def _list_notes(self) -> list[Path]:
        oldest = time.time() - MAX_NOTES_AGE_S
        recent: list[Path] = []
        for path in sorted(self.root.glob("runner-*.json")):
            with suppress(OSError):
                if path.stat().st_mtime >= oldest:
                    recent.append(path)
        return recent[:MAX_RUNNERS]


def find_engine_dir(
    version_dir: Path, engine: str, precision: str, rows: Sequence[int], lengths: Sequence[int]
) -> Path:
    """Return the folder of the engines of a version and an order, in that through which its compiled graph came."""
    order = json.dumps([engine, precision, list(rows), list(lengths)])
    return version_dir / f"engines-{hashlib.sha256(order.encode()).hexdigest()[:16]}"


def describe_shape(shape: BucketShape) -> str:
    """Return the shape for people: `history 128x50, item 128`."""
    return ", ".join(f"{name} {'x'.join(map(str, sizes)) or 'scalar'}" for name, sizes in shape)


def _read_bucket(entry: Any) -> CompiledBucket:
    return CompiledBucket(
        shape=_read_shape(entry["shape"]),
        engine=str(entry["engine"]),
        file=Path(str(entry["file"])).name,
        sha256=str(entry["sha256"]),
        reason=str(entry["reason"]),
        speedup=float(entry["speedup"]),
        max_error=float(entry["max_error"]),
        cached=bool(entry["cached"]),
        attempts=int(entry["attempts"]),
        lookups=Path(str(entry["lookups"])).name,
        checked=tuple(map(str, entry["checked"])),
    )


def _read_shape(content: Sequence[Any]) -> BucketShape:
    return tuple((str(name), tuple(int(size) for size in sizes)) for name, sizes in content)


def _read_json(path: Path) -> Any:
    """Return the content of a file; None if it is missing, too large, or no JSON."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        return json.loads(content) if len(content) <= MAX_FILE_BYTES else None
    except (OSError, ValueError):
        return None


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content))
    part.replace(path)
