"""The recipe of each image: the parts of its build context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_localcluster.buildah import ImageBuildError
from tidegate_localcluster.image_parts import (
    Binary,
    DebianFiles,
    Packages,
    Part,
    Sources,
    Workshop,
    digest,
    make_readable,
    project_version,
)


class ImageName(StrEnum):
    """The images that we build; each has a folder below images/."""

    OPERATOR = "operator"
    DATAPLANE = "dataplane"
    TRITON_CPU = "triton-cpu"
    GATEWAY = "gateway"
    PROMETHEUS = "prometheus"
    COREDNS = "coredns"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one image: on our base system or on nothing, with these parts in its build context."""

    parts: tuple[Part, ...]
    """All parts, or with `runtime_parts` those of the other stages."""
    runtime_parts: tuple[Part, ...] = ()
    """The parts of the Dockerfile's stage `runtime`; empty if it has no such stage."""
    on_base: bool = True
    ours: bool = False
    """An image of Tidegate itself, with Tidegate's version."""

    @property
    def needs_base_packages(self) -> bool:
        """Return whether staging needs the Debian packages that are downloaded with the base system."""
        return any(isinstance(part, DebianFiles) for part in self.parts)

    def arguments(self, source_root: Path) -> Mapping[str, str]:
        """Return the build arguments that depend on the source tree."""
        return {"VERSION": project_version(source_root)} if self.ours else {}


INSTALLER = Sources(("images/install-packages",))

RECIPES: Mapping[ImageName, Recipe] = {
    ImageName.OPERATOR: Recipe(
        runtime_parts=(Packages("images/operator/requirements.txt"), INSTALLER),
        parts=(
            Sources(
                (
                    "operator/tidegate",
                    "controllers/tidegate_controllers",
                    "dataplane/tidegate_dataplane/__init__.py",
                    "dataplane/tidegate_dataplane/contract",
                    "crds",
                )
            ),
        ),
        ours=True,
    ),
    ImageName.DATAPLANE: Recipe(
        runtime_parts=(Packages("images/dataplane/requirements.txt"), INSTALLER),
        parts=(Sources(("dataplane/tidegate_dataplane",)),),
        ours=True,
    ),
    ImageName.TRITON_CPU: Recipe(
        runtime_parts=(
            Packages("images/triton-cpu/server.txt", folder="server"),
            Packages("images/triton-cpu/requirements.txt"),
            INSTALLER,
        ),
        parts=(Sources(("dataplane/tidegate_dataplane", "images/triton-cpu/tritonserver")),),
        ours=True,
    ),
    ImageName.GATEWAY: Recipe(
        parts=(Packages("images/gateway/requirements.txt", folder="server"), INSTALLER),
        ours=True,
    ),
    ImageName.PROMETHEUS: Recipe(
        parts=(DebianFiles("prometheus", paths=("usr/bin/prometheus", "usr/share/prometheus")),)
    ),
    ImageName.COREDNS: Recipe(parts=(Binary("coredns", "coredns"),), on_base=False),
    ImageName.PAUSE: Recipe(parts=(Binary("pause", "pause"),), on_base=False),
}


def image_digest(name: ImageName, workshop: Workshop) -> str:
    """Return 12 hex digits over everything that decides the content of an image, also its base system."""
    recipe = RECIPES[name]
    return _digest(name, (*recipe.runtime_parts, *recipe.parts), workshop)


def runtime_digest(name: ImageName, workshop: Workshop) -> str:
    """Return 12 hex digits over everything that decides the content of an image's stage `runtime`."""
    return _digest(name, RECIPES[name].runtime_parts, workshop)


def stage_context(name: ImageName, workshop: Workshop, context: Path, *, runtime: bool = True) -> None:
    """Write the build context of an image to `context`, which must be empty or missing.

    Without `runtime` it lacks the parts that only that stage needs. Raises ImageBuildError.
    """
    context.mkdir(parents=True, exist_ok=True)
    if any(context.iterdir()):
        raise ImageBuildError(
            f"{context} is not empty: name a folder that is, the build context replaces nothing"
        )
    recipe = RECIPES[name]
    for part in (*(recipe.runtime_parts if runtime else ()), *recipe.parts):
        part.stage(workshop, context)
    for folder in (context, *(path for path in context.rglob("*") if path.is_dir())):
        make_readable(folder)


def _digest(name: ImageName, parts: Sequence[Part], workshop: Workshop) -> str:
    recipe = RECIPES[name]
    dockerfile = (workshop.source_root / "images" / name / "Dockerfile").read_text()
    base = workshop.base.key if recipe.on_base else ""
    arguments = (f"{name}={value}" for name, value in recipe.arguments(workshop.source_root).items())
    return digest([dockerfile, base, *arguments, *(part.fingerprint(workshop) for part in parts)])[:12]
