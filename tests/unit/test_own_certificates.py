"""What becomes of the release's own certificates, look by look: no two sides ever disagree, wherever a step breaks off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.certificates import Authority
from stages.examples import examples
from tidegate.planning.certificates import (
    FAMILIES,
    TRUST_OVERLAP,
    CertificatePair,
    CertificatePart,
    IssuedPairs,
    SecretContent,
    plan_rotation,
)
from tidegate.runtime.certificate_issuer import VALIDITY, CertificateIssuer

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SPREAD = timedelta(minutes=10)
SIDES = (CertificatePart.XDS, CertificatePart.GATEWAY)
ISSUER = CertificateIssuer("tidegate", "tidegate-system")


def step(
    held: Mapping[CertificatePart, SecretContent], now: datetime
) -> Mapping[CertificatePart, SecretContent]:
    def issue(parts: Sequence[CertificatePart]) -> IssuedPairs:
        return ISSUER.issue_certificates(parts, now)

    return plan_rotation(held, now, SPREAD, issue)


def after(
    held: Mapping[CertificatePart, SecretContent], now: datetime
) -> dict[CertificatePart, SecretContent]:
    """All of it once the step is taken."""
    return {**held, **step(held, now)}


def made(now: datetime = NOW) -> dict[CertificatePart, SecretContent]:
    return after(dict.fromkeys(SIDES, SecretContent()), now)


def asked(held: Mapping[CertificatePart, SecretContent]) -> dict[CertificatePart, SecretContent]:
    return {
        part: SecretContent(
            each.trusted, each.current, each.following, each.since, requested=part is CertificatePart.GATEWAY
        )
        for part, each in held.items()
    }


def trusts(one: SecretContent, pair: CertificatePair | None) -> bool:
    assert pair is not None
    certificate = x509.load_pem_x509_certificate(pair.chain)
    for authority in one.trusted:
        try:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except Exception:  # noqa: BLE001 - whatever it says, it is not that one
            continue
        return True
    return False


def agree(held: Mapping[CertificatePart, SecretContent]) -> bool:
    """Whether each trusts what each of them shows."""
    return all(trusts(one, other.current) for one in held.values() for other in held.values())


def test_the_first_look_fills_all_of_a_family_with_one_authority() -> None:
    held = made()
    assert agree(held)
    assert held[CertificatePart.XDS].trusted == held[CertificatePart.GATEWAY].trusted
    assert len(held[CertificatePart.XDS].trusted) == 1
    assert step(held, NOW + timedelta(minutes=1)) == {}


@pytest.mark.parametrize(
    ("part", "names", "common_name"),
    [
        (CertificatePart.CONTROLLERS, ["tidegate-controllers"], "tidegate-controllers"),
        (
            CertificatePart.XDS,
            ["tidegate-xds", "tidegate-xds.tidegate-system", "tidegate-xds.tidegate-system.svc"],
            "tidegate-xds",
        ),
        (CertificatePart.GATEWAY, ["*.tidegate-system"], "tidegate-gateway"),
    ],
)
def test_a_certificate_has_the_names_by_which_it_is_known(
    part: CertificatePart, names: list[str], common_name: str
) -> None:
    issued = ISSUER.issue_certificates([part], NOW)
    certificate = x509.load_pem_x509_certificate(issued.pairs[part].chain)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(issued.authority))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == names
    assert certificate.subject.rfc4514_string() == f"CN={common_name}"
    assert certificate.not_valid_after_utc == NOW + VALIDITY


def test_the_authority_of_the_controllers_signs_no_gateway() -> None:
    assert sorted(len(family) for family in FAMILIES) == [1, 2]
    assert {part for family in FAMILIES for part in family} == {*CertificatePart}


def test_a_rotation_trusts_first_shows_then_and_forgets_last() -> None:
    old = made()
    due = NOW + VALIDITY / 2
    assert step(old, due - timedelta(minutes=6)) == {}

    prepared = after(old, due)
    assert {part: each.current for part, each in prepared.items()} == {
        part: each.current for part, each in old.items()
    }
    assert all(len(each.trusted) == 2 for each in prepared.values())
    assert step(prepared, due + SPREAD - timedelta(seconds=1)) == {}

    switched = after(prepared, due + SPREAD)
    assert all(switched[part].current == prepared[part].following for part in SIDES)
    assert all(each.following is None and len(each.trusted) == 2 for each in switched.values())
    assert step(switched, due + SPREAD + TRUST_OVERLAP - timedelta(seconds=1)) == {}

    done = after(switched, due + SPREAD + TRUST_OVERLAP)
    assert all(len(each.trusted) == 1 for each in done.values())
    assert agree(done)
    # Whoever still reads what was there one step before gets along with whoever reads what is there now.
    for before, now in ((old, prepared), (prepared, switched), (switched, done)):
        for one, other in permutations(SIDES):
            assert agree({one: before[one], other: now[other]})


def test_whoever_asks_gets_a_new_one_before_its_time() -> None:
    prepared = step(asked(made()), NOW + timedelta(hours=1))
    assert set(prepared) == {*SIDES}
    assert all(each.following is not None for each in prepared.values())


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_wherever_steps_break_off_the_end_is_whole_and_nobody_disagrees_on_the_way(
    data: st.DataObject,
) -> None:
    """A process that ends between two Secrets loses the pairs that it had not written: it had them in memory alone."""
    held, now = made(), NOW + VALIDITY / 2
    first = {part: each.current for part, each in held.items()}
    for _ in range(12):
        written = step(held, now)
        kept = data.draw(st.sets(st.sampled_from(sorted(written)))) if written else set[CertificatePart]()
        seen, held = held, {**held, **{part: written[part] for part in kept}}
        assert agree(held)
        for one, other in permutations(SIDES):
            assert agree({one: seen[one], other: held[other]})
        now += data.draw(st.sampled_from([timedelta(seconds=15), SPREAD]))
    for _ in range(4):
        held = after(held, now)
        assert agree(held)
        now += TRUST_OVERLAP
    assert all(held[part].current != first[part] for part in SIDES)
    assert all(each.following is None and len(each.trusted) == 1 for each in held.values())


def test_a_secret_that_was_lost_is_filled_again_and_the_other_side_comes_along() -> None:
    old = made()
    held = after({**old, CertificatePart.GATEWAY: SecretContent()}, NOW + timedelta(hours=1))
    assert trusts(held[CertificatePart.XDS], held[CertificatePart.GATEWAY].current)
    assert trusts(held[CertificatePart.GATEWAY], held[CertificatePart.XDS].current)
    assert held[CertificatePart.XDS].current == old[CertificatePart.XDS].current
    held = after(held, NOW + timedelta(hours=1) + SPREAD)
    assert agree(held)
    assert all(each.following is None for each in held.values())


def test_a_secret_put_back_from_elsewhere_is_trusted_at_once_and_both_get_a_new_one() -> None:
    held = {**made(), CertificatePart.GATEWAY: made(NOW + timedelta(hours=1))[CertificatePart.GATEWAY]}
    assert not agree(held)
    now = NOW + timedelta(days=2)
    held = after(held, now)
    assert agree(held)
    for each in range(1, 3):
        held = after(held, now + each * TRUST_OVERLAP)
    assert agree(held)
    assert all(len(each.trusted) == 1 for each in held.values())


def test_what_has_ended_is_not_shown_for_another_while() -> None:
    old, late = made(), NOW + VALIDITY + timedelta(hours=1)
    new = after(old, late)
    assert agree(new)
    assert all(each.current != old[part].current and each.following is None for part, each in new.items())
    # Nor what was put aside and has ended there.
    aside = after(old, NOW + VALIDITY / 2)
    much_later = NOW + 2 * VALIDITY
    assert all(
        x509.load_pem_x509_certificate(pair.chain).not_valid_after_utc > much_later
        for each in after(aside, much_later).values()
        if (pair := each.current)
    )


def test_what_a_clock_that_was_ahead_has_made_is_made_again() -> None:
    ahead = made(NOW + timedelta(days=400))
    new = after(ahead, NOW)
    assert all(each.current != ahead[part].current for part, each in new.items())
    assert all(each.since == NOW for each in new.values())


def test_a_secret_says_the_same_when_it_is_read_again() -> None:
    prepared = after(made(), NOW + VALIDITY / 2)
    for each in prepared.values():
        assert SecretContent.from_data(each.to_data()) == each
    assert SecretContent().to_data() == {}


@pytest.mark.parametrize("broken", ["ca.crt", "tls.crt", "tls.key"])
def test_a_secret_that_cannot_be_read_counts_as_empty(broken: str) -> None:
    data = made()[CertificatePart.XDS].to_data()
    assert (
        SecretContent.from_data({**data, broken: b"" if broken == "tls.key" else b"no certificate"})
        == SecretContent()
    )


def test_a_key_that_is_anothers_counts_as_none() -> None:
    one, other = (each.to_data() for each in made().values())
    assert SecretContent.from_data({**one, "tls.key": other["tls.key"]}) == SecretContent()


def test_a_time_without_a_zone_counts_as_none() -> None:
    data = made()[CertificatePart.XDS].to_data()
    assert SecretContent.from_data({**data, "since": b"2026-11-23T00:00:00"}).since is None


def test_no_text_shows_a_key() -> None:
    (each, _) = made().values()
    assert "PRIVATE KEY" not in repr(each)


def test_what_helm_made_for_ten_years_is_left_alone_until_half_of_that_is_over(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    authority = Authority.make(tmp_path_factory.mktemp("helm"), "tidegate xds")
    begin = datetime.now(UTC)
    pairs = [authority.pair("tidegate-xds", lasting=timedelta(days=3650)) for _ in SIDES]
    ours = authority.certificate.read_bytes()
    held = {
        part: SecretContent.from_data({"ca.crt": ours, "tls.crt": pair.chain, "tls.key": pair.key})
        for part, pair in zip(SIDES, pairs, strict=True)
    }
    assert step(held, begin + timedelta(days=1800)) == {}
    prepared = after(held, begin + timedelta(days=1826))
    assert all(each.following is not None and ours in each.trusted for each in prepared.values())
