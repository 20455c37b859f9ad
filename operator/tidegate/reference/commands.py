"""docs/reference/commands.md: every command with its arguments and options, as in `--help`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast, get_args, get_origin

import typer
from typer.main import get_command

from tidegate.cli.help_pages import EXAMPLES_TITLE
from tidegate.reference.markdown import escape_text, format_code, render_notice, render_table

_TYPE_NAMES: Final = {str: "text", int: "number", float: "number", Path: "path"}
_HEAD: Final = (
    render_notice("operator/tidegate/main.py and operator/tidegate/cli/")
    + """# The command line

`tidegate` and `kubectl tidegate` are one program ([how to use it](../how-to/use-the-command-line.md)); `--help` says the same as this page.
`tidegate local` and `tidegate demo` exist if the local cluster is installed.

"""
)


def render_commands_page(app: typer.Typer, local: Mapping[str, typer.Typer]) -> str:
    """Render docs/reference/commands.md: the commands in the order of their help, then those of `local`."""
    sections = list(_render_sections(get_command(app), ("tidegate",), excluded=frozenset(local)))
    for name, subcommand in local.items():
        sections += _render_sections(get_command(subcommand), ("tidegate", name))
    return _HEAD + "\n".join(sections)


def _render_sections(command: Any, path: Sequence[str], excluded: Collection[str] = ()) -> Iterator[str]:
    children = cast(dict[str, Any], getattr(command, "commands", {}))
    if len(path) > 1:
        yield _render_section(command, path, group=bool(children))
    names = command.list_commands(None) if children else ()
    for name, child in ((name, children[name]) for name in names):
        if not child.hidden and name not in excluded:
            yield from _render_sections(child, (*path, name))


def _render_section(command: Any, path: Sequence[str], *, group: bool) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    usage = " ".join([*path, *(["COMMAND"] if group else []), *map(_format_usage, arguments)])
    level = "#" * min(len(path), 3)
    rows = [
        (format_code(_format_usage(argument)), _format_type(argument), _format_help(argument))
        for argument in arguments
    ]
    rows += [(_format_names(option), _format_type(option), _format_help(option)) for option in options]
    return (
        f"{level} {' '.join(path)}\n\n{escape_text(' '.join((command.help or '').split()))}\n\n"
        f"`{usage} [OPTIONS]`\n\n{_render_examples(command)}"
        + render_table(("option", "value", "meaning"), rows)
    )


def _render_examples(command: Any) -> str:
    """Render the examples of a command as typed in a shell; empty if it has none."""
    lines = (command.epilog or "").removeprefix(EXAMPLES_TITLE).split("\n\n")
    calls = "".join(f"$ {line}\n" for line in lines if line)
    return f"```console\n{calls}```\n\n" if calls else ""


def _format_usage(argument: Any) -> str:
    name = (argument.metavar or str(argument.name)).strip("[]").upper()
    usage = f"{name}…" if argument.nargs == -1 else name
    return usage if argument.required else f"[{usage}]"


def _format_names(option: Any) -> str:
    return ", ".join(format_code(name) for name in (*option.opts, *option.secondary_opts))


def _format_type(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        kind = ", ".join(format_code(member.value) for member in annotation)
    else:
        kind = _TYPE_NAMES[annotation]
    return f"{kind}; may be repeated" if getattr(parameter, "multiple", False) else kind


def _format_help(parameter: Any) -> str:
    default = parameter.default
    text = escape_text(parameter.help or "")
    # Computed and empty defaults, and those of flags, are of no use to readers.
    if callable(default) or default in (None, "", False, (), []) or getattr(parameter, "is_flag", False):
        return text
    return f"{text} Default: {format_code(_format_default(default))}.".strip()


def _format_default(value: object) -> str:
    return str(getattr(value, "value", value))
