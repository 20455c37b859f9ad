"""OCI manifests and indexes of models: which layers are files, which are archives."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
TITLE = "org.opencontainers.image.title"
UNPACK = "io.deis.oras.content.unpack"
IMAGE_FOLDER = "models"
MAX_LAYERS = 1000
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class _ManifestModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class OciPlatform(_ManifestModel):
    """Operating system and architecture of an image."""

    architecture: str = ""
    os: str = ""


class OciDescriptor(_ManifestModel):
    """One blob or manifest, by digest."""

    digest: Digest
    size: int = Field(ge=0)
    media_type: str = Field(default="", alias="mediaType")
    annotations: Mapping[str, str] | None = None
    platform: OciPlatform | None = None


class OciManifest(_ManifestModel):
    """A manifest or an index of manifests."""

    media_type: str = Field(default="", alias="mediaType")
    layers: tuple[OciDescriptor, ...] | None = Field(default=None, max_length=MAX_LAYERS)
    manifests: tuple[OciDescriptor, ...] | None = Field(default=None, max_length=MAX_LAYERS)


@dataclass(frozen=True, slots=True)
class ArchiveLayer:
    """A layer that is a tar file; from an image only the folder /models is used."""

    digest: str
    below: str


@dataclass(frozen=True, slots=True)
class ManifestContents:
    """Files by path, each with its digest and size, and archives in the order of unpacking."""

    files: Mapping[str, tuple[str, int]]
    archives: tuple[ArchiveLayer, ...]


def parse_manifest(body: bytes, artefact: str) -> OciManifest:
    """Parse the response of a registry.

    Raises:
        ArtefactError: ArtefactInvalid if it is no known kind of manifest.
    """
    try:
        manifest = OciManifest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        raise _invalid_manifest(
            artefact, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        ) from error
    if manifest.layers is None and manifest.manifests is None:
        raise _invalid_manifest(artefact, "it has neither layers nor manifests")
    return manifest


def choose_manifest(manifests: Sequence[OciDescriptor], artefact: str) -> OciDescriptor:
    """Return the manifest for this machine: the only one, the one of its platform, or one without a platform."""
    if len(manifests) == 1:
        return manifests[0]
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    for descriptor in manifests:
        if descriptor.platform and (descriptor.platform.os, descriptor.platform.architecture) == (
            "linux",
            machine,
        ):
            return descriptor
    for descriptor in manifests:
        if descriptor.platform is None:
            return descriptor
    raise _invalid_manifest(artefact, f"its index has nothing for linux/{machine}")


def sort_layers(manifest: OciManifest, artefact: str) -> ManifestContents:
    """Sort the layers into files (those with a title, as oras pushes them) and archives.

    Raises:
        ArtefactError: ArtefactInvalid for a layer that is neither, or a title that leaves the folder.
    """
    files: dict[str, tuple[str, int]] = {}
    archives: list[ArchiveLayer] = []
    for layer in manifest.layers or ():
        notes = layer.annotations or {}
        title = notes.get(TITLE, "")
        packed = notes.get(UNPACK) == "true"
        if title and not packed:
            files[
                check_relative_path(title.removeprefix("./"), subject=f"title of a layer of {artefact}")
            ] = (
                layer.digest.removeprefix("sha256:"),
                layer.size,
            )
        elif packed or "tar" in layer.media_type:
            archives.append(
                ArchiveLayer(layer.digest.removeprefix("sha256:"), "" if packed else IMAGE_FOLDER)
            )
        else:
            raise _invalid_manifest(
                artefact,
                f"layer {layer.digest} of type {layer.media_type!r} has no title ({TITLE}) and is no tar file",
            )
    return ManifestContents(files, tuple(archives))


def _invalid_manifest(artefact: str, reason: str) -> ArtefactError:
    return ArtefactError(
        FailureReason.ARTEFACT_INVALID, f"{artefact} is no model that can be read from a registry: {reason}"
    )
