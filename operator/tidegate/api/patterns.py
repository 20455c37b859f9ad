"""Regular expressions as Envoy reads them: RE2, in time linear in the text, and small."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, cast

import re2  # type: ignore[import-untyped]  # comes without types

MAX_PROGRAM_SIZE: Final = 100
"""Envoy refuses more (`re2.max_program_size.error_level`), and a refused route would hold up everybody's routes."""


@lru_cache(maxsize=4096)
def program_size(pattern: str) -> int | None:
    """How many instructions RE2 makes of `pattern`; None when it is no expression that RE2 knows."""
    options = re2.Options()
    options.log_errors = False
    try:
        return cast(int, re2.compile(pattern, options).programsize)
    except re2.error:
        return None
