"""The page of the processes' settings: each environment variable with its type, default and meaning."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate.reference.markdown import code, notice, plain, table

_HEAD: Final = (
    notice("the Settings of each process")
    + """# Settings

Each process reads environment variables once, when it starts.
The chart sets those that its [values](../../charts/tidegate/values.yaml) are about; the others are for tests and for running a process by hand.
Lists are written as JSON.
"""
)


@dataclass(frozen=True, slots=True)
class Process:
    """Whose settings a model holds, and how its variables are called."""

    title: str
    about: str
    model: type[BaseModel]
    variable: Callable[[str], str]
    """From a field's name to its variable's."""


def settings_page(processes: Sequence[Process]) -> str:
    """docs/reference/settings.md: a table for each process."""
    return _HEAD + "".join(_section(process) for process in processes)


def _section(process: Process) -> str:
    rows = [
        (code(process.variable(name)), _type(field.annotation), _default(field), _meaning(field))
        for name, field in process.model.model_fields.items()
    ]
    return f"\n## {process.title}\n\n{process.about}\n\n" + table(
        ("variable", "type", "default", "meaning"), rows
    )


def _type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return _type(next(each for each in get_args(annotation) if each is not NoneType))
    if get_origin(annotation) is tuple:
        return f"list of {_type(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(code(str(member.value)) for member in annotation)
    return {str: "text", int: "number", float: "number", bool: "yes or no", Path: "path"}[annotation]


def _default(field: FieldInfo) -> str:
    default = field.default
    if default in (None, "", ()):
        return ""
    return code(str(default).lower() if isinstance(default, bool) else default)


def _meaning(field: FieldInfo) -> str:
    said = (field.description or "").rstrip(".")
    if said.partition(" ")[0].isalpha():  # and not the name of a file
        said = f"{said[0].upper()}{said[1:]}"
    return " ".join((*([f"{plain(said)}."] if said else []), *_rules(field)))


def _rules(field: FieldInfo) -> Iterator[str]:
    words = (("ge", "{} or more"), ("gt", "More than {}"), ("le", "{} at most"), ("pattern", "Matches `{}`"))
    for name, sentence in words:
        for rule in field.metadata:
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{sentence.format(bound)}."
