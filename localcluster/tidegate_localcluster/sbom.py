"""Writes the software bills of materials of our images: `python -m tidegate_localcluster.sbom [NAME ...]`."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cyclonedx_document import OURS, Subject, document
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.go_build import GoBuild
from tidegate_localcluster.image_files import opened
from tidegate_localcluster.image_parts import (
    SITE_PACKAGES,
    Binary,
    DebianFiles,
    Packages,
    Part,
    Workshop,
    project_version,
)
from tidegate_localcluster.image_recipes import RECIPES, ImageName, Recipe
from tidegate_localcluster.images import Images
from tidegate_localcluster.progress import run_with_progress
from tidegate_localcluster.software import (
    DPKG_STATUS,
    Software,
    debian_packages,
    distributions,
    go_modules,
    licences,
    locked,
)


class SbomError(LocalClusterError):
    """An image does not contain the versions of its lock."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a document for each image; return the exit status."""
    parser = argparse.ArgumentParser(description="Write what images are made of, in CycloneDX.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(ImageName)} [default: all]")
    parser.add_argument(
        "--output", type=Path, default=Path("build/sbom"), help="a folder [default: build/sbom]"
    )
    parser.add_argument(
        "--archive", type=Path, help="what `docker save` wrote of the one image that is named"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    options = parser.parse_args(arguments)
    names: Sequence[str] = options.names or list(ImageName)
    if options.archive is not None and len(names) != 1:
        parser.error("--archive is of one image: name it")

    def print_progress(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    images = Images(default_home(), options.root)
    try:
        for name in names:
            archive = options.archive or images.ensure([name], print_progress)[name].path
            with images.lock(print_progress):
                text = describe(ImageName(name), archive, images.workshop(print_progress), datetime.now(UTC))
            options.output.mkdir(parents=True, exist_ok=True)
            target = options.output / f"{name}.cdx.json"
            target.write_text(text)
            print_progress(f"{target} written")
    except LocalClusterError as error:
        print_progress(str(error))
        return 1
    return 0


def describe(name: ImageName, archive: Path, workshop: Workshop, now: datetime) -> str:
    """Return the CycloneDX document of an image.

    Raises SbomError when Python distributions of the image differ from its locks, LocalClusterError when the archive,
    or a part of the image, cannot be read.
    """
    recipe = RECIPES[name]
    parts = (*recipe.runtime_parts, *recipe.parts)
    with opened(archive) as image:
        _check(name, recipe, workshop, distributions(image))
        software = {package for part in parts for package in _of_part(part, workshop)}
        if DPKG_STATUS in image.files:
            software.update(debian_packages(image.text(DPKG_STATUS)))
        subject = Subject(
            name=name,
            version=project_version(workshop.source_root),
            labels=image.config.get("Labels") or {},
            ours=recipe.ours,
        )
    return document(subject, sorted(software), now)


def _check(name: ImageName, recipe: Recipe, workshop: Workshop, installed: Mapping[str, str]) -> None:
    pinned = {
        software.name: software.version
        for part in (*recipe.runtime_parts, *recipe.parts)
        if isinstance(part, Packages) and part.folder == SITE_PACKAGES
        for software in _locked(part, workshop)
    }
    own_packages = {OURS} if recipe.ours else set[str]()
    differences = [
        f"{package} is {installed.get(package, 'not there')}, and {pinned.get(package, 'not there')} by the lock"
        for package in sorted({*installed, *pinned} - own_packages)
        if installed.get(package) != pinned.get(package)
    ]
    if differences:
        raise SbomError(
            f"image {name} was not built from images/{name} of this checkout: {'; '.join(differences)}"
        )


def _of_part(part: Part, workshop: Workshop) -> Iterator[Software]:
    match part:
        case Packages():
            yield from _locked(part, workshop)
        case DebianFiles():
            fields = run_with_progress(
                [
                    "dpkg-deb",
                    "--field",
                    workshop.base.package(part.package),
                    "Package",
                    "Version",
                    "Architecture",
                ],
                what=f"reading Debian's {part.package}",
                progress=workshop.progress,
            )
            yield from debian_packages("\n".join(fields))
        case Binary():
            program = workshop.binary(part.name)
            go = GoBuild(default_home() / "bin", default_home() / "go").go(workshop.progress)
            lines = run_with_progress(
                [go, "version", "-m", program], what=f"reading {part.name}", progress=workshop.progress
            )
            yield from go_modules("\n".join(lines))
        case _:
            pass


def _locked(part: Packages, workshop: Workshop) -> Iterator[Software]:
    lock = (workshop.source_root / part.lock).read_text()
    yield from locked(lock, licences(part.provide(workshop)))


if __name__ == "__main__":
    sys.exit(main())
