"""Whether our own programs would take a command: its name, its options and their values, and how many arguments."""

from __future__ import annotations

import functools
import re
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from typer._click.exceptions import UsageError
from typer.main import get_command

from documented.pages import ROOT
from tidegate.main import app
from tidegate_localcluster.cli import app as local
from tidegate_localcluster.demo.cli import app as demo

TIDEGATE = frozenset({"tidegate", ".venv/bin/tidegate"})
PYTHON = frozenset({"python", "python3", ".venv/bin/python"})
_MAKEFILE = (ROOT / "Makefile").read_text()
_TARGETS = frozenset(re.findall(r"^([a-z][a-z0-9-]*):", _MAKEFILE, re.MULTILINE))
_SOURCES = ("operator", "controllers", "dataplane", "localcluster", "")


def of_tidegate(words: tuple[str, ...], *, whole: bool = True) -> str:
    """What is wrong with a command of `tidegate`, given without its name; `whole`: nothing was left out for brevity."""
    command, children = _commands()
    path, rest = "tidegate", list(words)
    while children:
        options = {name for each in command.params for name in each.opts} | {"--help"}
        if not rest or rest[0] in options:
            return ""
        if rest[0] not in children:
            return f"{path} has no command {rest[0]!r}"
        command, path = children[rest[0]], f"{path} {rest.pop(0)}"
        children = getattr(command, "commands", {})
    return _of_leaf(command, path, rest, whole=whole)


@functools.cache
def _commands() -> tuple[Any, dict[str, Any]]:
    """Return `tidegate` and its commands: to make them of their functions takes long."""
    commands = get_command(app)
    return commands, {**commands.commands, "local": get_command(local), "demo": get_command(demo)}


def _of_leaf(command: Any, path: str, words: list[str], *, whole: bool) -> str:
    context = command.context_class(command, info_name=path, allow_extra_args=True)
    if getattr(command, "context_settings", {}).get("ignore_unknown_options"):
        return ""
    try:
        found, extra, _ = command.make_parser(context).parse_args(args=list(words))
    except UsageError as error:
        return f"{path}: {error.format_message()}"
    if extra and not command.context_settings.get("allow_extra_args"):
        return f"{path} takes no {' '.join(extra)!r}"
    for parameter in command.params:
        values = found.get(parameter.name)
        if (whole and parameter.required and values in (None, "", ())) or _unset(
            values, parameter, whole=whole
        ):
            return f"{path} lacks {parameter.name}"
        if problem := _not_one_of(parameter, values):
            return f"{path}: {problem}"
    return ""


def _unset(values: object, parameter: Any, *, whole: bool) -> bool:
    """Whether a required one was left out; the parser has a value of its own for that."""
    return bool(whole and parameter.required and type(values).__name__ == "Sentinel")


def _not_one_of(parameter: Any, values: object) -> str:
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    if not (isinstance(annotation, type) and issubclass(annotation, Enum)):
        return ""
    known = {str(member.value) for member in annotation}
    given = {
        value
        for value in (values if isinstance(values, list | tuple) else [values])
        if isinstance(value, str)
    }
    return f"{parameter.name} is none of {sorted(known)}: {sorted(given - known)}" if given - known else ""


def of_make(words: tuple[str, ...]) -> str:
    """What is wrong with a command of `make`, given without its name."""
    for word in words:
        variable, is_one, _ = word.partition("=")
        if is_one and f"$({variable})" not in _MAKEFILE:
            return f"the Makefile has no variable {variable}"
        if not is_one and word not in _TARGETS:
            return f"the Makefile has no target {word}"
    return ""


def of_python(words: tuple[str, ...]) -> str:
    """What is wrong with a command of python that runs something of this repository."""
    if words[:1] == ("-m",):
        name = words[1].replace(".", "/")
        paths = [ROOT / root / f"{name}{end}" for root in _SOURCES for end in (".py", "/__main__.py")]
        rest = words[2:]
    else:
        paths, rest = [ROOT / words[0]], words[1:]
    source = next((path for path in paths if path.is_file()), None)
    if source is None:
        return f"there is no {words[0]} {words[1] if words[0] == '-m' else ''}".rstrip()
    return _options_of(source, rest)


def _options_of(source: Path, words: tuple[str, ...]) -> str:
    text = source.read_text()
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = [option for option in options if f'"{option}"' not in text]
    return f"{source.relative_to(ROOT)} has no {', '.join(unknown)}" if unknown else ""
