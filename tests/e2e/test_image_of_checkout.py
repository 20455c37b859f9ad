"""Our images build from a checkout too, as whoever has Docker and a network builds them."""

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.cluster import Supplies
from tidegate_localcluster.image_files import ImageFiles, open_image
from tidegate_localcluster.image_recipes import ImageName
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.progress import CommandFailedError
from tidegate_localcluster.supplies import find_source_root

pytestmark = pytest.mark.slow("builds an image from a package index")

ENVOY = "usr/local/bin/envoy"
# A mirror of PyPI may have a certificate of an authority that only this machine knows.
AUTHORITIES = "/etc/ssl/certs"


@pytest.fixture
def images() -> ImageBuilder:
    return ImageBuilder(default_home(), find_source_root())


@pytest.fixture
def tag(images: ImageBuilder) -> Iterator[str]:
    reference = "tidegate.local/gateway-of-a-checkout:test"
    yield reference
    with images.hold_lock(ignore_progress):
        images._buildah.remove_other_tags(reference.rpartition(":")[0], [])


def build_gateway(images: ImageBuilder, checkout: Path, tag: str) -> None:
    """As `docker build` would; the base is ours, since no registry is asked."""
    dockerfile = find_source_root() / "images" / ImageName.GATEWAY / "Dockerfile"
    general = ["--network=host", "--pull-never", "--layers=false", f"--volume={AUTHORITIES}:{AUTHORITIES}:ro"]
    with images.hold_lock(ignore_progress):
        arguments = [f"--build-arg=BASE={images._ensure_base(ignore_progress)}", "--build-arg=REVISION=abc"]
        images._buildah._run_buildah(
            ["bud", *general, *arguments, "--file", dockerfile, "--tag", tag, checkout],
            task="building from the checkout",
        )


def test_a_checkout_makes_the_same_image_as_a_staged_context(
    cluster_supplies: Supplies, images: ImageBuilder, tag: str, tmp_path: Path
) -> None:
    """The gateway's, whose one package is soon fetched; all install by the same script."""
    archive = tmp_path / "gateway.tar"
    build_gateway(images, find_source_root(), tag)
    images._buildah.save_archive(tag, archive, ignore_progress)
    with (
        open_image(archive) as built,
        open_image(cluster_supplies.images[ImageName.GATEWAY].archive) as staged,
    ):
        labels = [image.config["Labels"]["org.opencontainers.image.revision"] for image in (built, staged)]
        assert labels == ["abc", ""]
        assert built.files.keys() == staged.files.keys()
        assert len({_sha256(image) for image in (built, staged)}) == 1


def _sha256(image: ImageFiles) -> str:
    envoy = image.files[ENVOY]
    content = envoy.layer.extractfile(envoy.entry)
    assert content is not None
    return hashlib.file_digest(content, "sha256").hexdigest()


def test_a_package_that_is_not_the_one_of_the_lock_is_not_installed(
    images: ImageBuilder, cluster_supplies: Supplies, tag: str, tmp_path: Path
) -> None:
    checkout = tmp_path / "images"
    shutil.copytree(find_source_root() / "images", checkout)
    lock = checkout / ImageName.GATEWAY / "requirements.txt"
    lock.write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", lock.read_text()))
    with pytest.raises(CommandFailedError, match=r"Expected\s+(sha256|or)\s+0{64}"):
        build_gateway(images, tmp_path, tag)
