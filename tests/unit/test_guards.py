"""Who is let in by client certificate: the identities where there is an authority to check them by, else nobody, and why."""

from __future__ import annotations

import pytest

from builders.model_access import a_model_access
from tidegate.api.reasons import Reason
from tidegate.routing.credentials import CallerCredentials, ClientAuthority
from tidegate.routing.guards import ClosedGuard, IdentityGuard, plan_guard
from tidegate.routing.incremental import IncrementalTranslator

KNOWN = a_model_access(auth={"mtls": {"identities": ["spiffe://example.com/b", "a.example.com"]}})


def test_identities_are_told_in_one_order_whoever_wrote_them() -> None:
    planned = plan_guard(KNOWN, CallerCredentials(client_authority=ClientAuthority.USABLE))
    assert planned.guard == IdentityGuard(("a.example.com", "spiffe://example.com/b"))
    assert planned.refusals == ()


@pytest.mark.parametrize(
    ("authority", "way_out"),
    [
        (ClientAuthority.ABSENT, "gateway.tls.clientAuthority set (helm upgrade --reset-then-reuse-values)"),
        (ClientAuthority.UNUSABLE, "tidegate xds status says what is wrong with it"),
    ],
)
def test_without_an_authority_nobody_is_let_in(authority: ClientAuthority, way_out: str) -> None:
    planned = plan_guard(KNOWN, CallerCredentials(client_authority=authority))
    assert planned.is_closed
    (refusal,) = planned.refusals
    assert (refusal.reason, refusal.part) == (Reason.CLIENT_AUTHORITY_MISSING, "spec.auth.mtls")
    assert way_out in refusal.message


def test_who_may_not_see_secrets_says_nothing_and_lets_nobody_in() -> None:
    planned = plan_guard(KNOWN, None)
    assert isinstance(planned.guard, ClosedGuard)
    assert planned.refusals == ()


def test_another_authority_looks_at_those_alone_that_need_one() -> None:
    routing = IncrementalTranslator()
    other = a_model_access("other", auth={"apiKeys": {"secret": "keys"}})
    for access in (KNOWN, other, a_model_access("open")):
        routing.put_access(access.key, access)
    routing.take_change()
    routing.put_client_authority(ClientAuthority.USABLE)
    assert [key.object for key in routing.take_change().hosts] == [KNOWN.key]
    routing.put_client_authority(ClientAuthority.USABLE)
    assert not routing.take_change().hosts
