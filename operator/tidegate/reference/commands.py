"""The page of the command line: every command with its arguments and options, as `--help` has them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast, get_args, get_origin

import typer
from typer.main import get_command

from tidegate.reference.markdown import code, notice, plain, table

_TYPES: Final = {str: "text", int: "number", float: "number", Path: "path"}
_HEAD: Final = (
    notice("operator/tidegate/main.py and operator/tidegate/cli/")
    + """# The command line

`tidegate` and `kubectl tidegate` are one program ([how to use it](../how-to/use-the-command-line.md)); `--help` says the same as this page.
`tidegate local` and `tidegate demo` are there where the local cluster is installed.

"""
)


def commands_page(app: typer.Typer, local: Mapping[str, typer.Typer]) -> str:
    """docs/reference/commands.md: the processes and the tools, in the order of their help; then what `local` adds."""
    sections = list(_sections(get_command(app), ("tidegate",), but=frozenset(local)))
    for name, added in local.items():
        sections += _sections(get_command(added), ("tidegate", name))
    return _HEAD + "\n".join(sections)


def _sections(command: Any, path: Sequence[str], but: Collection[str] = ()) -> Iterator[str]:
    children = cast(dict[str, Any], getattr(command, "commands", {}))
    if len(path) > 1:
        yield _section(command, path, group=bool(children))
    for name, child in children.items():
        if not child.hidden and name not in but:
            yield from _sections(child, (*path, name))


def _section(command: Any, path: Sequence[str], *, group: bool) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join([*path, *(["COMMAND"] if group else []), *map(_usage, arguments)])
    level = "#" * min(len(path), 3)
    rows = [(code(_usage(each)), _value(each), _help(each)) for each in arguments]
    rows += [(_names(each), _value(each), _help(each)) for each in options]
    return (
        f"{level} {' '.join(path)}\n\n{plain(' '.join((command.help or '').split()))}\n\n"
        f"`{usage} [OPTIONS]`\n\n" + table(("option", "value", "meaning"), rows)
    )


def _usage(argument: Any) -> str:
    name = (argument.metavar or str(argument.name)).strip("[]").upper()
    shown = f"{name}…" if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def _names(option: Any) -> str:
    return ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))


def _value(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        kind = ", ".join(code(member.value) for member in annotation)
    else:
        kind = _TYPES[annotation]
    return f"{kind}; may be repeated" if getattr(parameter, "multiple", False) else kind


def _help(parameter: Any) -> str:
    default = parameter.default
    said = plain(parameter.help or "")
    # What a function answers, an empty text and a switch that is off say nothing.
    if callable(default) or default in (None, "", False, (), []) or getattr(parameter, "is_flag", False):
        return said
    return f"{said} Default: {code(_said(default))}.".strip()


def _said(value: object) -> str:
    return str(getattr(value, "value", value))
