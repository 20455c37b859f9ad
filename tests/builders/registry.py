"""Push models to an OCI registry as oras and as an image builder would, over its plain HTTP."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EMPTY = b"{}"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
FILE = "application/octet-stream"
TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP = f"{TAR}+gzip"


def sha256(content: bytes) -> str:
    """In hex."""
    return hashlib.sha256(content).hexdigest()


def a_tar(files: Mapping[str, bytes], *extra: tarfile.TarInfo, compressed: bool = True) -> bytes:
    """A tar file, gzipped unless told otherwise; `extra` are entries without content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return gzip.compress(stream.getvalue(), mtime=0) if compressed else stream.getvalue()


def an_entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A link, device or folder."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that speaks plain HTTP at `url`."""

    url: str

    def push_files(self, repository: str, tag: str, files: Mapping[str, bytes]) -> str:
        """As `oras push`: a layer per file, its name in an annotation. Returns the manifest's digest in hex."""
        layers = [
            self._blob(repository, content, FILE, {"org.opencontainers.image.title": name})
            for name, content in files.items()
        ]
        return self.push_manifest(repository, tag, self._document(repository, layers))

    def push_layers(self, repository: str, tag: str, layers: Sequence[bytes], kind: str = TAR_GZIP) -> str:
        """As an image builder: a tar file per layer."""
        pushed = [self._blob(repository, layer, kind) for layer in layers]
        return self.push_manifest(repository, tag, self._document(repository, pushed))

    def push_index(self, repository: str, tag: str, digests: Mapping[str, str]) -> str:
        """An index of manifests by architecture."""
        manifests = [
            {
                "mediaType": MANIFEST,
                "digest": f"sha256:{digest}",
                "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in digests.items()
        ]
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self.push_manifest(repository, tag, document)

    def push_manifest(self, repository: str, tag: str, document: Mapping[str, Any]) -> str:
        """Any manifest."""
        body = json.dumps(document).encode()
        self._send("PUT", f"{self.url}/v2/{repository}/manifests/{tag}", body, document["mediaType"])
        return sha256(body)

    def _document(self, repository: str, layers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        config = self._blob(repository, EMPTY, "application/vnd.oci.empty.v1+json")
        return {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}

    def _blob(
        self, repository: str, content: bytes, kind: str, notes: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        digest = f"sha256:{sha256(content)}"
        self._send("POST", f"{self.url}/v2/{repository}/blobs/uploads/?digest={digest}", content, FILE)
        described = {"mediaType": kind, "digest": digest, "size": len(content)}
        return {**described, "annotations": dict(notes)} if notes else described

    def _send(self, method: str, url: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60):
            pass
