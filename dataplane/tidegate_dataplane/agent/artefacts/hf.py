"""Source hf: a repository of the Hugging Face hub or of a mirror with the same API, at one commit."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tidegate_dataplane.agent.artefacts.checked_client import (
    CheckedClient,
    HttpRules,
    join_location,
    strip_query,
)
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.folder_source import MAX_FILES
from tidegate_dataplane.agent.artefacts.https import DENIED, open_url
from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.artefacts.source import Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason
from tidegate_dataplane.contract.answers import AnswerError, read_body

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
HUB = "https://huggingface.co"
MAX_PAGE_BYTES = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _HubModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _HubRevision(_HubModel):
    sha: str


class _LargeFile(_HubModel):
    oid: str = ""


class _TreeEntry(_HubModel):
    type: str
    path: str
    lfs: _LargeFile | None = None


_ENTRIES = TypeAdapter(tuple[_TreeEntry, ...])


class HfSource:
    """Reads `hf://<organisation>/<repository>[/<folder>]`; the revision is the version, so it has no subfolder.

    The revision is resolved once: all files come from one commit, even if a branch moves meanwhile.
    """

    def __init__(
        self,
        uri: ArtefactUri,
        *,
        version: int,
        revision: str,
        rules: HttpRules,
        credentials: SecretCredentials,
    ) -> None:
        repository, _, folder = uri.path.partition("/")
        self._uri = uri
        self._version = version
        self._revision = revision or str(version)
        self._repository = f"{quote(uri.authority)}/{quote(repository)}"
        self._folder = f"{folder}/" if folder else ""
        self._artefact = f"{uri.text.rstrip('/')} at revision {self._revision}"
        self._endpoint = (credentials.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._client = CheckedClient(uri.text, rules)
        self._credentials = credentials
        self._resolved: tuple[str, Mapping[str, str | None]] | None = None

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one file, `<version>/<path>` or config.pbtxt."""
        name = path.removeprefix(f"{self._version}/")
        commit, files = await self._list_commit()
        if name not in files:
            raise ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, f"there is no {name} in {self._artefact}")
        url = f"{self._endpoint}/{self._repository}/resolve/{commit}/{quote(self._folder + name)}"
        async with open_url(
            self._client,
            url,
            resume,
            authorization=self._auth_header(),
            denial_hint=self._credentials.explain_denial(),
            sha256=files[name],
        ) as download:
            yield download

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the files of the revision; config.pbtxt is not one of them."""
        del folder
        _, files = await self._list_commit()
        return tuple(sorted(set(files) - {"config.pbtxt"}))

    async def identify_content(self, path: str) -> str:
        """Return the commit, which identifies all files."""
        del path
        return (await self._list_commit())[0]

    def _auth_header(self) -> str | None:
        token = self._credentials.get("HF_TOKEN")
        return f"Bearer {token}" if token else None

    async def _list_commit(self) -> tuple[str, Mapping[str, str | None]]:
        """Return the commit and its files below the folder, with the sha256 of each file if the hub has it."""
        if self._resolved is None:
            api = f"{self._endpoint}/api/models/{self._repository}"
            body, _ = await self._get_page(f"{api}/revision/{quote(self._revision, safe='')}")
            commit = _parse_body(_HubRevision.model_validate_json, body, self._artefact).sha
            if _COMMIT.fullmatch(commit) is None:
                raise _unexpected_answer(self._artefact, f"commit {commit[:60]!r}")
            files: dict[str, str | None] = {}
            pages = 0
            url: str | None = f"{api}/tree/{commit}/{quote(self._folder.rstrip('/'))}?recursive=true"
            while url is not None:
                body, url = await self._get_page(url)
                pages += 1  # each has a file or a folder
                for entry in _parse_body(_ENTRIES.validate_json, body, self._artefact):
                    if entry.type == "file" and entry.path.startswith(self._folder):
                        name = check_relative_path(entry.path.removeprefix(self._folder), subject="file")
                        oid = entry.lfs.oid if entry.lfs else ""
                        files[name] = oid if _SHA256.fullmatch(oid) else None
                if max(len(files), pages) > MAX_FILES:
                    raise ArtefactError(
                        FailureReason.ARTEFACT_INVALID, f"{self._artefact} holds more than {MAX_FILES} files"
                    )
            self._resolved = commit, files
        return self._resolved

    async def _get_page(self, url: str) -> tuple[bytes, str | None]:
        """Return a response of the hub's API and the URL of the next page."""
        async with self._client.get(url, authorization=self._auth_header()) as answer:
            if answer.status == 404:
                raise ArtefactError(
                    FailureReason.ARTEFACT_NOT_FOUND,
                    f"there is no {self._artefact}; the revision is spec.model.revision, or without one the version",
                )
            if answer.status != 200:
                hint = f": {self._credentials.explain_denial()} (HF_TOKEN)" if answer.status in DENIED else ""
                raise ArtefactError(
                    FailureReason.FETCH_FAILED, f"{strip_query(url)} answered {answer.status}{hint}"
                )
            return await self._read_body(answer), _next_page(answer, url)

    async def _read_body(self, answer: "aiohttp.ClientResponse") -> bytes:
        try:
            return await read_body(answer, MAX_PAGE_BYTES)
        except AnswerError as error:
            raise _unexpected_answer(self._artefact, f"more than {MAX_PAGE_BYTES} bytes") from error


def _next_page(answer: "aiohttp.ClientResponse", url: str) -> str | None:
    link = answer.links.get("next")
    return join_location(url, str(link["url"])) if link and "url" in link else None


def _parse_body(parse: Callable[[bytes], T], body: bytes, artefact: str) -> T:
    try:
        return parse(body)
    except ValidationError as error:
        raise _unexpected_answer(artefact, "content that is not JSON of the hub") from error


def _unexpected_answer(artefact: str, content: str) -> ArtefactError:
    return ArtefactError(FailureReason.FETCH_FAILED, f"the hub answers for {artefact} with {content}")
