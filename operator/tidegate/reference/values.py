"""docs/reference/values.md: the values of the charts, with their defaults and comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tidegate.reference.markdown import escape_text, format_code, render_notice, render_table

_INDENT: Final = 2
_INTRODUCTION: Final = """# Values of the charts

All values that `--set` or a values file can set.
A chart rejects unknown values and wrong types with the path of the value (values.schema.json).
[Install with Helm](../how-to/install-by-helm.md) explains which values to set first.
"""


@dataclass(frozen=True, slots=True)
class ChartValue:
    """A key of a values.yaml without further documented keys below it."""

    path: str
    default: str
    comment: str
    """The comment above the key; empty if there is none."""


def render_values_page(charts: Mapping[str, str]) -> str:
    """Render docs/reference/values.md from the text of each chart's values.yaml."""
    sections = "".join(_render_section(name, text) for name, text in charts.items())
    return render_notice("the values.yaml of each chart") + _INTRODUCTION + sections


def parse_values(text: str) -> tuple[ChartValue, ...]:
    """Parse the values of a values.yaml, in their order.

    The comment of a key is the lines above it that begin with #, up to an empty line or another key.
    Raises ValueError for a file that is not indented by two spaces.
    """
    comments = dict(_parse_comments(text))
    return tuple(_walk_values(yaml.safe_load(text), (), comments))


def _render_section(name: str, text: str) -> str:
    rows = (
        (format_code(value.path), format_code(value.default), escape_text(value.comment))
        for value in parse_values(text)
    )
    return f"\n## {name}\n\n" + render_table(("value", "default", "meaning"), rows)


def _walk_values(
    values: Mapping[str, Any], parent: Sequence[str], comments: Mapping[tuple[str, ...], str]
) -> Iterator[ChartValue]:
    for key, value in values.items():
        path = (*parent, key)
        comment = comments.get(path, "")
        # A mapping on one line is one value; a mapping on several lines consists of values of the chart.
        if isinstance(value, dict) and value and _has_keys_below(path, comments):
            yield from _yield_group(path, comment)
            yield from _walk_values(value, path, comments)
        else:
            yield ChartValue(".".join(path), _format_default(value), comment)


def _yield_group(path: tuple[str, ...], comment: str) -> Iterator[ChartValue]:
    if comment:
        yield ChartValue(".".join(path), "…", comment)


def _has_keys_below(path: tuple[str, ...], comments: Mapping[tuple[str, ...], str]) -> bool:
    return any(len(other) == len(path) + 1 and other[: len(path)] == path for other in comments)


def _parse_comments(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of every key that begins a line, and the comment above it."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        depth = (len(line) - len(line.lstrip())) // _INDENT
        if not stripped or stripped.startswith("- "):
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
        else:
            key, colon, _ = stripped.partition(":")
            if not colon or depth > len(path):
                message = f"values.yaml: {line!r} is no key two spaces below another"
                raise ValueError(message)
            path = [*path[:depth], key]
            yield tuple(path), " ".join(comment)
            comment = []


def _format_default(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
