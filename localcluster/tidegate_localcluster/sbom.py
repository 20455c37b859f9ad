"""Writes the software bills of materials of our images: `python -m tidegate_localcluster.sbom [NAME ...]`."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cyclonedx_document import PRODUCT, ImageSubject, render_document
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.go_build import GoBuild
from tidegate_localcluster.image_files import open_image
from tidegate_localcluster.image_parts import (
    SITE_PACKAGES,
    BuildInputs,
    ContextPart,
    DebianFiles,
    PythonPackages,
    StaticBinary,
    read_project_version,
)
from tidegate_localcluster.image_recipes import RECIPES, ImageName, ImageRecipe
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.progress import run_with_progress
from tidegate_localcluster.software import (
    DPKG_STATUS,
    SoftwarePackage,
    parse_build_info,
    parse_dpkg_status,
    parse_lock,
    read_distributions,
    read_licences,
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

    images = ImageBuilder(default_home(), options.root)
    try:
        for name in names:
            archive = options.archive or images.ensure([name], print_progress)[name].path
            with images.hold_lock(print_progress):
                text = render_sbom(
                    ImageName(name), archive, images.make_inputs(print_progress), datetime.now(UTC)
                )
            options.output.mkdir(parents=True, exist_ok=True)
            target = options.output / f"{name}.cdx.json"
            target.write_text(text)
            print_progress(f"{target} written")
    except LocalClusterError as error:
        print_progress(str(error))
        return 1
    return 0


def render_sbom(name: ImageName, archive: Path, inputs: BuildInputs, now: datetime) -> str:
    """Return the CycloneDX document of an image.

    Raises SbomError when Python distributions of the image differ from its locks, LocalClusterError when the archive,
    or a part of the image, cannot be read.
    """
    recipe = RECIPES[name]
    parts = (*recipe.runtime_parts, *recipe.parts)
    with open_image(archive) as image:
        _check_distributions(name, recipe, inputs, read_distributions(image))
        software = {package for part in parts for package in _list_software(part, inputs)}
        if DPKG_STATUS in image.files:
            software.update(parse_dpkg_status(image.read_text(DPKG_STATUS)))
        subject = ImageSubject(
            name=name,
            version=read_project_version(inputs.source_root),
            labels=image.config.get("Labels") or {},
            is_product=recipe.is_product,
        )
    return render_document(subject, sorted(software), now)


def _check_distributions(
    name: ImageName, recipe: ImageRecipe, inputs: BuildInputs, installed: Mapping[str, str]
) -> None:
    pinned = {
        software.name: software.version
        for part in (*recipe.runtime_parts, *recipe.parts)
        if isinstance(part, PythonPackages) and part.folder == SITE_PACKAGES
        for software in _read_lock(part, inputs)
    }
    own_packages = {PRODUCT} if recipe.is_product else set[str]()
    differences = [
        f"{package} is {installed.get(package, 'not there')}, and {pinned.get(package, 'not there')} by the lock"
        for package in sorted({*installed, *pinned} - own_packages)
        if installed.get(package) != pinned.get(package)
    ]
    if differences:
        raise SbomError(
            f"image {name} was not built from images/{name} of this checkout: {'; '.join(differences)}"
        )


def _list_software(part: ContextPart, inputs: BuildInputs) -> Iterator[SoftwarePackage]:
    match part:
        case PythonPackages():
            yield from _read_lock(part, inputs)
        case DebianFiles():
            fields = run_with_progress(
                [
                    "dpkg-deb",
                    "--field",
                    inputs.base.package_path(part.package),
                    "Package",
                    "Version",
                    "Architecture",
                ],
                task=f"reading Debian's {part.package}",
                progress=inputs.progress,
            )
            yield from parse_dpkg_status("\n".join(fields))
        case StaticBinary():
            program = inputs.find_binary(part.name)
            go = GoBuild(default_home() / "bin", default_home() / "go").find_go(inputs.progress)
            lines = run_with_progress(
                [go, "version", "-m", program], task=f"reading {part.name}", progress=inputs.progress
            )
            yield from parse_build_info("\n".join(lines))
        case _:
            pass


def _read_lock(part: PythonPackages, inputs: BuildInputs) -> Iterator[SoftwarePackage]:
    lock = (inputs.source_root / part.lock).read_text()
    yield from parse_lock(lock, read_licences(part.ensure_installed(inputs)))


if __name__ == "__main__":
    sys.exit(main())
