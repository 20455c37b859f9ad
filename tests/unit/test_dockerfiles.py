"""What the Dockerfiles of our images say; tests/e2e/test_image_contents.py looks at what they make."""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tidegate import __version__
from tidegate_localcluster.image_parts import (
    ContextPart,
    DebianFiles,
    PythonPackages,
    SourceFiles,
    StaticBinary,
)
from tidegate_localcluster.image_recipes import RECIPES, ImageName

REPOSITORY = Path(__file__).parents[2]
OURS = sorted(name for name, recipe in RECIPES.items() if recipe.is_product)
PINNED = re.compile(r"\S+:\S+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of a Dockerfile, with the number of its stage; 0 is before the first."""

    name: str
    arguments: Sequence[str]
    stage: int


def parsed(text: str) -> Sequence[Instruction]:
    found: list[Instruction] = []
    stage = 0
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Instruction(name, shlex.split(rest), stage))
    return found


def instructions(name: str) -> Sequence[Instruction]:
    return parsed((REPOSITORY / "images" / name / "Dockerfile").read_text())


def last_stage(name: str) -> Sequence[Instruction]:
    found = instructions(name)
    return [instruction for instruction in found if instruction.stage == found[-1].stage]


def unpinned(dockerfile: Sequence[Instruction]) -> Sequence[str]:
    """What the stages begin with that somebody could change: no digest, and neither nothing nor a stage."""
    defaults: Mapping[str, str] = {
        name: value
        for instruction in dockerfile
        if instruction.name == "ARG" and instruction.stage == 0
        for name, _, value in [instruction.arguments[0].partition("=")]
    }
    stages: set[str] = {"scratch"}
    found: list[str] = []
    for instruction in dockerfile:
        if instruction.name != "FROM":
            continue
        image = re.sub(r"\$\{(\w+)\}", lambda match: defaults.get(match[1], ""), instruction.arguments[0])
        if image not in stages and not PINNED.fullmatch(image):
            found.append(image)
        stages.update(instruction.arguments[2:])
    return found


def test_every_dockerfile_is_of_an_image_of_ours() -> None:
    assert {path.parent.name for path in (REPOSITORY / "images").glob("*/Dockerfile")} == set(ImageName)


@pytest.mark.parametrize("name", list(ImageName))
def test_every_image_begins_with_bytes_that_nobody_can_change(name: ImageName) -> None:
    assert unpinned(instructions(name)) == []


def test_all_images_have_the_same_base() -> None:
    bases = {
        tuple(instruction.arguments)
        for name, recipe in RECIPES.items()
        if recipe.on_base
        for instruction in instructions(name)
        if instruction.arguments[0].startswith("BASE=")
    }
    assert len(bases) == 1


@pytest.mark.parametrize("name", list(ImageName))
def test_every_image_runs_as_nobody(name: ImageName) -> None:
    last = last_stage(name)
    assert [i.arguments for i in last if i.name == "USER"] == [["65532:65532"]]
    assert any(i.name == "ENTRYPOINT" for i in last)


@pytest.mark.parametrize("name", OURS)
def test_nothing_is_installed_or_compiled_where_it_runs(name: ImageName) -> None:
    """What installs is in a stage of its own, so that the image has no pip, and no package lists."""
    assert [i for i in last_stage(name) if i.name == "RUN"] == []
    stages = {
        i.arguments[2]: i.stage for i in instructions(name) if i.name == "FROM" and len(i.arguments) > 2
    }
    installs = {i.stage for i in instructions(name) if "/build/install-packages" in i.arguments}
    assert installs == {stages["packages"]}


@pytest.mark.parametrize("name", OURS)
def test_the_labels_say_what_the_image_is(name: ImageName) -> None:
    labels = dict(
        argument.split("=", 1) for i in last_stage(name) if i.name == "LABEL" for argument in i.arguments
    )
    prefix = "org.opencontainers.image."
    assert labels.pop(f"{prefix}title")
    assert labels.pop(f"{prefix}licenses").endswith("Apache-2.0")
    assert labels == {f"{prefix}{name}": f"${{{name.upper()}}}" for name in ("version", "revision", "source")}
    assert [i.arguments for i in instructions(name) if i.name == "ARG" and i.stage == 0][1] == [
        f"VERSION={__version__}"
    ]


def test_the_package_and_the_charts_have_the_version_of_the_command() -> None:
    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"] == __version__
    for chart in ("tidegate", "tidegate-crds"):
        metadata = yaml.safe_load((REPOSITORY / "charts" / chart / "Chart.yaml").read_text())
        assert {metadata["version"], metadata["appVersion"]} == {__version__}, chart


@pytest.mark.parametrize("name", list(ImageName))
def test_a_dockerfile_copies_all_that_is_staged_and_nothing_else(name: ImageName) -> None:
    copied = {
        origin.rstrip("/")
        for i in instructions(name)
        if i.name == "COPY" and not i.arguments[0].startswith("--from=")
        for origin in i.arguments[:-1]
    }
    recipe = RECIPES[name]
    staged = {path for part in (*recipe.runtime_parts, *recipe.parts) for path in _staged(part)}
    assert {path for path in staged if not any(_is_in(path, folder) for folder in copied)} == set()
    assert {folder for folder in copied if not any(_is_in(path, folder) for path in staged)} == set()


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _staged(part: ContextPart) -> Sequence[str]:
    match part:
        case PythonPackages():
            return [part.lock]
        case SourceFiles() | DebianFiles():
            return part.paths
        case StaticBinary():
            return [part.target]
        case _:
            raise AssertionError(part)


@pytest.mark.parametrize("name", OURS)
def test_a_checkout_gives_a_build_all_that_it_copies(name: ImageName) -> None:
    """Docker leaves out what .dockerignore names: everything, but for these."""
    ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
    shown = [line[1:] for line in ignore if line.startswith("!")]
    recipe = RECIPES[name]
    for part in (*recipe.runtime_parts, *recipe.parts):
        for path in _staged(part):
            assert any(_is_in(path, line) or Path(path).match(line) for line in shown), path


@pytest.mark.parametrize("name", OURS)
def test_every_package_of_an_image_is_pinned_by_hash(name: ImageName) -> None:
    for lock in (REPOSITORY / "images" / name).glob("*.txt"):
        entries = lock.read_text().replace("\\\n", "").splitlines()
        packages = [entry for entry in entries if entry and not entry.lstrip().startswith("#")]
        assert packages
        assert all("==" in entry and "--hash=sha256:" in entry for entry in packages), lock


@pytest.mark.parametrize("name", ["dataplane", "triton-cpu"])
def test_images_that_meet_the_python_backend_have_numpy_1(name: str) -> None:
    lock = (REPOSITORY / "images" / name / "requirements.txt").read_text()
    assert "\nnumpy==1." in lock
