"""A dead letter, and the forms in which it may be published: without the sender's headers, or cut, if it is too large. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

BODY_BYTES_HEADER: Final = "Tidegate-Body-Bytes"
"""Mark of a letter whose body was cut: the size that it had."""
SHORTEST_CUT_BYTES: Final = 1_024
MAX_MESSAGE_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class LetterContent:
    """The body and the headers of a message, and `our_headers`, which say why it is a dead letter."""

    body: bytes
    sender_headers: Mapping[str, str]
    our_headers: Mapping[str, str]
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class LetterForm:
    """What is published."""

    body: bytes
    headers: Mapping[str, str]


def list_forms(content: LetterContent, *, can_cut: bool) -> Iterator[LetterForm]:
    """Yield the forms of a letter from the largest one on, for a target that may refuse large ones.

    The body is what matters, so the sender's headers are left out first. With `can_cut`, halves of the body follow.
    """
    ours = content.our_headers
    if content.sender_headers:
        yield LetterForm(content.body, {**content.sender_headers, **ours})
    yield LetterForm(content.body, ours)
    size = len(content.body)
    while can_cut and size > SHORTEST_CUT_BYTES:
        size = max(size // 2, SHORTEST_CUT_BYTES)
        yield LetterForm(content.body[:size], {**ours, BODY_BYTES_HEADER: str(len(content.body))})


def make_reason_headers(reason: str, message: str) -> dict[str, str]:
    """Return the headers that every dead letter has, in ASCII."""
    return {
        "Tidegate-Reason": reason,
        "Tidegate-Message": " ".join(message.split())[:MAX_MESSAGE_CHARS].encode("ascii", "replace").decode(),
    }


def select_sender_headers(headers: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the sender's own headers; not ours, nor those that begin with one of `without`."""
    return {
        _to_one_line(name): _to_one_line(value)
        for name, value in headers.items()
        if not name.startswith(("Tidegate-", *without))
    }


def make_letter_id(*parts: object) -> str:
    """Return the same id for the same message each time, from what identifies it."""
    return blake2b("\n".join(map(str, parts)).encode(), digest_size=16).hexdigest()


def _to_one_line(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\r", " ").replace("\n", " ")
