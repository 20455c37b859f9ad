"""Finds the programs and the images of a cluster, by its options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tidegate_localcluster import node
from tidegate_localcluster.background import run_beside
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.cluster import ClusterOptions, Supplies
from tidegate_localcluster.control_plane import COMPONENTS
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_recipes import ImageName, list_programs
from tidegate_localcluster.images import ImageArchive, ImageBuilder
from tidegate_localcluster.state import Image

REQUIRED_IMAGES = ("pause", "coredns")
OPTIONAL_IMAGES = ("prometheus",)


def find_supplies(
    home: Path,
    options: ClusterOptions,
    images: Sequence[str] | None,
    progress: Callable[[str], None],
    programs: Iterable[str] = (),
) -> Supplies:
    """Find, download or build everything; `images` limits the images beside the cluster's own.

    `programs` are made together with the cluster's own, and are not in the result: one build is faster than two.
    Raises LocalClusterError with the name of what is unavailable. Only Prometheus may be missing.
    """
    names = [*COMPONENTS, "kubectl"]
    if options.simulated_gpu_nodes:
        names.append("kwok")
    if options.control_plane_only:
        return Supplies(_ensure_binaries(home, names, programs, progress))
    names += [*node.NODE_PROGRAMS, "forward"]
    builder = ImageBuilder(home, find_source_root())
    selected = [*REQUIRED_IMAGES, *(tuple(ImageName) if images is None else images)]
    required = [name for name in dict.fromkeys(map(str, selected)) if name not in OPTIONAL_IMAGES]
    contained = {name: list_programs(name) for name in required}
    independent = [name for name, contents in contained.items() if not contents]

    def build_independent(report: Callable[[str], None]) -> Mapping[str, ImageArchive]:
        return builder.ensure(independent, report)

    # Before the programs, of which some are Debian packages: two apt-get at once refuse each other.
    builder.ensure_tools(independent, progress)
    with run_beside(build_independent, progress) as archives:
        in_images = [program for contents in contained.values() for program in contents]
        binaries = _ensure_binaries(home, names, [*in_images, *programs], progress)
    dependent = [name for name in required if name not in independent]
    built = {
        **archives.result(),
        **builder.ensure(dependent, progress),
        **_ensure_optional(builder, progress),
    }
    references = {name: Image(ref=archive.ref, archive=archive.path) for name, archive in built.items()}
    return Supplies(binaries, references, home / "image-store")


def _ensure_binaries(
    home: Path, names: Sequence[str], additional: Iterable[str], progress: Callable[[str], None]
) -> Mapping[str, Path]:
    paths = Binaries(home).ensure([*names, *additional], progress)
    return {name: paths[name] for name in names}


def _ensure_optional(builder: ImageBuilder, progress: Callable[[str], None]) -> Mapping[str, ImageArchive]:
    archives: dict[str, ImageArchive] = {}
    for name in OPTIONAL_IMAGES:
        try:
            archives.update(builder.ensure([name], progress))
        except LocalClusterError as error:
            progress(f"going on without {name}: {error}")
    return archives


def find_source_root() -> Path:
    """Return the source tree of the images; raises LocalClusterError outside a clone of the repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "images").is_dir():
        raise LocalClusterError(f"{root} has no folder images/: run from a clone of the repository")
    return root
