"""Source oci: an artefact or image in a registry; its tag is the version, and every byte is checked by digest."""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate_dataplane.agent.artefacts.archive import UnpackBudget, unpack_layer
from tidegate_dataplane.agent.artefacts.checked_client import CheckedClient, HttpRules
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.folder_source import FolderSource
from tidegate_dataplane.agent.artefacts.https import DENIED, open_url
from tidegate_dataplane.agent.artefacts.oci_manifest import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    ManifestContents,
    choose_manifest,
    parse_manifest,
    sort_layers,
)
from tidegate_dataplane.agent.artefacts.receive import FetchTarget, receive_file
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason
from tidegate_dataplane.contract.answers import AnswerError, read_body

if TYPE_CHECKING:
    import aiohttp

MAX_MANIFEST_BYTES = 4 << 20
MAX_TOKEN_BYTES = 1 << 16
# The shortest life that the protocol lets a token have is a minute.
TOKEN_LIFE_S = 30.0
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class _RegistryToken(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    token: str = ""
    access_token: str = ""


class OciSource:
    """Reads one tag of `oci://<registry>/<repository>`: files as oras pushes them, or an image's folder /models."""

    def __init__(
        self,
        uri: ArtefactUri,
        *,
        version: int,
        revision: str,
        rules: HttpRules,
        credentials: SecretCredentials,
        wrap_source: Callable[[ArtefactSource], ArtefactSource] = lambda source: source,
    ) -> None:
        """Read the tag `revision`, by default the version's number; the wrapper adds a cache to the source of layers."""
        self._uri = uri
        self._blobs = wrap_source(_BlobSource(self))
        self._version = version
        self._tag = revision or str(version)
        self._artefact = f"{uri.text.rstrip('/')}:{self._tag}"
        self._base = f"https://{uri.authority}/v2/{quote(uri.path)}"
        self._client = CheckedClient(uri.text, rules)
        self._credentials = credentials
        self._authorization: str | None = None
        self._challenge = ""
        self._authorized_at_s = 0.0
        self._resolved: tuple[str, ManifestContents] | None = None
        self._unpacked: FolderSource | None = None

    async def fetch_digest(self) -> str:
        """Return the digest of the tag's manifest or index, in hex."""
        return (await self._resolve_tag())[0]

    async def unpack_layers(self, target: FetchTarget) -> None:
        """Receive the layers that are archives and unpack the model's files; do nothing without such layers.

        Raises:
            ArtefactError: ArtefactInvalid, ArtefactTooLarge, ChecksumMismatch, or an error of the download.
        """
        _, contents = await self._resolve_tag()
        if not contents.archives:
            return
        scratch = target.parts.make_scratch()
        folder = scratch / "unpacked"
        await asyncio.to_thread(folder.mkdir)
        layers = FetchTarget(
            scratch, target.limit_bytes, target.progress, self._artefact, target.parts, target.pause
        )
        budget = UnpackBudget(target.limit_bytes, artefact=self._artefact)
        for index, archive in enumerate(contents.archives):
            blob = await receive_file(self._blobs, archive.digest, f"layer-{index}", layers)
            path = scratch / blob.path
            await asyncio.to_thread(_unpack_blob, path, folder, archive.below, budget)
        self._unpacked = FolderSource(folder, folder, self._artefact)

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one file, `<version>/<path>` or config.pbtxt."""
        name = path.removeprefix(f"{self._version}/")
        _, contents = await self._resolve_tag()
        if name in contents.files:
            async with self._blobs.open(contents.files[name][0], resume) as download:
                yield download
        elif self._unpacked is not None:
            async with self._unpacked.open(name) as copy:
                yield Download(copy.size, copy.chunks, counted=False)
        else:
            has = ", ".join(sorted(contents.files)[:5]) or "no files"
            raise ArtefactError(
                FailureReason.ARTEFACT_NOT_FOUND, f"there is no {name} in {self._artefact}, which has {has}"
            )

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the files of the version; config.pbtxt is not one of them."""
        del folder
        _, contents = await self._resolve_tag()
        unpacked = await self._unpacked.list("") if self._unpacked is not None else ()
        return tuple(sorted({*contents.files, *unpacked} - {"config.pbtxt"}))

    async def identify_content(self, path: str) -> str:
        """Return the digest of the manifest, which identifies all files."""
        del path
        return await self.fetch_digest()

    @asynccontextmanager
    async def open_blob(self, digest: str, resume: ResumePoint | None) -> AsyncGenerator[Download, None]:
        """Start reading one layer."""
        await self._resolve_tag()  # which has found out how to be admitted
        await self._renew_token()
        async with open_url(
            self._client,
            f"{self._base}/blobs/sha256:{digest}",
            resume,
            authorization=self._authorization,
            denial_hint=self._credentials.explain_denial(),
            sha256=digest,
        ) as download:
            # A blob is its digest: it can be resumed whether or not the server has a validator for it.
            yield Download(
                download.size,
                download.chunks,
                start=download.start,
                validator=download.validator or f'"{digest}"',
                sha256=digest,
            )

    async def _resolve_tag(self) -> tuple[str, ManifestContents]:
        if self._resolved is None:
            body = await self._get_manifest(self._tag)
            digest = hashlib.sha256(body).hexdigest()
            manifest = parse_manifest(body, self._artefact)
            if manifest.manifests is not None:
                chosen = choose_manifest(manifest.manifests, self._artefact).digest
                body = await self._get_manifest(chosen)
                if f"sha256:{hashlib.sha256(body).hexdigest()}" != chosen:
                    raise ArtefactError(
                        FailureReason.CHECKSUM_MISMATCH,
                        f"the registry answers for {chosen} of {self._artefact} with other content: push it again",
                    )
                manifest = parse_manifest(body, self._artefact)
            self._resolved = digest, sort_layers(manifest, self._artefact)
        return self._resolved

    async def _get_manifest(self, reference: str) -> bytes:
        url = f"{self._base}/manifests/{reference}"
        headers = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
        async with self._client.get(url, headers=headers, authorization=self._authorization) as answer:
            if answer.status != 401 or self._authorization is not None:
                return await self._read_manifest(answer)
            self._challenge = answer.headers.get("WWW-Authenticate", "")
        await self._authorize_client()
        async with self._client.get(url, headers=headers, authorization=self._authorization) as answer:
            return await self._read_manifest(answer)

    async def _authorize_client(self) -> None:
        self._authorization = await self._request_authorization(self._challenge)
        self._authorized_at_s = time.monotonic()

    async def _renew_token(self) -> None:
        """Request another token before this one can expire: layers take longer than tokens live."""
        if self._challenge and time.monotonic() - self._authorized_at_s > TOKEN_LIFE_S:
            await self._authorize_client()

    async def _read_manifest(self, answer: "aiohttp.ClientResponse") -> bytes:
        if answer.status == 404:
            raise ArtefactError(
                FailureReason.ARTEFACT_NOT_FOUND,
                f"there is no {self._artefact}; the tag is spec.model.revision, or without one spec.model.version",
            )
        if answer.status != 200:
            hint = f": {self._credentials.explain_denial()}" if answer.status in DENIED else ""
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"the registry answered {answer.status} for the manifest of {self._artefact}{hint}",
            )
        return await self._read_bounded(answer, MAX_MANIFEST_BYTES, "manifest")

    async def _request_authorization(self, challenge: str) -> str:
        """Return the Authorization header for the registry's challenge."""
        kind, _, rest = challenge.partition(" ")
        own = self._credentials.registry_authorization(self._uri.authority)
        if kind.lower() == "basic" and own is not None:
            return own
        fields: Mapping[str, str] = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or not fields.get("realm"):
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"the registry refuses {self._artefact}: {self._credentials.explain_denial()}",
            )
        query = {name: fields[name] for name in ("service", "scope") if name in fields}
        url = f"{fields['realm']}?{urlencode(query)}"
        async with self._client.get(url, authorization=own) as answer:
            if answer.status != 200:
                raise ArtefactError(
                    FailureReason.FETCH_FAILED,
                    f"{fields['realm']} answered {answer.status} to the request for a token for {self._artefact}: "
                    f"{self._credentials.explain_denial()}",
                )
            body = await self._read_bounded(answer, MAX_TOKEN_BYTES, "token")
        try:
            token = _RegistryToken.model_validate_json(body)
        except ValidationError:
            token = _RegistryToken()
        if not (token.token or token.access_token):
            raise ArtefactError(FailureReason.FETCH_FAILED, f"{fields['realm']} answered without a token")
        return f"Bearer {token.token or token.access_token}"

    async def _read_bounded(self, answer: "aiohttp.ClientResponse", limit: int, document: str) -> bytes:
        try:
            return await read_body(answer, limit)
        except AnswerError as error:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"the {document} of {self._artefact} has more than {limit} bytes",
            ) from error


class _BlobSource:
    """The layers of an OciSource as files, by digest."""

    def __init__(self, source: OciSource) -> None:
        self._source = source

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one layer."""
        async with self._source.open_blob(path, resume) as download:
            yield download

    async def list(self, folder: str) -> None:
        """Return None: a manifest lists the layers."""
        del folder

    async def identify_content(self, path: str) -> str:
        """Return the digest, by which a layer is named."""
        return path


def _unpack_blob(path: Path, folder: Path, below: str, budget: UnpackBudget) -> None:
    unpack_layer(path, folder, below=below, budget=budget)
    path.unlink()
