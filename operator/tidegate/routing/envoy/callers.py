"""The authentication of callers by disabled filters in the listener, which virtual hosts enable.

Each virtual host contains everything that its own check needs, so a changed key of one access affects no other.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from tidegate.routing import protos
from tidegate.routing.guards import AddressGuard, Guard, IdentityGuard, KeyGuard, TokenGuard

_KEYS: Final = "envoy.filters.http.api_key_auth"
_TOKENS: Final = "tidegate.tokens"
_NOBODY: Final = "tidegate.nobody"

_KEYS_V3: Final = "envoy.extensions.filters.http.api_key_auth.v3"
_JWT_AUTHN: Final = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
_MATCHING: Final = "envoy.extensions.common.matching.v3"
_COMPOSITE: Final = "envoy.extensions.filters.http.composite.v3"
_FILTER_CONFIG: Final = "envoy.config.route.v3.FilterConfig"
_RBAC: Final = "envoy.extensions.filters.http.rbac.v3"

_EVERYBODY: Final[protos.Fields] = {"permissions": [{"any": True}], "principals": [{"any": True}]}
_LETS_NOBODY_IN: Final[protos.Fields] = {
    "rules": {"action": "DENY", "policies": {"everybody": _EVERYBODY}},
}

_PROVIDER: Final = "issuer"

_MTLS: Final = "envoy.extensions.rbac.principals.mtls_authenticated.v3.Config"
_NO_CERTIFICATE: Final = "no_client_certificate"

WITHOUT_CERTIFICATE: Final = f"rbac_access_denied_matched_policy[{_NO_CERTIFICATE}]"
"""The response code details for a call without the client certificate that its access requires; Envoy answers 403 to it."""


def sleeping_filters() -> list[dict[str, object]]:
    """Return the HTTP filters of the listener, all disabled.

    Only virtual hosts that enable one send requests through it. One that is enabled without configuration admits no caller.
    """
    return [
        {**http_filter, "disabled": True}
        for http_filter in (
            protos.extension(_KEYS, f"{_KEYS_V3}.ApiKeyAuth"),
            protos.extension(_TOKENS, f"{_MATCHING}.ExtensionWithMatcher", _chosen_by_host()),
            protos.extension(_NOBODY, f"{_RBAC}.RBAC", _LETS_NOBODY_IN),
        )
    ]


def for_host(guard: Guard) -> dict[str, object]:
    """Return the configuration of the filters for a virtual host."""
    if isinstance(guard, KeyGuard):
        return {_KEYS: protos.packed(f"{_KEYS_V3}.ApiKeyAuthPerRoute", _keys(guard))}
    if isinstance(guard, TokenGuard):
        return {_TOKENS: protos.packed(f"{_MATCHING}.ExtensionWithMatcherPerRoute", _tokens(guard))}
    if isinstance(guard, AddressGuard):
        return _refusing(_from_elsewhere(guard))
    if isinstance(guard, IdentityGuard):
        return _refusing(_somebody_else(guard))
    return {_NOBODY: protos.packed(_FILTER_CONFIG, {"config": {}})}


def for_alias(guard: Guard) -> dict[str, object]:
    """Return the configuration of the filters for the hosts of an access.

    It enables them early, so that they are active once Envoy has selected the access's scope.
    The composite filter reads its configuration at the first route selection, so it needs all of it here.
    The other filters read the access's own configuration at the second.
    """
    if isinstance(guard, TokenGuard):
        return for_host(guard)
    return {_KEYS if isinstance(guard, KeyGuard) else _NOBODY: protos.packed(_FILTER_CONFIG, {"config": {}})}


def _keys(guard: KeyGuard) -> dict[str, object]:
    return {
        "credentials": [{"key": named.key, "client": named.holder} for named in guard.keys],
        "key_sources": [{"header": guard.header}],
        "forwarding": {"hide_credentials": True},
    }


def _refusing(rules: dict[str, object]) -> dict[str, object]:
    return {_NOBODY: protos.packed(f"{_RBAC}.RBACPerRoute", {"rbac": {"rules": rules}})}


def _somebody_else(guard: IdentityGuard) -> dict[str, object]:
    """Return rules with two policies: statistics distinguish callers without a certificate from those with another.

    The names in a certificate count only if Envoy has verified it.
    """
    verified = _shows({"any_validated_client_certificate": True})
    allowed = {"or_ids": {"ids": [_shows({"san_matcher": _san(identity)}) for identity in guard.identities]}}
    other_client = {"and_ids": {"ids": [verified, {"not_id": allowed}]}}
    any_permission = [{"any": True}]
    policies = {
        _NO_CERTIFICATE: {"permissions": any_permission, "principals": [{"not_id": verified}]},
        "another_client": {"permissions": any_permission, "principals": [other_client]},
    }
    return {"action": "DENY", "policies": policies}


def _shows(fields: protos.Fields) -> dict[str, object]:
    return {"custom": protos.extension("envoy.rbac.principals.mtls_authenticated", _MTLS, fields)}


def _san(identity: str) -> dict[str, object]:
    if "://" in identity:
        return {"san_type": "URI", "matcher": {"exact": identity}}
    # With `exact`, a wildcard in a certificate would match any name below it.
    return {"san_type": "DNS", "matcher": {"safe_regex": {"regex": identity.replace(".", "[.]")}}}


def _from_elsewhere(guard: AddressGuard) -> dict[str, object]:
    """Return rules that deny all other addresses, by the peer of the connection and not by headers.

    The policy denies, since a request that the allow-list rejects has matched no policy at all.
    """
    ids = [{"direct_remote_ip": _range(address)} for address in guard.addresses]
    strangers = {"permissions": [{"any": True}], "principals": [{"not_id": {"or_ids": {"ids": ids}}}]}
    return {"action": "DENY", "policies": {"strangers": strangers}}


def _range(address: str) -> dict[str, object]:
    return {"address_prefix": address, "prefix_len": {"value": ip_address(address).max_prefixlen}}


def _chosen_by_host() -> dict[str, object]:
    """Return a composite filter for which each virtual host brings the whole JWT filter.

    jwt_authn reads its issuers only from the listener, and every change of a listener closes connections.
    """
    composite = protos.extension("composite", f"{_COMPOSITE}.Composite")
    return {
        "extension_config": composite,
        "xds_matcher": _always(protos.extension(_NOBODY, f"{_RBAC}.RBAC", _LETS_NOBODY_IN)),
    }


def _tokens(guard: TokenGuard) -> dict[str, object]:
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
    return {"xds_matcher": _always(protos.extension("envoy.filters.http.jwt_authn", _JWT_AUTHN, check))}


def _always(run: dict[str, object]) -> dict[str, object]:
    action = protos.extension("run", f"{_COMPOSITE}.ExecuteFilterAction", {"typed_config": run})
    return {"on_no_match": {"action": action}}
