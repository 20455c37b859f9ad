"""Reads the files of an image from its archive, as a container of it sees them."""

import json
import tarfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tidegate_localcluster.errors import LocalClusterError

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One entry of the file system, and the layer that contains it."""

    entry: tarfile.TarInfo
    layer: tarfile.TarFile


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """An image's configuration, and its files by path from the root, without a leading slash."""

    config: Mapping[str, Any]
    files: Mapping[str, ImageFile]

    def read_text(self, path: str) -> str:
        """Return the content of a file; raises LocalClusterError when it does not exist."""
        file = self.files.get(path)
        content = file.layer.extractfile(file.entry) if file is not None else None
        if content is None:
            raise LocalClusterError(f"the image has no file /{path}")
        return content.read().decode()


@contextmanager
def open_image(archive: Path) -> Generator[ImageFiles]:
    """Open an archive of `docker save` or `ImageBuilder`; raises LocalClusterError for any other file."""
    with ExitStack() as stack:
        try:
            outer = stack.enter_context(tarfile.open(archive))
            (manifest,) = json.loads(_read_member(outer, "manifest.json"))
            config = json.loads(_read_member(outer, manifest["Config"]))["config"]
            layers = [
                stack.enter_context(tarfile.open(fileobj=outer.extractfile(name), mode="r:*"))
                for name in manifest["Layers"]
            ]
            files = _stack_layers(layers)
        except (OSError, ValueError, KeyError, tarfile.TarError) as error:
            raise LocalClusterError(f"{archive} is no archive of one image: {error}") from error
        yield ImageFiles(config, files)


def _stack_layers(layers: list[tarfile.TarFile]) -> Mapping[str, ImageFile]:
    files: dict[str, ImageFile] = {}
    for layer in layers:
        members = layer.getmembers()
        for member in members:
            path = PurePosixPath(member.name.removeprefix("./"))
            if path.name == OPAQUE:
                _remove_prefix(files, f"{path.parent}/")
            elif path.name.startswith(WHITEOUT):
                deleted = str(path.with_name(path.name.removeprefix(WHITEOUT)))
                files.pop(deleted, None)
                _remove_prefix(files, f"{deleted}/")
        for member in members:
            path = PurePosixPath(member.name.removeprefix("./"))
            if not path.name.startswith(WHITEOUT):
                files[str(path)] = ImageFile(member, layer)
    return files


def _remove_prefix(files: dict[str, ImageFile], prefix: str) -> None:
    for path in [path for path in files if path.startswith(prefix)]:
        del files[path]


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content.read()
