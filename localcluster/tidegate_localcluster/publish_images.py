"""Builds our images and pushes them to a registry: `python -m tidegate_localcluster.publish_images REGISTRY`."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.buildah import ImageBuildError
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_parts import read_project_version
from tidegate_localcluster.image_recipes import RECIPES, ImageName
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.sbom import render_sbom
from tidegate_localcluster.signing import Cosign, add_signing_arguments, find_cosign, read_digest

PUBLISHED_IMAGES: Final = (
    ImageName.OPERATOR,
    ImageName.DATAPLANE,
    ImageName.GATEWAY,
    ImageName.TRITON_CPU,
    ImageName.NATS,
    ImageName.OBJECT_STORE,
)
"""What an installation needs, and the examples on it."""
_DOCKER_TIMEOUT_S: Final = 20.0
_LOOPBACK: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)")


@dataclass(frozen=True, slots=True)
class PushedImage:
    """An image in a registry, and a copy on this machine."""

    name: ImageName
    reference: str
    """With the digest."""
    archive: Path
    """Its layers in a file, for its bill of materials; that of Docker exists only while the image is signed."""


class ImagePublisher(Protocol):
    """A tool that builds images and delivers them under other references."""

    def publish_images(
        self,
        references: Mapping[ImageName, str],
        sign: Callable[[PushedImage], None] | None,
        progress: Progress,
    ) -> None:
        """Build each image, deliver it under its reference, and sign it there. Raises LocalClusterError."""
        ...


@dataclass(frozen=True, slots=True)
class ImageSigner:
    """Signs images, and attests what they are made of."""

    cosign: Cosign
    builder: ImageBuilder

    def sign_image(self, image: PushedImage) -> None:
        """Sign an image in its registry, and attach its bill of materials. Raises LocalClusterError."""
        inputs = self.builder.make_inputs(print_progress)
        with self.builder.hold_lock(print_progress):
            text = render_sbom(image.name, image.archive, inputs, datetime.now(UTC))
        with tempfile.TemporaryDirectory() as folder:
            document = Path(folder) / f"{image.name}.cdx.json"
            document.write_text(text)
            self.cosign.sign_digest(image.reference, print_progress)
            self.cosign.attest_sbom(image.reference, document, print_progress)


@dataclass(frozen=True, slots=True)
class BuildahPublisher:
    """buildah as root, with the images of the local cluster."""

    builder: ImageBuilder
    plain_http: bool

    def publish_images(
        self,
        references: Mapping[ImageName, str],
        sign: Callable[[PushedImage], None] | None,
        progress: Progress,
    ) -> None:
        """Build the images that are not built yet, push all, and sign them."""
        images = self.builder.ensure(references, progress)
        for name, reference in references.items():
            image = images[name]
            digest = self.builder.push_image(image, reference, plain_http=self.plain_http, progress=progress)
            if sign is not None:
                sign(PushedImage(name, _add_digest(reference, digest), image.path))


@dataclass(frozen=True, slots=True)
class DockerPublisher:
    """Docker, which pulls the base image and packages from the network."""

    builder: ImageBuilder
    source_root: Path
    kind_cluster: str = ""
    """The kind cluster to load images into; empty: push them."""

    def publish_images(
        self,
        references: Mapping[ImageName, str],
        sign: Callable[[PushedImage], None] | None,
        progress: Progress,
    ) -> None:
        """Build all images, and push and sign them, or load them into the kind cluster."""
        for name, reference in references.items():
            self._build_image(name, reference, progress)
            if self.kind_cluster:
                load = ["kind", "load", "docker-image", reference, "--name", self.kind_cluster]
                run_with_progress(load, task=f"delivering {reference}", progress=progress)
                continue
            push = ["docker", "push", "--quiet", reference]
            run_with_progress(push, task=f"delivering {reference}", progress=progress)
            if sign is not None:
                self._sign_image(name, reference, sign, progress)

    def _sign_image(
        self, name: ImageName, reference: str, sign: Callable[[PushedImage], None], progress: Progress
    ) -> None:
        repository = reference.rpartition(":")[0]
        inspect = ["docker", "image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', reference]
        lines = run_with_progress(inspect, task=f"reading the digest of {reference}", progress=progress)
        digest = read_digest("\n".join(line for line in lines if line.startswith(f"{repository}@")))
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "image.tar"
            save: list[str | Path] = ["docker", "save", "--output", archive, reference]
            run_with_progress(save, task=f"saving {reference}", progress=progress)
            sign(PushedImage(name, _add_digest(reference, digest), archive))

    def _build_image(self, name: ImageName, reference: str, progress: Progress) -> None:
        with tempfile.TemporaryDirectory() as folder:
            context = self.source_root
            if not RECIPES[name].is_product:
                # Their Dockerfiles take programs that only a staged context has.
                context = Path(folder) / name
                self.builder.stage_image(name, context, progress)
            arguments = RECIPES[name].build_arguments(self.source_root)
            dockerfile = self.source_root / "images" / name / "Dockerfile"
            options = [f"--build-arg={argument}={value}" for argument, value in arguments.items()]
            run_with_progress(
                ["docker", "build", "--file", dockerfile, "--tag", reference, *options, context],
                task=f"building {reference}",
                progress=progress,
            )


def run_publisher(arguments: Sequence[str] | None = None) -> int:
    """Build and push the images, and print the next command; return the exit status."""
    parser = argparse.ArgumentParser(description="Build our images, and push them to a registry.")
    parser.add_argument("registry", help="host, port and path, like registry.example.com/tidegate")
    parser.add_argument("--tag", default="", help="tag of all images [default: the chart's appVersion]")
    parser.add_argument(
        "--plain-http", action="store_true", help="push without TLS, as always to loopback; not with Docker"
    )
    parser.add_argument("--kind", default="", metavar="CLUSTER", help="load into this kind cluster instead")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    add_signing_arguments(parser)
    options = parser.parse_args(arguments)
    if options.kind and options.cosign_key:
        parser.error("--cosign-key signs what is in a registry, and --kind pushes to none: omit one of them")
    registry = read_registry(parser, options.registry)
    try:
        tag = options.tag or read_project_version(options.root)
        references = {name: f"{registry}/{name}:{tag}" for name in PUBLISHED_IMAGES}
        plain_http = options.plain_http or is_loopback(registry)
        # A missing program is noticed before images are built.
        cosign = find_cosign(options, plain_http=plain_http)
        signer = None if cosign is None else ImageSigner(cosign, ImageBuilder(default_home(), options.root))
        publisher = _select_publisher(options.root, registry, options.kind, plain_http=options.plain_http)
        publisher.publish_images(references, None if signer is None else signer.sign_image, print_progress)
    except LocalClusterError as error:
        print_progress(str(error))
        return 1
    tags = "".join(f" --set-string images.{name}.tag={tag}" for name in _CHART_NAMES) if options.tag else ""
    print_progress(
        "next: helm upgrade --install tidegate charts/tidegate --namespace tidegate-system --create-namespace "
        f"--set images.registry={registry}{tags} --wait"
    )
    print_progress(
        f'then: sed "s#tidegate.local.*#{registry}/{ImageName.OBJECT_STORE}:{tag}#" examples/first-model/*.yaml '
        "| kubectl apply -f -"
    )
    return 0


_CHART_NAMES: Final = ("operator", "dataplane", "triton", "gateway")


def read_registry(parser: argparse.ArgumentParser, text: str) -> str:
    """Return the registry that an argument names, or end with the parser's usage error."""
    registry = text.rstrip("/")
    if not registry or "://" in registry:
        parser.error(
            f"{registry!r} is not a registry: name it without a scheme, registry.example.com/tidegate"
        )
    return registry


def print_progress(line: str) -> None:
    """Print a line of progress to stderr."""
    sys.stderr.write(f"{line}\n")


def _add_digest(reference: str, digest: str) -> str:
    """Return the reference of an image by its digest instead of its tag."""
    return f"{reference.rpartition(':')[0]}@{digest}"


def is_loopback(registry: str) -> bool:
    """Return whether a registry is on this machine, where registries have no certificate."""
    return _LOOPBACK.match(registry) is not None


def _select_publisher(root: Path, registry: str, kind_cluster: str, *, plain_http: bool) -> ImagePublisher:
    """Return Docker if its daemon answers, and buildah otherwise."""
    builder = ImageBuilder(default_home(), root)
    if is_docker_running():
        if plain_http:
            raise ImageBuildError(
                f"--plain-http is not for Docker, whose daemon decides: name {registry.partition('/')[0]} in "
                "insecure-registries of /etc/docker/daemon.json, restart the daemon, and omit --plain-http"
            )
        return DockerPublisher(builder, root, kind_cluster)
    if kind_cluster:
        raise ImageBuildError("kind needs Docker, whose daemon does not answer `docker info`: start it")
    return BuildahPublisher(builder, plain_http or is_loopback(registry))


def is_docker_running() -> bool:
    """Return whether Docker is installed, and its daemon answers."""
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=_DOCKER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(run_publisher())
