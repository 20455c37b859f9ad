"""docs/reference/commands.md: every command with its arguments and options, as in `--help`."""

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
`tidegate local` and `tidegate demo` exist if the local cluster is installed.

"""
)


def commands_page(app: typer.Typer, local: Mapping[str, typer.Typer]) -> str:
    """Render docs/reference/commands.md: the commands in the order of their help, then those of `local`."""
    sections = list(_sections(get_command(app), ("tidegate",), excluded=frozenset(local)))
    for name, subcommand in local.items():
        sections += _sections(get_command(subcommand), ("tidegate", name))
    return _HEAD + "\n".join(sections)


def _sections(command: Any, path: Sequence[str], excluded: Collection[str] = ()) -> Iterator[str]:
    children = cast(dict[str, Any], getattr(command, "commands", {}))
    if len(path) > 1:
        yield _section(command, path, group=bool(children))
    for name, child in children.items():
        if not child.hidden and name not in excluded:
            yield from _sections(child, (*path, name))


def _section(command: Any, path: Sequence[str], *, group: bool) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    usage = " ".join([*path, *(["COMMAND"] if group else []), *map(_usage, arguments)])
    level = "#" * min(len(path), 3)
    rows = [(code(_usage(argument)), _value(argument), _help(argument)) for argument in arguments]
    rows += [(_names(option), _value(option), _help(option)) for option in options]
    return (
        f"{level} {' '.join(path)}\n\n{plain(' '.join((command.help or '').split()))}\n\n"
        f"`{usage} [OPTIONS]`\n\n" + table(("option", "value", "meaning"), rows)
    )


def _usage(argument: Any) -> str:
    name = (argument.metavar or str(argument.name)).strip("[]").upper()
    usage = f"{name}…" if argument.nargs == -1 else name
    return usage if argument.required else f"[{usage}]"


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
    text = plain(parameter.help or "")
    # Computed and empty defaults, and those of flags, are of no use to readers.
    if callable(default) or default in (None, "", False, (), []) or getattr(parameter, "is_flag", False):
        return text
    return f"{text} Default: {code(_said(default))}.".strip()


def _said(value: object) -> str:
    return str(getattr(value, "value", value))
