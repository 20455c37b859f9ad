"""`spec.auth` of a ModelAccess: callers authenticate by an API key, a JWT or a client certificate."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import ObjectName
from tidegate.api.matching import HeaderName, exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListSet, ValidationRule, ValidationRules, must_match, must_not_match

AUTH_LABEL: Final = "tidegate.io/auth"
AUTH_LABEL_VALUE: Final = "gateway"
JWKS_KEY: Final = "jwks.json"
MIN_KEY_LENGTH: Final = 16
MAX_KEY_LENGTH: Final = 1_024

_LABEL_REQUIREMENT: Final = f"It must carry the label {AUTH_LABEL}={AUTH_LABEL_VALUE}, in a namespace that the chart's auth.namespaces lists."

CredentialHeader = Annotated[
    HeaderName,
    ValidationRules(
        must_match(
            "authorization|x-.*",
            "must be authorization or begin with x-: the gateway takes this header out of the request",
        )
    ),
]

_KEY_SET_FORMAT: Final = "as a JSON Web Key Set with RSA, EC or Ed25519 keys; symmetric keys are refused"

JwksUri = Annotated[
    str,
    Field(min_length=1, max_length=512),
    ValidationRules(
        must_match(
            r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?/[!-~]*",
            "must be https://<host>/<path>, with the host in lower case and, if it is not 443, a port",
        ),
        must_not_match(r"[#\\]", "must have no fragment (#) and no backslash"),
    ),
]

TokenText = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[!-~]+$")]


class ApiKeys(ApiModel):
    """Admits callers that send one of the API keys in a Secret."""

    secret: Annotated[
        ObjectName,
        Field(
            description="Name of a Secret in the same namespace; each of its entries is one key, named after its owner: "
            f"{MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} printable ASCII characters without blanks. {_LABEL_REQUIREMENT} "
            "Added and removed keys take effect within a second."
        ),
    ]
    header: Annotated[
        CredentialHeader,
        Field(
            description="Header (gRPC metadata key) that carries the key; the gateway removes it. "
            "In authorization the key follows 'Bearer '. If the header is repeated, the first one is used."
        ),
    ] = "x-api-key"


class JwtAuth(ApiModel):
    """Admits callers that send a JWT of one issuer as authorization: Bearer <token>."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("secret", "jwksUri"),)

    issuer: Annotated[TokenText, Field(description="Required value of the token's claim iss, byte for byte.")]
    audiences: Annotated[
        tuple[TokenText, ...],
        Field(
            min_length=1,
            max_length=16,
            description="One of these must be in the token's claim aud; a valid token for another audience gets 403 "
            "(gRPC: PERMISSION_DENIED).",
        ),
        ListSet(),
    ]
    secret: Annotated[
        ObjectName | None,
        Field(
            description=f"Name of a Secret in the same namespace whose entry {JWKS_KEY} holds the issuer's public keys, "
            f"{_KEY_SET_FORMAT}. {_LABEL_REQUIREMENT} A change takes effect within a second."
        ),
    ] = None
    jwks_uri: Annotated[
        JwksUri | None,
        Field(
            description=f"https:// address at which the issuer publishes its public keys, {_KEY_SET_FORMAT}. Its host must be in the "
            "chart's auth.jwks.allowedHosts, and redirects are not followed. It is fetched once a minute; while it does not "
            "respond, the last keys stay valid."
        ),
    ] = None
    forward: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether the model gets the authorization header. By default the gateway removes it.",
        ),
    ] = False


CertificateIdentity = Annotated[
    str,
    Field(min_length=1, max_length=512),
    ValidationRules(
        must_match(
            r"[a-z][a-z0-9+.-]*://[!-~]+|[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:[.][a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*",
            "must be a URI such as spiffe://example.com/ads/ranker, or a DNS name in lower case without a wildcard",
        )
    ),
]


class MtlsAuth(ApiModel):
    """Admits callers with a client certificate of one of these identities, over the gateways' TLS port."""

    identities: Annotated[
        tuple[CertificateIdentity, ...],
        Field(
            min_length=1,
            max_length=64,
            description="Subject alternative names: the certificate must have one of them, compared letter by letter: URIs "
            "(spiffe://example.com/ads/ranker) or DNS names (ranker.ads.example.com); wildcards in a certificate do not "
            "match. The chart's gateway.tls.clientAuthority must have signed the certificate. "
            "Other identities get 403 (gRPC: PERMISSION_DENIED).",
        ),
        ListSet(),
    ]


class Auth(ApiModel):
    """How callers authenticate: exactly one method. Others get 401 (gRPC: UNAUTHENTICATED) and count against no limit."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("apiKeys", "jwt", "mtls"),)

    api_keys: Annotated[ApiKeys | None, Field(description=ApiKeys.__doc__)] = None
    jwt: Annotated[
        JwtAuth | None,
        Field(
            description=f"{JwtAuth.__doc__} It must be signed with a key of the issuer and must have an expiry (exp)."
        ),
    ] = None
    mtls: Annotated[MtlsAuth | None, Field(description=MtlsAuth.__doc__)] = None

    @property
    def secret_names(self) -> frozenset[str]:
        """Return the names of the Secrets that this spec references."""
        methods = (self.api_keys, self.jwt)
        return frozenset(
            method.secret for method in methods if method is not None and method.secret is not None
        )

    @property
    def jwks_uri(self) -> str | None:
        """Return the address of the issuer's public keys; None if they are in a Secret or no JWT is used."""
        return self.jwt.jwks_uri if self.jwt is not None else None
