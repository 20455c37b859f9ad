"""The schemes of URIs: where models and tables come from, and where results and samples go."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class UriTraits:
    """Answers to all questions about a scheme, except how its source reads."""

    form: str
    """URI as a user writes it, without the scheme."""
    authority_name: str
    """What the authority is; empty if the scheme has none."""
    pattern: str
    """What follows the scheme, as a regular expression of RE2 and Python, up to the path."""
    is_mounted: bool = False
    """Whether it is a folder of the pod; else it is read over the network."""
    has_revisions: bool = False
    """Whether it is a repository, whose tag or revision is the version; else the version is a sub-folder."""
    can_hold_tables: bool = False
    """Whether a folder can be listed, to find the files of a table."""
    is_writable: bool = False


_CLAIM: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_HOST: Final = "[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?"
_BUCKET: Final = "[a-z0-9][-a-z0-9._]+[a-z0-9]"
_HUB_NAME: Final = "[A-Za-z0-9][-A-Za-z0-9._]*"


class UriScheme(StrEnum):
    """Scheme of a URI."""

    _value_: str
    traits: UriTraits

    FILE = "file", UriTraits("/<path>", "", "/[^/]+", is_mounted=True, can_hold_tables=True)
    PVC = (
        "pvc",
        UriTraits("<claim>/<path>", "claim", _CLAIM, is_mounted=True, can_hold_tables=True, is_writable=True),
    )
    HTTPS = "https", UriTraits("<host>/<path>", "host", _HOST)
    S3 = "s3", UriTraits("<bucket>/<prefix>", "bucket", _BUCKET, can_hold_tables=True, is_writable=True)
    GS = "gs", UriTraits("<bucket>/<prefix>", "bucket", _BUCKET, can_hold_tables=True, is_writable=True)
    OCI = (
        "oci",
        UriTraits(
            "<registry>/<repository>", "registry", f"{_HOST}/[a-z0-9][-a-z0-9._/]*", has_revisions=True
        ),
    )
    HF = (
        "hf",
        UriTraits(
            "<organisation>/<repository>", "organisation", f"{_HUB_NAME}/{_HUB_NAME}", has_revisions=True
        ),
    )

    def __new__(cls, name: str, traits: UriTraits) -> Self:
        scheme = str.__new__(cls, name)
        scheme._value_, scheme.traits = name, traits
        return scheme

    @property
    def uri_form(self) -> str:
        return f"{self}://{self.traits.form}"


WRITABLE_SCHEMES: Final = tuple(scheme for scheme in UriScheme if scheme.traits.is_writable)
TABLE_SCHEMES: Final = tuple(scheme for scheme in UriScheme if scheme.traits.can_hold_tables)
REVISION_SCHEMES: Final = tuple(scheme for scheme in UriScheme if scheme.traits.has_revisions)


def find_scheme(uri: str) -> UriScheme | None:
    """Return the scheme of a URI; None if it has none of these."""
    name, separator, _ = uri.partition("://")
    return next((scheme for scheme in UriScheme if separator and scheme.value == name), None)
