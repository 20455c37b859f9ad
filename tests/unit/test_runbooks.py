"""Each alert has its runbook, each runbook its alert; what they tell somebody to type or to look at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from tidegate.main import app
from tidegate.reference.metrics import SECTIONS
from tidegate.reference.runbooks import runbooks_page
from tidegate.telemetry import recorded
from tidegate.telemetry.alerts import ALERTS, RUNBOOKS, Alert

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in (DOCS / "runbooks").glob("*.md") if path.name != "README.md")
HOW_TO = DOCS / "how-to" / "alert-on-models-and-platform.md"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
METRICS = {metric.name for section in SECTIONS for metric in section.metrics}
RECORDED = {rule.name for group in recorded.GROUPS for rule in group.rules}
COMMANDS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # it is a group


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    assert {path.stem for path in PAGES} == {alert.slug for alert in ALERTS}


@pytest.mark.parametrize(
    "alert", {alert.name: alert for alert in ALERTS}.values(), ids=lambda alert: alert.name
)
def test_a_page_says_what_it_means_whom_it_hurts_how_to_look_and_what_to_do(alert: Alert) -> None:
    text = (DOCS / "runbooks" / f"{alert.slug}.md").read_text()
    assert text.startswith(f"# {alert.name}: ")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    assert parts[::2] == HEADINGS
    assert [
        heading for heading, body in zip(parts[::2], parts[1::2], strict=True) if len(body.split()) < 12
    ] == []
    assert "$ " in parts[5], "the diagnosis has no command"


@pytest.mark.parametrize("path", [*PAGES, HOW_TO], ids=lambda path: path.stem)
def test_what_it_tells_to_type_and_to_look_at_exists(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"(?:\$ |`)tidegate ([a-z]+)", text)) <= COMMANDS
    base = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\btidegate_[a-z0-9_]+", text)}
    assert base <= METRICS
    assert set(re.findall(r"\btidegate:[a-z0-9_:]+", text)) <= RECORDED


def test_the_index_is_what_make_generate_writes() -> None:
    assert (DOCS / "runbooks" / "README.md").read_text() == runbooks_page()


def test_slugs_are_kebab() -> None:
    assert {alert.slug for alert in ALERTS if alert.name == "TidegateNoLeader"} == {"no-leader"}
    assert {alert.slug for alert in ALERTS if alert.name == "TidegateGatewayWithoutXds"} == {
        "gateway-without-xds"
    }


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}{alert.window}")
def test_an_alert_says_how_urgent_it_is_and_where_to_read_on(alert: Alert) -> None:
    rule = alert.rule()
    labels, annotations = rule["labels"], rule["annotations"]
    assert isinstance(labels, dict)
    assert isinstance(annotations, dict)
    assert labels["severity"] in {"page", "ticket"}
    assert annotations["runbook_url"] == f"{RUNBOOKS}/{alert.slug}.md"
    assert alert.summary
    assert alert.description.endswith((".", "told."))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}{alert.window}")
def test_it_asks_for_metrics_that_there_are(alert: Alert) -> None:
    asked = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for name in re.findall(r"\btidegate_[a-z0-9_]+", alert.expression)
    }
    assert asked <= METRICS
    assert set(re.findall(r"\btidegate:[a-z0-9_:]+", alert.expression)) <= RECORDED
