"""Who may call, in Envoy's words: filters that sleep in the listener, and what wakes one of them up for a virtual host.

Each virtual host carries all that its own check needs, so a key that changes for one access changes nothing for another.
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
"""Envoy's word for a call that shows no client certificate where one is asked for; of itself it answers as to somebody else's."""


def sleeping_filters() -> list[dict[str, object]]:
    """The HTTP filters of the listener: no request passes through one whose virtual host does not wake it up.

    One that is awake and was told no more than that lets nobody pass.
    """
    return [
        {**one, "disabled": True}
        for one in (
            protos.extension(_KEYS, f"{_KEYS_V3}.ApiKeyAuth"),
            protos.extension(_TOKENS, f"{_MATCHING}.ExtensionWithMatcher", _chosen_by_host()),
            protos.extension(_NOBODY, f"{_RBAC}.RBAC", _LETS_NOBODY_IN),
        )
    ]


def for_host(guard: Guard) -> dict[str, object]:
    """What a virtual host says about the filters."""
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
    """What the hosts of an access say about the filters, so that they are awake when the access itself is looked up.

    The composite filter chooses at the first look, so that one is told all; the others read the access's own words at the second.
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
    """Two policies, so that answers and counters tell those without a certificate from those with another.

    What a certificate says counts only where Envoy has verified it.
    """
    verified = _shows({"any_validated_client_certificate": True})
    named = {"or_ids": {"ids": [_shows({"san_matcher": _san(one)}) for one in guard.identities]}}
    another = {"and_ids": {"ids": [verified, {"not_id": named}]}}
    everything = [{"any": True}]
    policies = {
        _NO_CERTIFICATE: {"permissions": everything, "principals": [{"not_id": verified}]},
        "another_client": {"permissions": everything, "principals": [another]},
    }
    return {"action": "DENY", "policies": policies}


def _shows(what: protos.Fields) -> dict[str, object]:
    return {"custom": protos.extension("envoy.rbac.principals.mtls_authenticated", _MTLS, what)}


def _san(identity: str) -> dict[str, object]:
    if "://" in identity:
        return {"san_type": "URI", "matcher": {"exact": identity}}
    # With `exact`, a wildcard in a certificate would stand for any name below it.
    return {"san_type": "DNS", "matcher": {"safe_regex": {"regex": identity.replace(".", "[.]")}}}


def _from_elsewhere(guard: AddressGuard) -> dict[str, object]:
    """The peer of the connection counts, never what a header says; a policy that denies, since the allow-list's refusals go by no policy at all."""
    ids = [{"direct_remote_ip": _range(address)} for address in guard.addresses]
    strangers = {"permissions": [{"any": True}], "principals": [{"not_id": {"or_ids": {"ids": ids}}}]}
    return {"action": "DENY", "policies": {"strangers": strangers}}


def _range(address: str) -> dict[str, object]:
    return {"address_prefix": address, "prefix_len": {"value": ip_address(address).max_prefixlen}}


def _chosen_by_host() -> dict[str, object]:
    """jwt_authn reads its issuers from the listener alone, and every change of a listener cuts connections: so each host brings the whole filter."""
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
        # Named, so that the query parameter access_token, which ends in logs, is not looked at.
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
