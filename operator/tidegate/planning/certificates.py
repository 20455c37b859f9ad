"""What the release's own certificates are to become: made, replaced in three steps, and never so that two sides disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

AUTHORITY_KEY: Final = "ca.crt"
CHAIN_KEY: Final = "tls.crt"
PRIVATE_KEY_KEY: Final = "tls.key"
_NEXT_CHAIN_KEY: Final = "next.crt"
_NEXT_PRIVATE_KEY_KEY: Final = "next.key"
_SINCE_KEY: Final = "since"

KEEP: Final = timedelta(days=1)
"""How long an authority that signed nothing in use is trusted on, for processes that were cut off and for a rollback."""


class Part(StrEnum):
    """Whose certificate it is."""

    CONTROLLERS = "controllers"
    XDS = "xds"
    GATEWAY = "gateway"


FAMILIES: Final = ((Part.CONTROLLERS,), (Part.XDS, Part.GATEWAY))
"""Parts whose certificates are of one authority. That of the controllers signs no gateway, and the other no caller of agents."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM; no text of this shows the key."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Held:
    """What the Secret of one part says; without `current` it was never filled.

    `following` waits until `trusted`, with the authority that signed it, has reached everybody.
    `since` is when the last step was taken.
    """

    trusted: tuple[bytes, ...] = ()
    current: Pair | None = None
    following: Pair | None = None
    since: datetime | None = None
    asked: bool = field(default=False, compare=False)
    """Whether somebody wants a new certificate now; never part of what is written."""

    @classmethod
    def parse(cls, data: Mapping[str, bytes], *, asked: bool = False) -> Held:
        """The content of a Secret; whatever cannot be read counts as not there, and is made again."""
        current, following = (
            _pair(data.get(chain, b""), data.get(key, b""))
            for chain, key in ((CHAIN_KEY, PRIVATE_KEY_KEY), (_NEXT_CHAIN_KEY, _NEXT_PRIVATE_KEY_KEY))
        )
        trusted = authorities(data.get(AUTHORITY_KEY, b""))
        if current is None or not trusted:
            return cls(asked=asked)
        return cls(trusted, current, following, _time(data.get(_SINCE_KEY, b"")), asked)

    def render(self) -> dict[str, bytes]:
        """The Secret's data."""
        pairs = (
            (CHAIN_KEY, PRIVATE_KEY_KEY, self.current),
            (_NEXT_CHAIN_KEY, _NEXT_PRIVATE_KEY_KEY, self.following),
        )
        data = {AUTHORITY_KEY: b"".join(self.trusted)} if self.trusted else {}
        for chain, key, pair in pairs:
            if pair is not None:
                data |= {chain: pair.chain, key: pair.key}
        if self.since is not None:
            data[_SINCE_KEY] = self.since.isoformat().encode()
        return data


@dataclass(frozen=True, slots=True)
class Issued:
    """One authority, whose key nobody has any more, and a pair for each part that it signed."""

    authority: bytes
    pairs: Mapping[Part, Pair]


Issue: TypeAlias = Callable[[Sequence[Part]], Issued]
"""Makes an authority and a pair for each of these parts; the only thing here that draws random numbers."""


def next_step(
    held: Mapping[Part, Held], now: datetime, spread: timedelta, issue: Issue
) -> Mapping[Part, Held]:
    """What the Secrets of one family are to hold now, only of those that change.

    A new certificate is made, with its authority, and kept aside while all come to trust it; after `spread`, the longest that a
    Secret's content takes to everybody who reads it, it is used; after KEEP the authority before it is trusted no more.
    Each step may break off between two Secrets: the next look goes on, or begins anew where a pair is lost.
    """
    held = {part: _of_now(each, now) for part, each in held.items()}
    current = {part: each.current for part, each in held.items()}
    if all(pair is None for pair in current.values()):
        issued = issue(tuple(held))
        return {part: Held((issued.authority,), issued.pairs[part], since=now) for part in held}
    # A Secret that somebody has put back from elsewhere may be whole, and of an authority that the other side does not trust.
    whole = all(_signer(pair, other.trusted) for pair in current.values() for other in held.values())
    last = max((each.since for each in held.values() if each.since is not None), default=None)
    settled = last is None or now - last >= spread
    if any(each.following is not None for each in held.values()):
        if not _agreed(held):
            return _prepared(held, now, issue)
        return (
            {part: _switched(each, now) for part, each in held.items() if each.following} if settled else {}
        )
    if not whole or (settled and any(_due(each, now) for each in held.values())):
        return _prepared(held, now, issue)
    used = [authority for each in held.values() if (authority := _signer(each.current, each.trusted))]
    if last is None or now - last < KEEP:
        return {}
    return {
        part: replace(each, trusted=kept, since=now)
        for part, each in held.items()
        if used and (kept := tuple(one for one in each.trusted if one in used)) != each.trusted
    }


def _of_now(held: Held, now: datetime) -> Held:
    """Without what is not valid now, ended or made by a clock that was ahead: it is no use to show it, nor to wait for it."""
    current, following = (
        pair if pair is not None and _valid(pair, now) else None for pair in (held.current, held.following)
    )
    since = None if held.since is not None and held.since > now else held.since
    return replace(held, current=current, following=following, since=since)


def _valid(pair: Pair, now: datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.chain)
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def authorities(bundle: bytes) -> tuple[bytes, ...]:
    """Each certificate of a bundle, as PEM in one fixed spelling; none where it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(one.public_bytes(Encoding.PEM) for one in found))


def _prepared(held: Mapping[Part, Held], now: datetime, issue: Issue) -> Mapping[Part, Held]:
    """A new pair for each, of one new authority, which all trust beside those that they know; who has none uses it at once."""
    issued = issue(tuple(held))
    known = dict.fromkeys(
        authority
        for each in held.values()
        for authority in each.trusted
        if any(_signed(other.current, authority) for other in held.values())
    )
    trusted = (*known, issued.authority)
    return {
        part: Held(
            trusted, each.current or issued.pairs[part], issued.pairs[part] if each.current else None, now
        )
        for part, each in held.items()
    }


def _agreed(held: Mapping[Part, Held]) -> bool:
    """Whether all have, aside or in use already, a pair of one authority that each of them trusts."""
    signers = {_signer(each.following or each.current, each.trusted) for each in held.values()}
    return len(signers) == 1 and all(signer in each.trusted for signer in signers for each in held.values())


def _switched(each: Held, now: datetime) -> Held:
    return Held(each.trusted, each.following, since=now)


def _due(each: Held, now: datetime) -> bool:
    """Whether half of its time is over, so that much is left for a rotation that nobody looks after."""
    if each.asked or each.current is None:
        return True
    certificate = x509.load_pem_x509_certificate(each.current.chain)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) / 2


def _signer(pair: Pair | None, among: Sequence[bytes]) -> bytes | None:
    return next((authority for authority in among if _signed(pair, authority)), None)


def _signed(pair: Pair | None, authority: bytes) -> bool:
    if pair is None:
        return False
    try:
        x509.load_pem_x509_certificate(pair.chain).verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority)
        )
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pair(chain: bytes, key: bytes) -> Pair | None:
    """None where one cannot be read, or the key is another's."""
    try:
        certificate, private = x509.load_pem_x509_certificate(chain), load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return Pair(chain, key) if private.public_key() == certificate.public_key() else None


def _time(text: bytes) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.decode())
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
