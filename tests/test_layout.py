"""Guards the shape of the repository: source roots are folders of packages and no packages themselves."""

import operator
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = {
    "operator": "tidegate",
    "controllers": "tidegate_controllers",
    "dataplane": "tidegate_dataplane",
    "localcluster": "tidegate_localcluster",
}


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_is_no_package(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists(), (
        f"{root}/__init__.py makes the folder a package; 'operator' is a module of the standard library"
    )


@pytest.mark.parametrize(("root", "package"), SOURCE_ROOTS.items())
def test_a_source_root_holds_one_package(root: str, package: str) -> None:
    found = {path.parent.name for path in (ROOT / root).glob("*/__init__.py")}
    assert found == {package}


def test_operator_is_still_the_standard_library() -> None:
    assert operator.add(1, 2) == 3
    assert ROOT not in Path(operator.__file__).resolve().parents


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(wheel) == sorted(f"{root}/{package}" for root, package in SOURCE_ROOTS.items())


def wheel_files() -> set[Path]:
    """The files of the packages that a build takes: all but those that .gitignore names."""
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    assert not any(set(pattern) & set("/!#") for pattern in patterns), "fnmatch reads only names"
    files = (
        path.relative_to(ROOT)
        for root, package in SOURCE_ROOTS.items()
        for path in (ROOT / root / package).rglob("*")
        if path.is_file()
    )
    return {
        file for file in files if not any(fnmatch(part, name) for part in file.parts for name in patterns)
    }


def test_the_wheel_holds_what_the_recorded_dashboard_reads() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    for table in (build, build["targets"]["wheel"]):
        assert not {"exclude", "only-include", "include"} & table.keys(), "then wheel_files() differs"
    files, package = wheel_files(), Path("operator", "tidegate")
    folders = [package / "web" / "templates", package / "web" / "static"]
    read = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert {".html", ".css", ".js"} <= {path.suffix for path in read}
    needed = {*(path.relative_to(ROOT) for path in read), package / "recorded" / "fleet.json.gz"}
    assert needed - files == set()
    assert not any("__pycache__" in file.parts for file in files)


def test_tests_are_no_packages() -> None:
    found = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("__init__.py")]
    assert not found


def test_names_of_test_files_are_unique() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_file_is_named_after_nothing() -> None:
    vague = {"utils", "helpers", "common", "misc"}
    sources = [path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py")]
    assert [
        str(path.relative_to(ROOT)) for path in sources if path.stem in vague or path.parent.name in vague
    ] == []
