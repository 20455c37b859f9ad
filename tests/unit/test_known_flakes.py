"""The list of flaky tests stays short and young."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stages.flakes import known_flakes

ROOT = Path(__file__).resolve().parents[2]
MOST = 10
OLDEST = timedelta(days=14)


def test_the_list_of_flaky_tests_is_short_and_young() -> None:
    flakes = known_flakes()
    today = datetime.now(UTC).date()
    assert len(flakes) <= MOST, "mend some before adding more"
    for flake in flakes:
        assert timedelta() <= today - flake.date <= OLDEST, f"{flake.id}, of {flake.date}: mend or delete it"
        assert flake.owner, f"{flake.id} has no owner"


def test_listed_tests_exist() -> None:
    for flake in known_flakes():
        path, _, name = flake.id.partition("::")
        function = name.partition("[")[0]
        source = (ROOT / path).read_text()
        assert re.search(rf"^(?:async )?def {function}\(", source, re.MULTILINE), (
            f"{flake.id} is gone: take it off the list"
        )
