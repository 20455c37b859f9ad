"""Parse options that are durations."""

from __future__ import annotations

from datetime import timedelta

import typer


def parse_duration_option(option: str, text: str) -> timedelta:
    """Parse a duration. Raises BadParameter that begins with `option`."""
    from tidegate.api.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        message = f"{option}: {error}"
        raise typer.BadParameter(message) from error
