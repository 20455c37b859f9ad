"""Builds the container images of a cluster when their content has changed, else takes them from the cache."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.buildah import Buildah, DockerfileBuild, ImageBuildError, ensure_tools
from tidegate_localcluster.image_parts import BuildInputs
from tidegate_localcluster.image_recipes import (
    RECIPES,
    ImageName,
    compute_image_digest,
    compute_runtime_digest,
    parse_image_name,
    stage_context,
)
from tidegate_localcluster.locks import hold_lock
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.rootfs import BaseSystem

REGISTRY = "tidegate.local"
RUNTIME_STAGE = "runtime"
KEPT_ARCHIVES = 3
KEPT_PACKAGE_SETS = 12
STAGING_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ImageArchive:
    """A built image: its reference for manifests, and the archive that containerd imports."""

    ref: str
    path: Path


class ImageBuilder:
    """The images of one source tree; several processes may use it at once."""

    def __init__(
        self, home: Path, source_root: Path, binary: Callable[[str, Progress], Path] | None = None
    ) -> None:
        """Build below `home` (TIDEGATE_HOME); `binary` returns the paths of the static programs in some images."""
        self._home = home.resolve()
        self._archives = self._home / "images"
        self._source_root = source_root.resolve()
        self._base = BaseSystem(self._home)
        self._buildah = Buildah(self._home)
        self._binary = binary or _make_binary_finder(self._home)

    def ensure(self, names: Iterable[str], progress: Progress) -> Mapping[str, ImageArchive]:
        """Return the images `names`; build those whose content has no archive yet.

        Raises ImageBuildError for an unknown name or a missing tool, and CommandFailedError with the builder's
        last lines. Cached images need neither root nor tools nor a network.
        """
        inputs = self.make_inputs(progress)
        images = {name: self._locate_image(parse_image_name(name), inputs) for name in names}
        missing = [name for name, image in images.items() if not image.path.exists()]
        if missing:
            with self.hold_lock(progress):
                images |= {name: self._ensure_image(ImageName(name), inputs) for name in missing}
        for image in images.values():
            os.utime(image.path)
        return images

    def ensure_tools(self, names: Iterable[str], progress: Progress) -> None:
        """Install the tools that build images, with apt, if one of the images `names` has no archive yet.

        Raises ImageBuildError as `ensure`.
        """
        inputs = self.make_inputs(progress)
        if not all(self._locate_image(parse_image_name(name), inputs).path.exists() for name in names):
            ensure_tools(progress)

    def push_image(self, image: ImageArchive, target: str, *, plain_http: bool, progress: Progress) -> str:
        """Push an image of `ensure` to a registry under the reference `target`, and return its digest.

        Raises ImageBuildError when a tool is missing, and CommandFailedError with the last lines of the push.
        """
        with self.hold_lock(progress):
            ensure_tools(progress)
            if not self._buildah.has_image(image.ref):
                # The storage was cleared, or the archive was built elsewhere.
                self._buildah.load_archive(image.path, progress)
            return self._buildah.push_image(image.ref, target, plain_http=plain_http, progress=progress)

    def stage_image(self, name: str, directory: Path, progress: Progress) -> None:
        """Write the build context of an image to `directory`, for `docker build -f images/<name>/Dockerfile`.

        Raises ImageBuildError when the folder is not empty or something cannot be fetched.
        """
        inputs = self.make_inputs(progress)
        with self.hold_lock(progress):
            self._stage_context(parse_image_name(name), inputs, directory)

    def make_inputs(self, progress: Progress) -> BuildInputs:
        """Return what the parts of these images are staged from; raises ImageBuildError without a checkout."""
        if not (self._source_root / "images").is_dir():
            raise ImageBuildError(
                f"{self._source_root} has no images/ folder: images are built from a checkout of the repository"
            )
        return BuildInputs(
            source_root=self._source_root,
            cache=self._home / "build",
            base=self._base,
            find_binary=lambda name: self._binary(name, progress),
            progress=progress,
        )

    def hold_lock(self, progress: Progress) -> AbstractContextManager[None]:
        """Return the lock under which one process builds at a time; it is not reentrant."""
        return hold_lock(self._archives / "lock", task="building images", progress=progress)

    def _ensure_image(self, name: ImageName, inputs: BuildInputs) -> ImageArchive:
        image = self._locate_image(name, inputs)
        if image.path.exists():
            return image
        started = time.monotonic()
        ensure_tools(inputs.progress)
        builds = self._home / "build"
        builds.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=builds) as folder:
            # The sources may change meanwhile, and the digest in the name must be that of the staged files.
            for attempt in range(STAGING_ATTEMPTS):
                context = Path(folder) / str(attempt)
                runtime = self._runtime_reference(name, inputs)
                self._stage_context(name, inputs, context, runtime=not self._is_built(runtime))
                expected, image = image, self._locate_image(name, inputs)
                if image == expected:
                    break
            else:
                raise ImageBuildError(f"the sources of image {name} change faster than they can be copied")
            self._build_image(name, image, runtime, context, inputs.progress)
        self._prune_archives(name, runtime)
        inputs.progress(f"image {image.ref} built in {time.monotonic() - started:.1f} s")
        return image

    def _build_image(
        self, name: ImageName, image: ImageArchive, runtime: str | None, context: Path, progress: Progress
    ) -> None:
        recipe = RECIPES[name]
        base = {"BASE": self._ensure_base(progress)} if recipe.on_base else {}
        build = DockerfileBuild(
            context=context,
            dockerfile=self._source_root / "images" / name / "Dockerfile",
            arguments={**base, **recipe.build_arguments(self._source_root)},
        )
        if runtime is not None:
            if not self._is_built(runtime):
                self._buildah.build_image(replace(build, target=RUNTIME_STAGE), runtime, progress)
            build = replace(build, stages={RUNTIME_STAGE: runtime})
        self._buildah.build_image(build, image.ref, progress)
        self._buildah.save_archive(image.ref, image.path, progress)

    def _stage_context(
        self, name: ImageName, inputs: BuildInputs, directory: Path, *, runtime: bool = True
    ) -> None:
        if RECIPES[name].needs_base_packages:
            ensure_tools(inputs.progress)
            self._base.ensure(inputs.progress)
        stage_context(name, inputs, directory, runtime=runtime)

    def _runtime_reference(self, name: ImageName, inputs: BuildInputs) -> str | None:
        """Return the reference of the image of the stage `runtime`; None if the image has no such stage."""
        # An image of its own, which the next builds reuse: our own code changes more often.
        if not RECIPES[name].runtime_parts:
            return None
        return f"{_format_repository(name)}-{RUNTIME_STAGE}:{compute_runtime_digest(name, inputs)}"

    def _is_built(self, runtime: str | None) -> bool:
        return runtime is not None and self._buildah.has_image(runtime)

    def _ensure_base(self, progress: Progress) -> str:
        reference = f"{REGISTRY}/base:{self._base.inputs_key}"
        self._base.ensure(progress)
        if not self._buildah.has_image(reference):
            self._buildah.import_base(self._base.archive_path, reference, progress)
        return reference

    def _prune_archives(self, name: ImageName, runtime: str | None) -> None:
        archives = _latest_first(self._archives.glob(f"{name}_*.tar"))
        for archive in archives[KEPT_ARCHIVES:]:
            archive.unlink()
        newest = [
            _format_reference(name, archive.stem.rpartition("_")[2]) for archive in archives[:KEPT_ARCHIVES]
        ]
        self._buildah.remove_other_tags(_format_repository(name), newest)
        if runtime is not None:
            self._buildah.remove_other_tags(runtime.rpartition(":")[0], [runtime])
        for packages in _latest_first((self._home / "build" / "packages").glob("*"))[KEPT_PACKAGE_SETS:]:
            shutil.rmtree(packages)

    def _locate_image(self, name: ImageName, inputs: BuildInputs) -> ImageArchive:
        tag = compute_image_digest(name, inputs)
        return ImageArchive(ref=_format_reference(name, tag), path=self._archives / f"{name}_{tag}.tar")


def _latest_first(paths: Iterable[Path]) -> Sequence[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def _format_repository(name: ImageName) -> str:
    return f"{REGISTRY}/{name}"


def _format_reference(name: ImageName, tag: str) -> str:
    return f"{_format_repository(name)}:{tag}"


def _make_binary_finder(home: Path) -> Callable[[str, Progress], Path]:
    binaries = Binaries(home)
    return lambda name, progress: binaries.ensure([name], progress)[name]
