"""The pages that are written from code say what the code does: each field, command and variable, with its bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, Field

from tidegate.api.crd import DEFINITIONS, Definition
from tidegate.api.structural import structural
from tidegate.generate import documented_settings
from tidegate.main import app
from tidegate.reference.commands import commands_page
from tidegate.reference.kinds import kind_pages
from tidegate.reference.settings import Process, settings_page
from tidegate.settings import Settings
from tidegate_dataplane.agent.settings import Settings as AgentSettings


def row(page: str, of: str) -> tuple[str, ...]:
    """The cells of the row about `of`."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| `{of}`")]
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])


def fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from fields(child, f"{path}.{name}")
        yield from fields(child.get("items", {}), f"{path}.{name}[]")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.resource.KIND)
def test_a_kinds_page_has_each_of_its_fields_once(definition: Definition) -> None:
    schema = structural(definition.resource)["properties"]
    page = kind_pages()[f"{definition.resource.KIND.lower()}.md"]

    rows = re.findall(r"^\| `((?:spec|status)\.[^`]+)`", page, re.MULTILINE)

    assert rows == [*fields(schema["spec"], "spec"), *fields(schema["status"], "status")]


def test_a_field_has_type_default_bounds_and_rules() -> None:
    page = kind_pages()["inference.md"]

    assert row(page, "spec.replicas")[1:3] == ("integer", "`1`")
    assert row(page, "spec.replicas")[3].endswith("<br>0 to 1000.")
    assert row(page, "spec.model")[2] == "required"
    assert row(page, "spec.resources.memory")[1] == "quantity"
    assert "One of `realtime`, `nearline`, `offline`." in row(page, "spec.tier")[3]
    assert "revision is only for oci:// and hf://" in row(page, "spec.model")[3]
    assert "`replicas`: replicas is only for Inferences without scaling" in page.partition("## Rules")[2]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.resource.KIND)
def test_each_field_says_what_it_is_on_its_page_too(definition: Definition) -> None:
    page = kind_pages()[f"{definition.resource.KIND.lower()}.md"]
    lines = [line for line in page.splitlines() if line.startswith(("| `spec.", "| `status."))]
    silent = [line for line in lines if re.search(r"\|\s*(?:`[^`]*`: [^|]*)?\|$", line)]
    assert lines
    assert silent == []


def test_what_a_list_holds_is_ruled_too() -> None:
    assert "Each `name` once." in row(kind_pages()["modelaccess.md"], "spec.routes")[3]


class Colour(StrEnum):
    RED = "red"


def a_program() -> typer.Typer:
    program = typer.Typer()

    @program.command()
    def paint(
        wall: Annotated[str, typer.Argument(help="Which <wall>.")],
        colour: Annotated[Colour, typer.Option("--colour", "-c", help="Of the paint.")] = Colour.RED,
        *,
        twice: Annotated[bool, typer.Option(help="Two coats.")] = False,
    ) -> None:
        """Paint a wall."""

    @program.command(hidden=True)
    def secret() -> None:
        """Not for people."""

    @program.callback()
    def group() -> None:
        """A group of two."""

    return program


def test_a_command_has_its_arguments_and_options() -> None:
    page = commands_page(a_program(), {})

    assert "## tidegate paint\n\nPaint a wall.\n\n`tidegate paint WALL [OPTIONS]`" in page
    assert row(page, "WALL")[2] == "Which &lt;wall>."
    assert row(page, "--colour") == ("`--colour`, `-c`", "`red`", "Of the paint. Default: `red`.")
    assert row(page, "--twice") == ("`--twice`, `--no-twice`", "", "Two coats.")
    assert "secret" not in page


def test_commands_that_are_added_are_listed_once() -> None:
    page = commands_page(app, {"local": a_program()})

    assert page.count("tidegate local paint\n") == 1
    assert "## tidegate status\n" in page
    assert "### tidegate release pause\n" in page


class Limits(BaseModel):
    size: Annotated[int, Field(ge=1, le=9, description="of <one>")] = 3
    folder: str | None = None


def test_a_setting_has_its_variable_default_and_bounds() -> None:
    page = settings_page([Process("Thing", "About it.", Limits, lambda name: f"THING_{name.upper()}")])

    assert row(page, "THING_SIZE") == ("`THING_SIZE`", "number", "`3`", "Of &lt;one>. 1 or more. 9 at most.")
    assert row(page, "THING_FOLDER") == ("`THING_FOLDER`", "text", "", "")


def test_the_variables_are_those_that_processes_read(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = re.findall(r"^\| `(\w+)`", settings_page(documented_settings()), re.MULTILINE)
    assert {"TIDEGATE_WORKERS", "TIDEGATE_AGENT_LOAD_TIMEOUT_S", "TIDEGATE_NODE_LOOK_EVERY_S"} < {*variables}

    monkeypatch.setenv("TIDEGATE_WORKERS", "5")
    assert Settings().workers == 5
    read = AgentSettings.from_environment({"TIDEGATE_AGENT_LOAD_TIMEOUT_S": "5", "POD_NAME": "a"})
    assert (read.load_timeout_s, read.pod_name) == (5, "a")
