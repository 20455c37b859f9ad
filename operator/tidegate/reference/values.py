"""The values of the charts, from the comments of values.yaml: the reference page, the charts' READMEs and their schemas."""

from __future__ import annotations

import copy
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
_README: Final = """# {name}

{description}

```console
$ helm install {name} charts/{name} --namespace tidegate-system --create-namespace --values values.yaml
```

The chart needs Kubernetes 1.30 or newer, and Helm 3.18, or Helm 4.
[Install with Helm](../../docs/how-to/install-by-helm.md) explains which values to set first, upgrades and removal.
The chart rejects unknown values and wrong types with the path of the value.
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


def render_chart_readme(name: str, description: str, text: str) -> str:
    """Render the README.md of a chart from its description and the text of its values.yaml."""
    return (
        render_notice("Chart.yaml and values.yaml")
        + _README.format(name=name, description=description)
        + "\n## Values\n\n"
        + _render_values_table(text)
    )


def describe_schema(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a chart's JSON schema with the comments of its values.yaml as the descriptions of its properties.

    A property that several values share by $ref has the comment of the first of them.
    """
    described: dict[str, Any] = _strip_descriptions(copy.deepcopy(dict(schema)))
    for path, comment in _parse_comments(text):
        node, shared = _find_property(described, path)
        if comment and node is not None and not (shared and "description" in node):
            rest = dict(node)
            node.clear()
            node.update({"description": comment, **rest})
    return described


def parse_values(text: str) -> tuple[ChartValue, ...]:
    """Parse the values of a values.yaml, in their order.

    The comment of a key is the lines above it that begin with #, up to an empty line or another key.
    Raises ValueError for a file that is not indented by two spaces.
    """
    comments = dict(_parse_comments(text))
    return tuple(_walk_values(yaml.safe_load(text), (), comments))


def _render_section(name: str, text: str) -> str:
    return f"\n## {name}\n\n" + _render_values_table(text)


def _render_values_table(text: str) -> str:
    rows = (
        (format_code(value.path), format_code(value.default), escape_text(value.comment))
        for value in parse_values(text)
    )
    return render_table(("value", "default", "meaning"), rows)


def _strip_descriptions(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _strip_descriptions(value)
            for key, value in node.items()
            if key != "description" or not isinstance(value, str)
        }
    return [_strip_descriptions(value) for value in node] if isinstance(node, list) else node


def _find_property(schema: dict[str, Any], path: Sequence[str]) -> tuple[dict[str, Any] | None, bool]:
    """Return the schema of a value, None if it is a key of the user's own; and whether other values share it."""
    node, shared = schema, False
    for key in path:
        container, by_reference = _find_object(schema, node)
        shared = shared or by_reference
        inner = container.get("properties", {}).get(key)
        if inner is None:
            return None, shared
        node = inner
    return node, shared


def _find_object(schema: Mapping[str, Any], node: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema that has the properties of `node`, and whether it is one of $defs."""
    shared = "$ref" in node
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
    options = (option for option in node.get("oneOf", ()) if "properties" in option)
    return next(options, node), shared


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
