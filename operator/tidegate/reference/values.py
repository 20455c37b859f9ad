"""The page of the charts' values: what their values.yaml say above each key, and what is the case unless it is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tidegate.reference.markdown import code, notice, plain, table

_INDENT: Final = 2
_INTRODUCTION: Final = """# Values of the charts

Look here for what a release can be told with `--set` or a file of values.
What a chart does not know, or what has the wrong type, is refused with the path of the value (values.schema.json).
[Install with Helm](../how-to/install-by-helm.md) tells which of them matter first.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One key of a values.yaml that holds no further keys of the chart's own."""

    path: str
    default: str
    said: str
    """The comment above it, or beside the keys around it; empty where there is none."""


def values_page(charts: Mapping[str, str]) -> str:
    """The page, from the text of each chart's values.yaml."""
    sections = "".join(_section(name, text) for name, text in charts.items())
    return notice("the values.yaml of each chart") + _INTRODUCTION + sections


def values_of(text: str) -> tuple[Value, ...]:
    """Every value of a values.yaml, in its order.

    The comment of a key is the lines above it that begin with # at its own depth, up to an empty line or another key.
    Raises ValueError for a file that is not written in steps of two spaces.
    """
    comments = dict(_comments(text))
    return tuple(_leaves(yaml.safe_load(text), (), comments))


def _section(name: str, text: str) -> str:
    rows = ((code(each.path), code(each.default), plain(each.said)) for each in values_of(text))
    return f"\n## {name}\n\n" + table(("value", "unless set", "what it is"), rows)


def _leaves(
    values: Mapping[str, Any], above: Sequence[str], comments: Mapping[tuple[str, ...], str]
) -> Iterator[Value]:
    for key, value in values.items():
        path = (*above, key)
        said = comments.get(path, "")
        # What is written on one line is a value as a whole; what is written below its key has keys of the chart's own.
        if isinstance(value, dict) and value and _has_keys_below(path, comments):
            yield from _described(path, said)
            yield from _leaves(value, path, comments)
        else:
            yield Value(".".join(path), _shown(value), said)


def _described(path: tuple[str, ...], said: str) -> Iterator[Value]:
    if said:
        yield Value(".".join(path), "…", said)


def _has_keys_below(path: tuple[str, ...], comments: Mapping[tuple[str, ...], str]) -> bool:
    return any(len(other) == len(path) + 1 and other[: len(path)] == path for other in comments)


def _comments(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The path of every key that stands on a line of its own, and the comment above it."""
    path: list[str] = []
    said: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        depth = (len(line) - len(line.lstrip())) // _INDENT
        if not bare or bare.startswith("- "):
            said = []
        elif bare.startswith("#"):
            said.append(bare.removeprefix("#").strip())
        else:
            key, colon, _ = bare.partition(":")
            if not colon or depth > len(path):
                message = f"values.yaml: {line!r} is no key two spaces below another"
                raise ValueError(message)
            path = [*path[:depth], key]
            yield tuple(path), " ".join(said)
            said = []


def _shown(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
