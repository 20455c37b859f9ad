"""The record of tests that failed and then passed alone, and the list of those that wait to be mended."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from stages.results import Failure, FailureKind

LIST: Final = Path(__file__).resolve().parents[1] / "flaky.toml"


@dataclass(frozen=True, slots=True)
class KnownFlake:
    """One entry of flaky.toml."""

    id: str
    date: datetime.date
    kind: FailureKind
    owner: str
    """The part of the product or of the tests in which the race is looked for."""
    message: str


@dataclass(frozen=True, slots=True)
class Flake:
    """A test that failed in a whole run and passed when it was run once more, alone."""

    test: str
    stage: str
    commit: str
    time: str
    failure: Failure


def known_flakes(path: Path = LIST) -> Sequence[KnownFlake]:
    """Return the entries of flaky.toml. Raises TypeError, KeyError or ValueError for a bad entry."""
    entries = tomllib.loads(path.read_text()).get("flaky", ())
    return [KnownFlake(**{**entry, "kind": FailureKind(entry["kind"])}) for entry in entries]


def record(path: Path, flakes: Sequence[Flake]) -> None:
    """Append a line of JSON per flake."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for flake in flakes:
            file.write(json.dumps(asdict(flake)) + "\n")
