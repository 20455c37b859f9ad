"""What goes into a support bundle: nothing that is secret, nothing beyond its bounds, and what is missing is said."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.inference import inference_body
from tidegate.errors import PermanentError
from tidegate.reports.bundle import BundleContents, BundleReport, MissingPart, format_size
from tidegate.reports.redaction import REDACTED, Redactor

CANARY = "hunter2-canary"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZHMifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "secret",
    [
        f"password={CANARY}",
        f"Password: {CANARY}",
        f'{{"token": "{CANARY} with words", "n": 1}}',
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"aws_secret_access_key = '{CANARY}'",
        f"db_password={CANARY}",
        f'{{"accessToken":"{CANARY}"}}',
        f"fetch https://user:{CANARY}@host/models failed",
        f"GET /models?X-Amz-Signature={CANARY}&n=1",
        f"GET /models?sig={CANARY}",
        f"authorization: Bearer {CANARY}",
        f"Authorization: Basic {CANARY}",
        f"run --api-key {CANARY} --rate 3",
        f'\\"secret\\": \\"{CANARY}\\"',
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\ncut off",
    ],
)
def test_what_looks_like_a_credential_is_taken_out_of_text(secret: str) -> None:
    redaction = Redactor()
    text = redaction.redact_text(f"before {secret}")
    assert CANARY not in text
    assert text.startswith("before ")
    assert redaction.count >= 1


@pytest.mark.parametrize("token", [JWT, "AKIAIOSFODNN7EXAMPLE", f"hf_{'a' * 34}", f"ghp_{'b' * 36}"])
def test_tokens_are_known_by_their_looks(token: str) -> None:
    assert Redactor().redact_text(f"said {token} twice") == f"said {REDACTED} twice"


@pytest.mark.parametrize(
    "text",
    [
        "Secret ads/keys has no key ca.crt",
        "tokenizer loaded, 3 tokens",
        'event="model_loaded" key=ads/ctr version="3" seconds=1.3',
        "spec.model.secretName: tidegate-storage",
        "signature of the model: 3 inputs",
        "https://models.example/ctr/1/model.onnx",
    ],
)
def test_what_helps_stays(text: str) -> None:
    redaction = Redactor()
    assert redaction.redact_text(text) == text
    assert redaction.count == 0


@given(st.text())
def test_what_was_redacted_is_not_redacted_again(text: str) -> None:
    once = Redactor().redact_text(text)
    assert Redactor().redact_text(once) == once


def an_object() -> dict[str, Any]:
    template = {
        "metadata": {"annotations": {"vault/token": CANARY}},
        "spec": {
            "containers": [
                {
                    "name": "x",
                    "args": ["--token", CANARY, f"--password={CANARY}", "--rate", "3"],
                    "env": [
                        {"name": "PLAIN", "value": CANARY},
                        {"name": "EMPTY", "value": ""},
                        {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
                    ],
                }
            ]
        },
    }
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "x",
            "managedFields": [{"manager": CANARY}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"env": CANARY}),
                "tidegate.io/last-ready-template": json.dumps({"env": CANARY}),
                "tidegate.io/applied": "abc",
            },
        },
        "spec": {"template": template, "apiToken": CANARY, "password": CANARY},
    }


def test_objects_keep_their_shape_and_lose_what_may_be_secret() -> None:
    redaction = Redactor()
    body = redaction.redact_object(an_object())
    assert CANARY not in json.dumps(body)
    assert body["metadata"]["annotations"]["tidegate.io/applied"] == "abc"
    assert set(body["metadata"]["annotations"]) == set(an_object()["metadata"]["annotations"])
    [container] = body["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--token", REDACTED, f"--password={REDACTED}", "--rate", "3"]
    assert [each["name"] for each in container["env"]] == ["PLAIN", "EMPTY", "REF"]
    assert container["env"][2]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "k"}
    assert redaction.count == 8
    untouched = inference_body("ctr", model={"secretName": "keys"})
    assert Redactor().redact_object(untouched) == untouched


def test_a_secret_is_refused_whole() -> None:
    with pytest.raises(PermanentError, match="never part"):
        Redactor().redact_object({"kind": "Secret", "data": {"a": "b"}})


def test_a_bundle_has_bounds_and_says_what_they_cost() -> None:
    contents = BundleContents(max_bytes=100, max_file_bytes=60)
    contents.add_whole("a.json", b"x" * 50, "whole")
    contents.add_whole("b.json", b"x" * 61, "too large")
    contents.add_newest("c.log", b"old" + b"n" * 47 + b"new", "log", cut=7)
    contents.add_newest("d.log", b"n", "log")
    assert contents.parts.keys() == {"a.json", "c.log"}
    assert contents.parts["c.log"].endswith(b"new")
    assert contents.total_bytes == 100
    assert [(each.path, each.cut_bytes) for each in contents.files] == [("a.json", 0), ("c.log", 10)]
    assert [each.what for each in contents.missing] == ["b.json", "d.log"]


def a_report() -> BundleReport:
    contents = BundleContents(1 << 20, 1 << 20)
    contents.add_newest("logs/a.log", b"n" * 2_048, "log", cut=3_000_000)
    return BundleReport(
        file="x.tar.gz",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        version="0.1.0",
        kubernetes="v1.34.1",
        release="tidegate",
        release_namespace="tidegate-system",
        namespace=None,
        files=tuple(contents.files),
        missing=(MissingPart(what="objects/pods.json", why="403"),),
        redacted=3,
        bytes=contents.total_bytes,
    )


def test_what_is_in_it_and_what_is_not_is_printed() -> None:
    text = "\n".join(a_report().render_lines(wide=False))
    assert "x.tar.gz: 1 files, 2.0 KiB" in text
    assert "log; 2.9 MiB left out" in text
    assert "left out   objects/pods.json: 403" in text
    assert "3 values were redacted" in text
    assert list(a_report().object_names()) == []
    assert [format_size(1), format_size(1_024), format_size(3 << 20)] == ["1 B", "1.0 KiB", "3.0 MiB"]
