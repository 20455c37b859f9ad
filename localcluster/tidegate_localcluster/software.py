"""Reads the software of images from locks, package managers' lists and build information of programs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from enum import StrEnum
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tidegate_localcluster.image_files import ImageFiles

# The Python of Debian 12, for the environment markers in locks.
MARKER_ENVIRONMENT: Mapping[str, str] = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.2",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.2",
    "python_version": "3.11",
    "sys_platform": "linux",
}
METADATA_PATH = re.compile(
    r"usr/(?:local/)?lib/python3[^/]*/(?:dist|site)-packages/[^/]+\.dist-info/METADATA"
)
DPKG_STATUS = "var/lib/dpkg/status"
GO_LINE = re.compile(r"^\t(?:mod|dep|=>)\t(\S+)\t(v\S+)(?:\t(\S*))?$")


class Ecosystem(StrEnum):
    """Where a package is published; the values are the types of package URLs."""

    PYTHON = "pypi"
    DEBIAN = "deb"
    GO = "golang"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class SoftwarePackage:
    """One published package in the version of the image."""

    ecosystem: Ecosystem
    name: str
    version: str
    architecture: str = ""
    licence: str = ""
    """An SPDX expression, or what its authors wrote instead; empty if the package states none."""
    sha256: tuple[str, ...] = ()
    """The hashes of the files that the lock accepts; one of them was installed."""
    go_sum: str = ""


def parse_lock(lock: str, licences: Mapping[str, str]) -> Iterator[SoftwarePackage]:
    """Yield the distributions of a hash-pinned lock that the image gets; `licences` are by canonical name."""
    for entry in lock.replace("\\\n", "").splitlines():
        if not entry or entry.lstrip().startswith("#"):
            continue
        text, *hashes = entry.split(" --hash=")
        requirement = Requirement(text.strip())
        if requirement.marker is not None and not requirement.marker.evaluate(dict(MARKER_ENVIRONMENT)):
            continue
        (version,) = requirement.specifier
        name = canonicalize_name(requirement.name)
        yield SoftwarePackage(
            ecosystem=Ecosystem.PYTHON,
            name=name,
            version=version.version,
            licence=licences.get(name, ""),
            sha256=tuple(value.strip().removeprefix("sha256:") for value in hashes),
        )


def read_licences(site_packages: Path) -> Mapping[str, str]:
    """Return the stated licences of the distributions in a folder, by canonical name."""
    by_name: dict[str, str] = {}
    for metadata in sorted(site_packages.glob("*.dist-info/METADATA")):
        headers = HeaderParser().parsestr(metadata.read_text())
        lines: Sequence[str] = [
            headers.get("License-Expression", ""),
            headers.get("License", ""),
            *(line for line in headers.get_all("Classifier", []) if line.startswith("License :: ")),
        ]
        # Some have the whole text of the licence in that field.
        short = [line for line in lines if line and "\n" not in line and line != "UNKNOWN"]
        by_name[canonicalize_name(headers["Name"])] = short[0].rpartition(" :: ")[2] if short else ""
    return by_name


def read_distributions(image: ImageFiles) -> Mapping[str, str]:
    """Return the version of each Python distribution in an image, by canonical name."""
    headers = (
        HeaderParser().parsestr(image.read_text(path))
        for path in image.files
        if METADATA_PATH.fullmatch(path)
    )
    return {canonicalize_name(header["Name"]): header["Version"] for header in headers}


def parse_dpkg_status(status: str) -> Iterator[SoftwarePackage]:
    """Yield the installed packages of a /var/lib/dpkg/status, or the one package of `dpkg-deb --field`."""
    for paragraph in status.strip().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields.get("Status", "install ok installed").endswith(" installed") and fields.get("Package"):
            yield SoftwarePackage(
                ecosystem=Ecosystem.DEBIAN,
                name=fields["Package"],
                version=fields["Version"],
                architecture=fields["Architecture"],
            )


def parse_build_info(build_info: str) -> Iterator[SoftwarePackage]:
    """Yield the modules of a program from `go version -m`; a replacement replaces its original.

    The main module is among them if it has a version, and so is not our own.
    """
    first, *lines = build_info.splitlines()
    yield SoftwarePackage(
        ecosystem=Ecosystem.GO, name="stdlib", version=first.rpartition(": go")[2].split()[0]
    )
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        match = GO_LINE.match(line)
        if match is not None and not following.startswith("\t=>"):
            yield SoftwarePackage(
                ecosystem=Ecosystem.GO, name=match[1], version=match[2], go_sum=match[3] or ""
            )
