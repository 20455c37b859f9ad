"""Parsing of the Secrets that ModelAccesses name for their callers; repr() never shows a value of them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from tidegate.api.auth import JWKS_KEY, MAX_KEY_LENGTH, MIN_KEY_LENGTH
from tidegate.api.meta import ObjectKey

MAX_JWKS_BYTES: Final = 256 << 10

# The parameters that Envoy verifies with, by kind of key (RFC 7518 and 8037), and those that make a key private.
_PARAMETERS: Final = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_CURVES: Final = {"EC": ("P-256", "P-384", "P-521"), "OKP": ("Ed25519",)}
_DESCRIPTIVE: Final = ("kid", "alg", "use", "crv")
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"})


@dataclass(frozen=True, slots=True)
class SecretData:
    """The entries of one Secret; repr() never shows a value."""

    entries: Mapping[str, bytes] = field(repr=False)


def decode_secret(body: Mapping[str, Any] | None) -> SecretData | None:
    """Return the entries of a Secret; one with invalid base64, which the API server never stores, counts as empty."""
    if body is None:
        return None
    entries: dict[str, bytes] = {}
    for name, value in body["data"].items():
        try:
            entries[name] = base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            entries[name] = b""
    return SecretData(entries)


class ClientAuthority(StrEnum):
    """Whether gateways can verify client certificates: not configured, the Secret was never valid, or they can."""

    ABSENT = "Absent"
    UNUSABLE = "Unusable"
    USABLE = "Usable"


@dataclass(frozen=True, slots=True)
class InvalidContent:
    """Why something in a Secret, or at an address, cannot be used; never shows its value."""

    reason: str


@dataclass(frozen=True, slots=True)
class _SkippedKey:
    """Why one key of a set is skipped without harm to the others; never shows its value."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeyFetchFailed:
    """Why nothing was fetched from an address."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeyFetchSkipped:
    """Why no keys are fetched from an address at all."""

    reason: str


KeyFetchResult = str | InvalidContent | KeyFetchFailed | KeyFetchSkipped
"""The result of fetching an issuer's keys: a key set in the form of `parse_public_keys`, or why there is none."""


@dataclass(frozen=True, slots=True)
class CallerCredentials:
    """The Secrets and issuers' keys that are available to the gateways.

    `namespaces` are those whose Secrets are read; `key_hosts` the hosts (host, or host:port) from which keys are fetched.
    `fetched` has the result of each address, `client_authority` whether client certificates can be verified.
    """

    namespaces: frozenset[str] = frozenset()
    client_authority: ClientAuthority = field(default=ClientAuthority.ABSENT, kw_only=True)
    secrets: Mapping[ObjectKey, SecretData] = field(default_factory=lambda: MappingProxyType({}))
    key_hosts: frozenset[str] = frozenset()
    fetched: Mapping[str, KeyFetchResult] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class NamedKey:
    """One API key and its holder; repr() never shows the key."""

    holder: str
    key: str = field(repr=False)


def parse_api_keys(secret: SecretData) -> tuple[tuple[NamedKey, ...], tuple[InvalidContent, ...]]:
    """Return the distinct API keys in `secret`, and the entries that are left out."""
    keys: dict[str, NamedKey] = {}
    problems: list[InvalidContent] = []
    for holder, value in sorted(secret.entries.items()):
        key = _parse_api_key(value)
        if key is None:
            problems.append(
                InvalidContent(f"entry {holder} has blanks or characters that are not printable ASCII")
            )
        elif not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
            problems.append(
                InvalidContent(
                    f"entry {holder} has {len(key)} characters: {MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} are needed"
                )
            )
        else:
            # Envoy rejects a duplicate key, and the routes of all accesses along with it.
            keys.setdefault(key, NamedKey(holder, key))
    if not secret.entries:
        problems.append(InvalidContent("it is empty: add an entry for each caller"))
    return tuple(keys.values()), tuple(problems)


def _parse_api_key(value: bytes) -> str | None:
    """Return the text of a key without the line end that `--from-file` adds; None if a header cannot hold it."""
    text = value.strip(b"\r\n")
    return text.decode("ascii") if all(0x21 <= byte <= 0x7E for byte in text) else None


def parse_key_set(secret: SecretData) -> str | InvalidContent:
    """Return the public keys in `secret` as a JSON Web Key Set in one form, with only the fields that Envoy needs."""
    value = secret.entries.get(JWKS_KEY)
    return (
        InvalidContent(f"it has no entry {JWKS_KEY}") if value is None else parse_public_keys(value, JWKS_KEY)
    )


def parse_public_keys(value: bytes, name: str) -> str | InvalidContent:
    """Return the public keys in `value`, a JSON Web Key Set, in the form of `parse_key_set`; messages call it `name`.

    Keys that cannot verify a token here are skipped (RFC 7517, section 5): an issuer may publish one for encryption, or of a
    newer kind, beside those that count. A key that must not be published at all makes the whole set invalid.
    """
    if len(value) > MAX_JWKS_BYTES:
        return InvalidContent(f"{name} has {len(value)} bytes: at most {MAX_JWKS_BYTES} are taken")
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        return InvalidContent(f"{name} is no JSON")
    keys = parsed.get("keys") if _is_object(parsed) else None
    if not isinstance(keys, list) or not keys:
        return InvalidContent(f"{name} has no list of keys: it must be an object with a list 'keys'")
    public: list[dict[str, str]] = []
    skipped: list[str] = []
    for number, key in enumerate(keys):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]  JSON
        result = _parse_public_key(key)  # pyright: ignore[reportUnknownArgumentType]  JSON
        if isinstance(result, InvalidContent):
            return InvalidContent(f"{name}: keys[{number}] {result.reason}")
        if isinstance(result, _SkippedKey):
            skipped.append(f"keys[{number}] {result.reason}")
        else:
            public.append(result)
    if not public:
        return InvalidContent(f"{name} has no key that can be used, of {len(skipped)}: {skipped[0]}")
    return json.dumps({"keys": public}, sort_keys=True, separators=(",", ":"))


def host_from_address(address: str) -> str:
    """Return the host of an https:// address, or of an entry of the list, in one form.

    The form has its port, unless that is 443.
    """
    return address.removeprefix("https://").partition("/")[0].removesuffix(":443")


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _parse_public_key(key: object) -> dict[str, str] | InvalidContent | _SkippedKey:
    if not _is_object(key):
        return InvalidContent("is no object")
    kind = key.get("kty")
    if kind == "oct":
        return InvalidContent(
            "is symmetric: whoever checks tokens with it could make them; use RSA, EC or Ed25519"
        )
    if _PRIVATE & key.keys():
        return InvalidContent(
            "holds a private key: leave only its public part, and make a new one, since this one was shown"
        )
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        return _SkippedKey("is of no kind that can be used: kty must be RSA, EC or OKP")
    if key.get("use", "sig") != "sig":
        return _SkippedKey("is not for signatures: use must be sig, or absent")
    if kind in _CURVES and key.get("crv") not in _CURVES[kind]:
        return _SkippedKey(f"has a curve that cannot be used: crv must be one of {', '.join(_CURVES[kind])}")
    if not all(_is_base64url(key.get(name)) for name in _PARAMETERS[kind]):
        return _SkippedKey(f"lacks {' or '.join(_PARAMETERS[kind])}, in base64url")
    about = {name: key[name] for name in _DESCRIPTIVE if isinstance(key.get(name), str)}
    return {"kty": kind, **about, **{name: str(key[name]) for name in _PARAMETERS[kind]}}


def _is_base64url(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    try:
        return bool(base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return False
