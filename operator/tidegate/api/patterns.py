"""Size of regular expressions in RE2, which Envoy limits."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, cast

import re2  # type: ignore[import-untyped]  # comes without types

MAX_PROGRAM_SIZE: Final = 100
"""Envoy rejects larger programs (`re2.max_program_size.error_level`), and with them the update of all routes."""


@lru_cache(maxsize=4096)
def measure_program(pattern: str) -> int | None:
    """Return the number of instructions that RE2 compiles `pattern` to; None if it does not compile."""
    options = re2.Options()
    options.log_errors = False
    try:
        return cast(int, re2.compile(pattern, options).programsize)
    except re2.error:
        return None
