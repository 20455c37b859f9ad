"""What is taken out of Secrets: keys and key sets that are fit, and for the others why not, without a value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.tokens import Issuer
from tidegate.routing.credentials import (
    InvalidContent,
    SecretData,
    host_from_address,
    parse_api_keys,
    parse_key_set,
)

GOOD = b"0123456789abcdef"
ED25519 = Issuer("i", "EdDSA").public_key
RSA = Issuer("i").public_key


def test_keys_are_those_of_their_holders_without_the_end_of_their_line() -> None:
    keys, unfit = parse_api_keys(SecretData({"bob": GOOD + b"\r\n", "alice": b"f" * 1024}))
    assert [(named.holder, len(named.key)) for named in keys] == [("alice", 1024), ("bob", 16)]
    assert unfit == ()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "0 characters: 16 to 1024"),
        (GOOD[:-1], "15 characters"),
        (b"a" * 1025, "1025 characters"),
        (b"0123456789 abcdef", "blanks"),
        (b"0123456789\nabcdef", "blanks"),
        (b"0123456789\x00abcdef", "not printable"),
        ("0123456789äbcdefg".encode(), "not printable"),
        (b"\xff" * 20, "not printable"),
    ],
)
def test_what_is_no_key_is_left_out_and_named(value: bytes, why: str) -> None:
    keys, unfit = parse_api_keys(SecretData({"bad": value, "good": GOOD}))
    assert [named.holder for named in keys] == ["good"]
    assert [one.reason for one in unfit if "entry bad" in one.reason and why in one.reason]


def test_an_empty_secret_says_so_and_a_key_that_two_hold_is_there_once() -> None:
    keys, (unfit,) = parse_api_keys(SecretData({}))
    assert keys == ()
    assert "empty" in unfit.reason
    keys, none = parse_api_keys(SecretData({"b": GOOD, "a": GOOD}))
    assert ([named.holder for named in keys], none) == (["a"], ())


def jwks(*keys: Any) -> SecretData:
    return SecretData({"jwks.json": json.dumps({"keys": keys}).encode()})


def test_a_key_set_keeps_what_verifies_and_nothing_else() -> None:
    text = parse_key_set(jwks({**ED25519, "note": "x", "x5c": ["y"]}, RSA))
    assert isinstance(text, str)
    assert json.loads(text) == {"keys": [ED25519, RSA]}


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "c2VjcmV0"},
        {**RSA, "use": "enc", "alg": "RSA-OAEP"},
        {**ED25519, "crv": "X25519"},
        {**RSA, "n": None},
        {},
    ],
    ids=["kind", "use", "curve", "half a key", "nothing"],
)
def test_a_key_that_cannot_verify_takes_nothing_from_the_others(other: dict[str, Any]) -> None:
    text = parse_key_set(jwks(other, ED25519))
    assert isinstance(text, str)
    assert json.loads(text) == {"keys": [ED25519]}
    alone = parse_key_set(jwks(other, other))
    assert isinstance(alone, InvalidContent)
    assert "has no key that can be used, of 2: keys[0] " in alone.reason


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (SecretData({}), "no entry jwks.json"),
        (SecretData({"jwks.json": b"{"}), "no JSON"),
        (SecretData({"jwks.json": b"\xff"}), "no JSON"),
        (SecretData({"jwks.json": b"[" * 100_000}), "no JSON"),
        (SecretData({"jwks.json": b" " * 300_000}), "at most"),
        (SecretData({"jwks.json": b"[]"}), "no list of keys"),
        (SecretData({"jwks.json": b'{"keys": {}}'}), "no list of keys"),
        (jwks(), "no list of keys"),
        (jwks("x"), "keys[0] is no object"),
        (jwks(RSA, {"kty": "oct", "k": "c2VjcmV0"}), "keys[1] is symmetric"),
        (jwks({"kty": "DSA"}), "kty must be"),
        (jwks({}), "kty must be"),
        (jwks({**ED25519, "d": "c2VjcmV0"}), "holds a private key"),
        (jwks(RSA, {"kty": "AKP", "pub": "cHVibGlj", "priv": "c2VjcmV0"}), "keys[1] holds a private key"),
        (jwks(RSA, {**RSA, "use": "enc", "d": "c2VjcmV0"}), "keys[1] holds a private key"),
        (jwks({**ED25519, "crv": "X25519"}), "crv must be"),
        (jwks({**RSA, "n": None}), "lacks n or e"),
        (jwks({**RSA, "e": "not base64!"}), "lacks n or e"),
    ],
)
def test_a_key_set_that_is_unfit_says_why(secret: SecretData, why: str) -> None:
    said = parse_key_set(secret)
    assert isinstance(said, InvalidContent)
    assert why in said.reason


@given(st.dictionaries(st.text(min_size=1), st.binary()))
def test_no_secret_breaks_the_reader_and_none_shows_in_a_text(entries: dict[str, bytes]) -> None:
    secret = SecretData(
        {**entries, "canary": b"value-that-nobody-may-read", "jwks.json": entries.get("a", b"")}
    )
    keys, unfit = parse_api_keys(secret)
    said = f"{secret!r} {keys!r} {unfit!r} {parse_key_set(secret)!r}"
    assert "value-that-nobody-may-read" not in said


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://a.com/keys", "a.com"),
        ("https://a.com:443/keys", "a.com"),
        ("https://a.com:8443/keys", "a.com:8443"),
        ("https://a.com:4430/x/https://b.com/", "a.com:4430"),
        ("a.com:443", "a.com"),
        ("a.com:8443", "a.com:8443"),
    ],
)
def test_a_host_is_spelt_as_in_the_list(address: str, host: str) -> None:
    assert host_from_address(address) == host
