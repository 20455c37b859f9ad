"""The authentication of callers by disabled filters in the listener, which virtual hosts enable.

Each virtual host contains everything that its own check needs, so a changed key of one access affects no other.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from tidegate.routing import protos
from tidegate.routing.guards import AddressGuard, Guard, IdentityGuard, KeyGuard, TokenGuard

_API_KEY_FILTER: Final = "envoy.filters.http.api_key_auth"
_JWT_FILTER: Final = "tidegate.tokens"
_DENY_FILTER: Final = "tidegate.nobody"

_KEYS_V3: Final = "envoy.extensions.filters.http.api_key_auth.v3"
_JWT_AUTHN: Final = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
_MATCHING: Final = "envoy.extensions.common.matching.v3"
_COMPOSITE: Final = "envoy.extensions.filters.http.composite.v3"
_FILTER_CONFIG: Final = "envoy.config.route.v3.FilterConfig"
_RBAC: Final = "envoy.extensions.filters.http.rbac.v3"

_ANY_REQUEST: Final[protos.Fields] = {"permissions": [{"any": True}], "principals": [{"any": True}]}
_DENY_ALL: Final[protos.Fields] = {
    "rules": {"action": "DENY", "policies": {"everybody": _ANY_REQUEST}},
}

_PROVIDER: Final = "issuer"

_MTLS: Final = "envoy.extensions.rbac.principals.mtls_authenticated.v3.Config"
_NO_CERTIFICATE: Final = "no_client_certificate"

NO_CERTIFICATE_DETAILS: Final = f"rbac_access_denied_matched_policy[{_NO_CERTIFICATE}]"
"""The response code details for a call without the client certificate that its access requires; Envoy answers 403 to it."""


def disabled_filters() -> list[dict[str, object]]:
    """Return the HTTP filters of the listener, all disabled.

    Only virtual hosts that enable a filter send requests through it. A filter that is enabled without configuration admits no caller.
    """
    return [
        {**http_filter, "disabled": True}
        for http_filter in (
            protos.extension_config(_API_KEY_FILTER, f"{_KEYS_V3}.ApiKeyAuth"),
            protos.extension_config(_JWT_FILTER, f"{_MATCHING}.ExtensionWithMatcher", _per_host_filter()),
            protos.extension_config(_DENY_FILTER, f"{_RBAC}.RBAC", _DENY_ALL),
        )
    ]


def configure_host(guard: Guard) -> dict[str, object]:
    """Return the configuration of the filters for a virtual host."""
    if isinstance(guard, KeyGuard):
        return {_API_KEY_FILTER: protos.pack_any(f"{_KEYS_V3}.ApiKeyAuthPerRoute", _api_key_config(guard))}
    if isinstance(guard, TokenGuard):
        return {_JWT_FILTER: protos.pack_any(f"{_MATCHING}.ExtensionWithMatcherPerRoute", _jwt_config(guard))}
    if isinstance(guard, AddressGuard):
        return _rbac_config(_deny_other_addresses(guard))
    if isinstance(guard, IdentityGuard):
        return _rbac_config(_deny_other_identities(guard))
    return {_DENY_FILTER: protos.pack_any(_FILTER_CONFIG, {"config": {}})}


def configure_alias(guard: Guard) -> dict[str, object]:
    """Return the configuration of the filters for the hosts of an access.

    It enables them early, so that they are active once Envoy has selected the access's scope.
    The composite filter reads its configuration at the first route selection, so it needs all of it here.
    The other filters read the access's own configuration at the second.
    """
    if isinstance(guard, TokenGuard):
        return configure_host(guard)
    return {
        _API_KEY_FILTER if isinstance(guard, KeyGuard) else _DENY_FILTER: protos.pack_any(
            _FILTER_CONFIG, {"config": {}}
        )
    }


def _api_key_config(guard: KeyGuard) -> dict[str, object]:
    return {
        "credentials": [{"key": named.key, "client": named.holder} for named in guard.keys],
        "key_sources": [{"header": guard.header}],
        "forwarding": {"hide_credentials": True},
    }


def _rbac_config(rules: dict[str, object]) -> dict[str, object]:
    return {_DENY_FILTER: protos.pack_any(f"{_RBAC}.RBACPerRoute", {"rbac": {"rules": rules}})}


def _deny_other_identities(guard: IdentityGuard) -> dict[str, object]:
    """Return rules with two policies: statistics distinguish callers without a certificate from those with another.

    The names in a certificate count only if Envoy has verified it.
    """
    verified = _certificate_principal({"any_validated_client_certificate": True})
    allowed = {
        "or_ids": {
            "ids": [
                _certificate_principal({"san_matcher": _match_san(identity)}) for identity in guard.identities
            ]
        }
    }
    other_client = {"and_ids": {"ids": [verified, {"not_id": allowed}]}}
    any_permission = [{"any": True}]
    policies = {
        _NO_CERTIFICATE: {"permissions": any_permission, "principals": [{"not_id": verified}]},
        "another_client": {"permissions": any_permission, "principals": [other_client]},
    }
    return {"action": "DENY", "policies": policies}


def _certificate_principal(fields: protos.Fields) -> dict[str, object]:
    return {"custom": protos.extension_config("envoy.rbac.principals.mtls_authenticated", _MTLS, fields)}


def _match_san(identity: str) -> dict[str, object]:
    if "://" in identity:
        return {"san_type": "URI", "matcher": {"exact": identity}}
    # With `exact`, a wildcard in a certificate would match any name below it.
    return {"san_type": "DNS", "matcher": {"safe_regex": {"regex": identity.replace(".", "[.]")}}}


def _deny_other_addresses(guard: AddressGuard) -> dict[str, object]:
    """Return rules that deny all other addresses, by the peer of the connection and not by headers.

    The policy denies, since a request that the allow-list rejects has matched no policy at all.
    """
    ids = [{"direct_remote_ip": _address_range(address)} for address in guard.addresses]
    strangers = {"permissions": [{"any": True}], "principals": [{"not_id": {"or_ids": {"ids": ids}}}]}
    return {"action": "DENY", "policies": {"strangers": strangers}}


def _address_range(address: str) -> dict[str, object]:
    return {"address_prefix": address, "prefix_len": {"value": ip_address(address).max_prefixlen}}


def _per_host_filter() -> dict[str, object]:
    """Return a composite filter for which each virtual host brings the whole JWT filter.

    jwt_authn reads its issuers only from the listener, and every change of a listener closes connections.
    """
    composite = protos.extension_config("composite", f"{_COMPOSITE}.Composite")
    return {
        "extension_config": composite,
        "xds_matcher": _match_always(protos.extension_config(_DENY_FILTER, f"{_RBAC}.RBAC", _DENY_ALL)),
    }


def _jwt_config(guard: TokenGuard) -> dict[str, object]:
    provider: dict[str, object] = {
        "issuer": guard.issuer,
        "audiences": list(guard.audiences),
        "require_expiration": True,
        "local_jwks": {"inline_string": guard.key_set},
        # Without this, Envoy would also accept the query parameter access_token, which ends up in logs.
        "from_headers": [{"name": "authorization", "value_prefix": "Bearer "}],
        "forward": guard.forward,
    }
    check = {
        "providers": {_PROVIDER: provider},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": _PROVIDER}}],
    }
    return {
        "xds_matcher": _match_always(
            protos.extension_config("envoy.filters.http.jwt_authn", _JWT_AUTHN, check)
        )
    }


def _match_always(run: dict[str, object]) -> dict[str, object]:
    action = protos.extension_config("run", f"{_COMPOSITE}.ExecuteFilterAction", {"typed_config": run})
    return {"on_no_match": {"action": action}}
