"""How many examples of a property are tried: all in `make test-all`, at random; a third in `make test`, always the same."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

ALL_TESTS_VARIABLE: Final = "TIDEGATE_ALL_TESTS"
"""Set by `tests/run.py --all`."""
_PART: Final = 3


def examples(thorough: int) -> int:
    """Return the number for `max_examples`, where `thorough` is what a full run tries."""
    return thorough if _is_full_run() else thorough // _PART


def load_hypothesis_profile() -> None:
    """Let no example fail because a busy machine took long over it, and a full run look where no run has looked."""
    settings.register_profile(
        "any-machine",
        max_examples=examples(100),
        deadline=None,
        derandomize=not _is_full_run(),
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any-machine")


def _is_full_run() -> bool:
    return os.environ.get(ALL_TESTS_VARIABLE) == "1"
