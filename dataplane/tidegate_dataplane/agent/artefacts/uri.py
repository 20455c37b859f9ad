"""Parse artefact URIs, and refuse what could name another place. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, UriScheme, find_scheme


@dataclass(frozen=True, slots=True)
class ArtefactUri:
    """A parsed URI: `authority` is the host, bucket or claim (empty for file), `path` is without slashes around it."""

    scheme: UriScheme
    authority: str
    path: str
    text: str

    def __str__(self) -> str:
        return self.text


def parse_uri(text: str) -> ArtefactUri:
    """Parse the URI of an artefact or a table.

    Raises:
        ArtefactError: UriNotAllowed with the part that is refused.
    """
    # urlsplit would drop some of these in silence.
    if any(ord(character) <= 32 for character in text):
        raise _not_allowed(text, "it contains a space or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _not_allowed(text, f"it cannot be parsed: {error}") from error
    scheme = find_scheme(f"{parts.scheme}://")
    if scheme is None:
        raise _not_allowed(
            text, f"its scheme is not one of {', '.join(f'{scheme}:' for scheme in UriScheme)}"
        )
    if parts.username or parts.password:
        raise _not_allowed(text, "it carries credentials; put them into the storage Secret")
    if parts.query or parts.fragment:
        raise _not_allowed(text.split("?")[0], "a query or fragment cannot be followed by a version folder")
    path = unquote(parts.path).strip("/")
    if ".." in path.split("/") or any(ord(character) < 32 or character == "\\" for character in path):
        raise _not_allowed(text, "its path leaves the folder it names")
    return ArtefactUri(scheme, _parse_authority(scheme, parts, port, path, text), path, text)


def _parse_authority(scheme: UriScheme, parts: SplitResult, port: int | None, path: str, text: str) -> str:
    host = parts.hostname or ""
    if scheme is UriScheme.FILE:
        if host not in ("", "localhost"):
            raise _not_allowed(text, "a file: URI names a folder of the node, as file:///models/<name>")
        return ""
    if not host:
        raise _not_allowed(text, f"it names no {scheme.traits.authority_name}, as {scheme.uri_form}")
    if scheme.traits.has_revisions and not path:
        raise _not_allowed(text, "it names no repository")
    if scheme is UriScheme.HF:
        return parts.netloc  # the hub's names have capitals, which hostname does not
    return f"{host}:{port}" if port and port != 443 else host


def _not_allowed(text: str, reason: str) -> ArtefactError:
    without_credentials = re.sub(r"//.*@", "//…@", text, flags=re.DOTALL)[:300]
    return ArtefactError(
        FailureReason.URI_NOT_ALLOWED, f"URI {without_credentials!r} is not allowed: {reason}"
    )
