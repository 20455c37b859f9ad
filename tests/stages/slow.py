"""Tests marked `slow`: `make test-all` runs them all, `make test` a minute of them that changes with every commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

LAST_FULL_RUN: Final = Path(__file__).resolve().parents[1] / "last-full-run.json"
OLDEST: Final = timedelta(days=7)
LONG_FILE_S: Final = 10.0
_SLICE_S: Final = 60.0
_UNKNOWN_S: Final = 20.0
"""Seconds assumed for a test that no full run has measured."""


@dataclass(frozen=True, slots=True)
class FullRun:
    """The last `make test-all`, as committed."""

    commit: str
    time: str
    seconds: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of each stage."""
    failed: Sequence[str] = ()
    slow: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of each slow test."""
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    """Seconds of each file that takes long: the longest begin."""

    @property
    def age(self) -> timedelta:
        """Time since it ended."""
        return datetime.now(UTC) - datetime.fromisoformat(self.time)


def read_last_full_run(path: Path = LAST_FULL_RUN) -> FullRun | None:
    """Return what is committed; None before the first full run."""
    return FullRun(**json.loads(path.read_text())) if path.exists() else None


def write_full_run(run: FullRun, path: Path = LAST_FULL_RUN) -> None:
    """Replace what is committed."""
    path.write_text(json.dumps(asdict(run), indent=1, sort_keys=True) + "\n")


def age_line(run: FullRun | None) -> str:
    """Return what `make verify` prints about the last full run."""
    if run is None:
        return "WARNING: no run of all tests is recorded; `make test-all` makes one, to be committed"
    line = f"all tests last ran at {run.commit}, {run.age.days} days ago, {len(run.failed)} failed"
    return f"WARNING: {line}; run `make test-all` and commit its result" if run.age > OLDEST else line


def choose_slice(tests: Iterable[str], seed: str, seconds: Mapping[str, float]) -> frozenset[str]:
    """Return tests that take one minute together, chosen by the seed.

    The seed determines the order; tests are added in that order while they fit. `seconds` is the duration of each
    test in the last full run. The first test is always chosen, even if it takes longer: so every test is run by some seed.
    """
    order = sorted(tests, key=lambda test: hashlib.sha256(f"{seed} {test}".encode()).digest())
    chosen: list[str] = []
    spent = 0.0
    for test in order:
        takes = seconds.get(test, _UNKNOWN_S)
        if not chosen or spent + takes <= _SLICE_S:
            chosen.append(test)
            spent += takes
    return frozenset(chosen)
