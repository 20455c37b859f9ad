"""Finds the programs and the images of a cluster, by its options."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate_localcluster import node
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.cluster import ClusterOptions, Supplies
from tidegate_localcluster.control_plane import COMPONENTS
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_recipes import ImageName
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.state import Image

REQUIRED_IMAGES = ("pause", "coredns")
OPTIONAL_IMAGES = ("prometheus",)


def find_supplies(
    home: Path, options: ClusterOptions, images: Sequence[str] | None, progress: Callable[[str], None]
) -> Supplies:
    """Find, download or build everything; `images` limits the images beside the cluster's own.

    Raises LocalClusterError with the name of what is unavailable. Only Prometheus may be missing.
    """
    names = [*COMPONENTS, "kubectl"]
    if options.simulated_gpu_nodes:
        names.append("kwok")
    if options.control_plane_only:
        return Supplies(Binaries(home).ensure(names, progress))
    names += [*node.NODE_PROGRAMS, "forward"]
    binaries = Binaries(home).ensure(names, progress)
    return Supplies(binaries, _ensure_images(home, images, progress), home / "image-store")


def _ensure_images(
    home: Path, requested: Sequence[str] | None, progress: Callable[[str], None]
) -> dict[str, Image]:
    builder = ImageBuilder(home, find_source_root())
    names = [*REQUIRED_IMAGES, *(tuple(ImageName) if requested is None else requested)]
    required = [name for name in dict.fromkeys(map(str, names)) if name not in OPTIONAL_IMAGES]
    archives = dict(builder.ensure(required, progress))
    for name in OPTIONAL_IMAGES:
        try:
            archives.update(builder.ensure([name], progress))
        except LocalClusterError as error:
            progress(f"going on without {name}: {error}")
    return {name: Image(ref=archive.ref, archive=archive.path) for name, archive in archives.items()}


def find_source_root() -> Path:
    """Return the source tree of the images; raises LocalClusterError outside a clone of the repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "images").is_dir():
        raise LocalClusterError(f"{root} has no folder images/: run from a clone of the repository")
    return root
