"""The catalogue of messages: every code once, for ever the same, and a page for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from documented.pages import ROOT
from fixtures.golden import CheckGolden
from tidegate.api.crd import render_crds
from tidegate.api.messages.catalogue import PROBLEM_MESSAGES, REASON_MESSAGES, messages_by_name
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.messages.message import NO_ACTION, MessageLevel
from tidegate.api.reasons import Reason
from tidegate.telemetry.alerts import ALERTS

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "messages.txt"


def test_every_reason_and_problem_has_a_message_of_its_own() -> None:
    assert (set(REASON_MESSAGES), set(PROBLEM_MESSAGES)) == (set(Reason), set(ProblemReason))
    codes = [message.code for message in messages_by_name().values()]
    assert len(codes) == len(set(codes)) == len(REASON_MESSAGES) + len(PROBLEM_MESSAGES)
    assert all(re.fullmatch("TG[1-9][0-9]{3}", code) for code in codes)


def test_a_code_never_changes_its_meaning(check_golden: CheckGolden) -> None:
    rows = sorted(f"{message.code} {name}" for name, message in messages_by_name().items())
    check_golden(GOLDEN, "\n".join(rows) + "\n")


OBJECT_OF_A_RELEASE = re.compile(
    r"\btidegate-(gateway|xds|web|controllers|node-agent|realtime|nearline|offline|view|edit)\b"
)


def test_no_message_alert_or_runbook_names_an_object_of_one_release() -> None:
    """Objects of the chart are called after the release, which is not always `tidegate`."""
    texts = {name: f"{message.meaning} {message.what_to_do}" for name, message in messages_by_name().items()}
    texts |= {alert.name: f"{alert.summary} {alert.description}" for alert in ALERTS}
    texts |= {path.name: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert {name for name, text in texts.items() if OBJECT_OF_A_RELEASE.search(text)} == set()
    assert OBJECT_OF_A_RELEASE.search("Scale the Deployment tidegate-gateway.")
    assert not OBJECT_OF_A_RELEASE.search("Scale the Deployment <release>-gateway in tidegate-system.")


def list_immutable_fields(node: Any, path: str = "") -> Iterator[str]:
    """Yield the fields of a schema that a rule compares with their old value; fields of items have the path of their list."""
    for rule in node.get("x-kubernetes-validations", ()):
        fields = set(re.findall(r"\boldSelf\b((?:\.\w+\b(?!\())*)", rule["rule"]))
        yield from (f"{path}{field}".removeprefix(".") for field in fields)
    for name, child in node.get("properties", {}).items():
        yield from list_immutable_fields(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(child := node.get(key), dict):
            yield from list_immutable_fields(child, path)


def advises_to_change(advice: str, field: str) -> bool:
    """Return whether a sentence names the field itself, unless it is about another object with it."""
    sentences = re.split(r"(?<=[.;])\s+", advice)
    naming = [each for each in sentences if re.search(rf"(?<![\w.]){re.escape(field)}(?!\.?\w)", each)]
    return any(not each.startswith("Create another ") for each in naming)


def test_no_advice_is_to_change_a_field_that_the_api_server_keeps() -> None:
    schemas = [
        version["schema"]["openAPIV3Schema"]
        for text in render_crds().values()
        for version in yaml.safe_load(text)["spec"]["versions"]
    ]
    immutable = {field for schema in schemas for field in list_immutable_fields(schema)}
    fields = {field for field in immutable if field.startswith("spec.")}
    assert fields == {"spec.model.name", "spec.batch", "spec.slice.cpu", "spec.target"}
    wrong = [
        f"{name}: {field}"
        for name, message in messages_by_name().items()
        for field in sorted(fields)
        if advises_to_change(message.what_to_do, field)
    ]
    assert wrong == []


def with_rule(rule: str, **schema: Any) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": rule}], **schema}


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (with_rule("self.x.y == oldSelf.x.y"), ["spec.x.y"]),
        (with_rule("self == oldSelf"), ["spec"]),
        (with_rule("oldSelf.size() == self.size()"), ["spec"]),
        ({"properties": {"x": with_rule("self == oldSelf")}}, ["spec.x"]),
        ({"properties": {"x": {"items": with_rule("self.uri == oldSelf.uri")}}}, ["spec.x.uri"]),
        ({"properties": {"x": {"additionalProperties": with_rule("self == oldSelf")}}}, ["spec.x"]),
        (with_rule("self.x > 0", additionalProperties=True), []),
        (with_rule("self.boldSelf.x == 1"), []),
    ],
)
def test_an_immutable_field_is_found_wherever_its_rule_is(schema: Any, fields: list[str]) -> None:
    assert list(list_immutable_fields({"properties": {"spec": schema}})) == fields


def test_advice_to_change_a_field_is_told_from_advice_to_create_an_object_with_it() -> None:
    assert advises_to_change("Set the same spec.model.name on all of them.", "spec.model.name")
    assert advises_to_change("Read the message. Remove spec.batch.", "spec.batch")
    assert not advises_to_change("Change spec.batch.run to start a new run.", "spec.batch")
    assert not advises_to_change(
        "Create another Inference with the spec.model.name of it.", "spec.model.name"
    )


def test_a_message_says_what_to_do_unless_nothing_is_wrong() -> None:
    for name, message in messages_by_name().items():
        assert message.meaning.endswith("."), name
        assert message.what_to_do.endswith("."), name
        assert message.what_to_do != NO_ACTION or message.level is MessageLevel.INFO, name
