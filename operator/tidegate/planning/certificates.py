"""Plan the rotation of the release's own certificates: three steps, during which all sides trust each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
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

TRUST_OVERLAP: Final = timedelta(days=1)
"""How long an authority stays trusted after its last use, for processes that were cut off and for a rollback."""


class CertificatePart(StrEnum):
    """The part of the release that a certificate belongs to."""

    CONTROLLERS = "controllers"
    XDS = "xds"
    GATEWAY = "gateway"


FAMILIES: Final = ((CertificatePart.CONTROLLERS,), (CertificatePart.XDS, CertificatePart.GATEWAY))
"""Parts that share an authority. The controllers' authority signs no gateway, and the other signs no caller of agents."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its key, both PEM; the repr hides the key."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretContent:
    """The content of the Secret of one part; without `current` it was never filled.

    `following` waits until `trusted`, with the authority that signed it, has reached all readers.
    `since` is when the last step was taken.
    """

    trusted: tuple[bytes, ...] = ()
    current: CertificatePair | None = None
    following: CertificatePair | None = None
    since: datetime | None = None
    requested: bool = field(default=False, compare=False)
    """Whether a new certificate is requested; never written to the Secret."""

    @classmethod
    def from_data(cls, data: Mapping[str, bytes], *, requested: bool = False) -> SecretContent:
        """Parse the content of a Secret; what cannot be read counts as absent, and is issued again."""
        current, following = (
            _parse_pair(data.get(chain, b""), data.get(key, b""))
            for chain, key in ((CHAIN_KEY, PRIVATE_KEY_KEY), (_NEXT_CHAIN_KEY, _NEXT_PRIVATE_KEY_KEY))
        )
        trusted = split_bundle(data.get(AUTHORITY_KEY, b""))
        if current is None or not trusted:
            return cls(requested=requested)
        return cls(trusted, current, following, _parse_time(data.get(_SINCE_KEY, b"")), requested)

    def to_data(self) -> dict[str, bytes]:
        """Return the Secret's data."""
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
class IssuedPairs:
    """One authority, whose key is already discarded, and a pair that it signed for each part."""

    authority: bytes
    pairs: Mapping[CertificatePart, CertificatePair]


Issue: TypeAlias = Callable[[Sequence[CertificatePart]], IssuedPairs]
"""Issues an authority and a pair for each of these parts; the only function here that draws random numbers."""


class RotationStage(Enum):
    """What the Secrets of one family need next."""

    ISSUE = auto()
    """No part has a valid pair: each gets one, which is used at once."""
    PREPARE = auto()
    """A pair is lost, not trusted by the other side, or due: new ones are issued and kept aside."""
    DISTRIBUTE = auto()
    """The new pairs wait until every reader trusts their authority."""
    SWITCH = auto()
    """The new pairs are used."""
    RETIRE = auto()
    """Authorities that signed no pair in use are no longer trusted."""
    STEADY = auto()
    """Nothing, for now."""


def find_rotation_stage(
    contents: Mapping[CertificatePart, SecretContent], now: datetime, spread: timedelta
) -> RotationStage:
    """Return the stage of Secrets from which invalid pairs have been dropped."""
    if all(content.current is None for content in contents.values()):
        return RotationStage.ISSUE
    steps = [content.since for content in contents.values() if content.since is not None]
    age = now - max(steps) if steps else None
    settled = age is None or age >= spread
    if any(content.following is not None for content in contents.values()):
        if not _share_authority(contents):
            return RotationStage.PREPARE
        return RotationStage.SWITCH if settled else RotationStage.DISTRIBUTE
    # A restored Secret may be complete, and of an authority that the other side does not trust.
    complete = all(
        _find_signer(content.current, peer.trusted)
        for content in contents.values()
        for peer in contents.values()
    )
    if not complete or (settled and any(_is_due(content, now) for content in contents.values())):
        return RotationStage.PREPARE
    return RotationStage.STEADY if age is None or age < TRUST_OVERLAP else RotationStage.RETIRE


def plan_rotation(
    contents: Mapping[CertificatePart, SecretContent], now: datetime, spread: timedelta, issue: Issue
) -> Mapping[CertificatePart, SecretContent]:
    """Return the next content of the Secrets of one family, only of those that change.

    A new certificate is issued with its authority and kept aside while all sides come to trust it; after `spread`, the
    longest time that a Secret's content takes to reach all readers, it is used; after TRUST_OVERLAP the previous authority is no
    longer trusted. Each step may break off between two Secrets: the next call continues, or begins again if a pair is lost.
    """
    contents = {part: _drop_invalid(content, now) for part, content in contents.items()}
    match find_rotation_stage(contents, now, spread):
        case RotationStage.ISSUE:
            issued = issue(tuple(contents))
            return {
                part: SecretContent((issued.authority,), issued.pairs[part], since=now) for part in contents
            }
        case RotationStage.PREPARE:
            return _prepare_rotation(contents, now, issue)
        case RotationStage.SWITCH:
            return {
                part: _switch_pair(content, now) for part, content in contents.items() if content.following
            }
        case RotationStage.RETIRE:
            return _retire_authorities(contents, now)
        case RotationStage.DISTRIBUTE | RotationStage.STEADY:
            return {}


def _retire_authorities(
    contents: Mapping[CertificatePart, SecretContent], now: datetime
) -> Mapping[CertificatePart, SecretContent]:
    """Trust only the authorities that signed a pair in use; return the Secrets that this changes."""
    used = {_find_signer(content.current, content.trusted) for content in contents.values()}
    retired = {
        part: replace(content, trusted=tuple(item for item in content.trusted if item in used), since=now)
        for part, content in contents.items()
    }
    return {part: content for part, content in retired.items() if content.trusted != contents[part].trusted}


def _drop_invalid(content: SecretContent, now: datetime) -> SecretContent:
    """Drop a pair that is not valid now: expired, or issued by a clock that was ahead."""
    current, following = (
        pair if pair is not None and _is_valid(pair, now) else None
        for pair in (content.current, content.following)
    )
    since = None if content.since is not None and content.since > now else content.since
    return replace(content, current=current, following=following, since=since)


def _is_valid(pair: CertificatePair, now: datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.chain)
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def split_bundle(bundle: bytes) -> tuple[bytes, ...]:
    """Split a bundle into its certificates, each as PEM in one fixed spelling; return none if it cannot be read."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(certificate.public_bytes(Encoding.PEM) for certificate in certificates))


def _prepare_rotation(
    contents: Mapping[CertificatePart, SecretContent], now: datetime, issue: Issue
) -> Mapping[CertificatePart, SecretContent]:
    """Issue one new authority, which all trust beside those that they know, and a pair for each part.

    A part without a valid pair uses the new one at once.
    """
    issued = issue(tuple(contents))
    in_use = dict.fromkeys(
        authority
        for content in contents.values()
        for authority in content.trusted
        if any(_is_signed_by(peer.current, authority) for peer in contents.values())
    )
    trusted = (*in_use, issued.authority)
    return {
        part: SecretContent(
            trusted,
            content.current or issued.pairs[part],
            issued.pairs[part] if content.current else None,
            now,
        )
        for part, content in contents.items()
    }


def _share_authority(contents: Mapping[CertificatePart, SecretContent]) -> bool:
    """Return whether all parts have a pair, aside or in use, of one authority that each of them trusts."""
    signers = {
        _find_signer(content.following or content.current, content.trusted) for content in contents.values()
    }
    return len(signers) == 1 and all(
        signer in content.trusted for signer in signers for content in contents.values()
    )


def _switch_pair(content: SecretContent, now: datetime) -> SecretContent:
    return SecretContent(content.trusted, content.following, since=now)


def _is_due(content: SecretContent, now: datetime) -> bool:
    """Return whether half of the validity has passed, which leaves time for a rotation without supervision."""
    if content.requested or content.current is None:
        return True
    certificate = x509.load_pem_x509_certificate(content.current.chain)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) / 2


def _find_signer(pair: CertificatePair | None, among: Sequence[bytes]) -> bytes | None:
    return next((authority for authority in among if _is_signed_by(pair, authority)), None)


def _is_signed_by(pair: CertificatePair | None, authority: bytes) -> bool:
    if pair is None:
        return False
    try:
        x509.load_pem_x509_certificate(pair.chain).verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority)
        )
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _parse_pair(chain: bytes, key: bytes) -> CertificatePair | None:
    """Parse a pair; return None if either part is unreadable, or the key does not belong to the certificate."""
    try:
        certificate, private = x509.load_pem_x509_certificate(chain), load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return CertificatePair(chain, key) if private.public_key() == certificate.public_key() else None


def _parse_time(text: bytes) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.decode())
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
