"""docs/reference/settings.md: each environment variable with its type, default and meaning."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate.reference.markdown import escape_text, format_code, render_notice, render_table

_HEAD: Final = (
    render_notice("the Settings of each process")
    + """# Settings

Each process reads environment variables once, when it starts.
The chart sets those that its [values](../../charts/tidegate/values.yaml) control; the others are for tests and for running a process by hand.
Lists are written as JSON.
"""
)


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """A process with the model of its settings."""

    title: str
    about: str
    model: type[BaseModel]
    variable_name: Callable[[str], str]
    """Converts the name of a field to the name of its variable."""


def render_settings_page(processes: Sequence[ProcessSettings]) -> str:
    """Render docs/reference/settings.md: a table per process."""
    return _HEAD + "".join(_render_section(process) for process in processes)


def _render_section(process: ProcessSettings) -> str:
    rows = [
        (
            format_code(process.variable_name(name)),
            _format_type(field.annotation),
            _format_default(field),
            _format_meaning(field),
        )
        for name, field in process.model.model_fields.items()
    ]
    return f"\n## {process.title}\n\n{process.about}\n\n" + render_table(
        ("variable", "type", "default", "meaning"), rows
    )


def _format_type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return _format_type(next(option for option in get_args(annotation) if option is not NoneType))
    if get_origin(annotation) is tuple:
        return f"list of {_format_type(get_args(annotation)[0])}"
    if get_origin(annotation) is Mapping:
        return f"map of {_format_type(get_args(annotation)[1])}s"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(format_code(str(member.value)) for member in annotation)
    return {str: "text", int: "number", float: "number", bool: "yes or no", Path: "path"}[annotation]


def _format_default(field: FieldInfo) -> str:
    default = field.default
    if default in (None, "", ()):
        return ""
    return format_code(str(default).lower() if isinstance(default, bool) else default)


def _format_meaning(field: FieldInfo) -> str:
    text = (field.description or "").rstrip(".")
    if text.partition(" ")[0].isalpha():  # and not the name of a file
        text = f"{text[0].upper()}{text[1:]}"
    return " ".join((*([f"{escape_text(text)}."] if text else []), *_format_bounds(field)))


def _format_bounds(field: FieldInfo) -> Iterator[str]:
    sentences = (
        ("ge", "{} or more"),
        ("gt", "More than {}"),
        ("le", "{} at most"),
        ("pattern", "Matches `{}`"),
    )
    for name, sentence in sentences:
        for rule in field.metadata:
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{sentence.format(bound)}."
