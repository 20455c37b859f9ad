"""The documentation says what is true: links, commands, examples, runbooks and reference pages match the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import pytest

from builders.process_registries import SHOWN
from documented.kubectl import asked
from documented.manifests import OURS, ours, parts, unclaimed
from documented.pages import ROOT, Block, blocks, blocks_of, inline, name, pages, why_not_typed
from documented.programs import PYTHON, TIDEGATE, of_make, of_python, of_tidegate
from documented.shell import Command, aliases, commands, lines, misspelt
from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.structural import build_structural_schema
from tidegate.generate import list_process_settings
from tidegate.reference.kinds import render_kind_pages
from tidegate.reference.metrics import METRIC_SECTIONS
from tidegate.reference.settings import render_settings_page
from tidegate.settings import ControlPlaneSettings
from tidegate.telemetry import recording_rules as recorded
from tidegate.telemetry.alert import RUNBOOK_BASE_URL
from tidegate.telemetry.alerts import ALERTS
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract.metrics import Metric

LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
SHOWN_BY = re.compile(r"\[`(test_\w+)`\]\(([^)]+\.py)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DOCS = ROOT / "docs"
FOREIGN = "no test checks"
SHELLS = ("console", "shell", "bash", "sh")
NOT_OURS = frozenset({"kubectl", "helm", "alias", "cd", "export", "ls", "base64", "grep", "head", "sed"})
"""Checked by kubectl and Helm themselves (tests/integration/test_documented_kubernetes.py), or plain shell."""
EXECUTED = (
    "docs/tutorial/",
    "docs/how-to/any-cluster.md:",
    "docs/how-to/bring-your-model.md:",
    "docs/how-to/call-a-model.md:",
)
"""The pages that tests type as a whole, foreign programs included: tests/e2e/test_tutorial.py,
tests/e2e/test_more_tutorials.py, tests/e2e/test_any_cluster.py,
tests/component/test_call_page.py, tests/component/test_bring_page.py.
"""
RUNBOOK_HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
METRICS = [metric for section in METRIC_SECTIONS for metric in section.metrics]
RECORDED = {rule.name for group in recorded.GROUPS for rule in group.rules}
FOREIGN_UNITS = re.compile(
    r"_(ms|us|ns|millis\w*|micros\w*|minutes?|hours?|days?|kb|mb|gb|kib|mib|gib|percent\w*|pct)(_|$)"
)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(path.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_headings_and_tests() -> None:
    broken = []
    for path in pages():
        text = path.read_text()
        for target, anchor in LINK.findall(text):
            place = (path.parent / target).resolve() if target else path
            if not place.exists() or (anchor and place.suffix == ".md" and anchor[1:] not in anchors(place)):
                broken.append(f"{name(path)}: {target}{anchor}")
        for test, file in SHOWN_BY.findall(text):
            if f"def {test}(" not in (path.parent / file).read_text():
                broken.append(f"{name(path)}: {file} has no {test}")
    assert broken == []


def problem_of(command: Command) -> str:
    """Return what the program would object to."""
    program, *rest = command.words
    words = tuple(rest)
    if program == "kubectl" and words[:1] == ("tidegate",):
        program, words = words[0], words[1:]
    if program in TIDEGATE:
        return of_tidegate(words)
    if program == "make":
        return of_make(words)
    if program in PYTHON:
        return of_python(words)
    return "" if program in NOT_OURS else f"{FOREIGN} {program}: say why above the block, <!-- not run: … -->"


def missing(command: Command, saved: Set[str]) -> str:
    """Name the files that kubectl is given and that neither the repository has nor the page has saved."""
    kubectl = asked(command)
    named = kubectl.files() if kubectl else ()
    lacking = [file for file in named if file not in saved and not (ROOT / file).exists()]
    return f"there is no {', '.join(lacking)}: have the page save it, <!-- file: … -->" if lacking else ""


def problems(path: Path) -> list[str]:
    """Return what is wrong with the commands of a page."""
    all_blocks = list(blocks_of(path.read_text(), name(path)))
    typed = [block for block in all_blocks if block.language in SHELLS]
    names = {alias: meant for block in typed for alias, meant in aliases(block).items()}
    saved = {block.file for block in all_blocks}
    return [problem for block in typed for problem in _problems_of(block, names, saved)]


def _problems_of(block: Block, names: Mapping[str, tuple[str, ...]], saved: Set[str]) -> list[str]:
    """Check our own programs everywhere; others may stand where a block says why it is not run."""
    if unreadable := misspelt(block):
        return [] if block.not_run else [f"{block.where}: {unreadable}"]
    checked = [
        (command, problem_of(command) or missing(command, saved))
        for command in commands(block, names)
        if not saved & {*command.words[1:2]}
    ]
    foreign = [command for command, problem in checked if problem.startswith(FOREIGN)]
    if block.not_run and not foreign:
        return [f"{block.where}: all of it is checked: remove the reason why it is not run"]
    return [
        f"{command}: {problem}"
        for command, problem in checked
        if problem and not ((block.not_run or block.where.startswith(EXECUTED)) and command in foreign)
    ]


def test_commands_are_understood() -> None:
    assert [problem for path in pages() for problem in problems(path)] == []


def untyped(text: str, page: str) -> str:
    """Return what a how-to lacks: a test that types its commands, or the reason why none does."""
    typed = [block for block in blocks_of(text, page) if block.language in SHELLS]
    unmarked = [block.where for block in typed if not block.not_run and not block.where.startswith(EXECUTED)]
    reason = why_not_typed(text)
    if unmarked and not reason:
        return f"{unmarked[0]}: no test types this: say why below the title, <!-- checked, not run: … -->"
    if reason and not unmarked:
        return f"{page}: a test types it, or each block has its reason: remove <!-- checked, not run: … -->"
    missing = [file for file in re.findall(r"tests/\S+?\.py", reason) if not (ROOT / file).exists()]
    return f"{page}: there is no {missing[0]}" if missing else ""


def test_commands_of_how_tos_are_typed_by_a_test_or_the_page_has_the_reason() -> None:
    how_tos = sorted((DOCS / "how-to").glob("*.md"))
    assert [problem for path in how_tos if (problem := untyped(path.read_text(), name(path)))] == []


def test_a_page_without_a_test_and_without_a_reason_is_found() -> None:
    block, reason = "```console\n$ kubectl get pods\n```\n", "<!-- checked, not run: {} -->\n\n"
    own, executed = "docs/how-to/own.md", "docs/how-to/call-a-model.md"
    assert untyped(block, own).startswith(f"{own}:1: no test types this")
    assert untyped(reason.format("the pods are yours") + block, own) == ""
    assert untyped(f"<!-- not run: it asks you -->\n{block}", own) == ""
    assert untyped(block, executed) == ""
    assert untyped(reason.format("the pods are yours") + block, executed).endswith("not run: … -->")
    assert untyped(reason.format("see tests/unit/test_none.py") + block, own).endswith("test_none.py")


def test_commands_within_sentences_are_understood() -> None:
    mentioned = [
        (where, tuple(code.split()))
        for where, code in inline(but=frozenset({"docs/reference/commands.md"}))
        if code.startswith(("tidegate ", "kubectl tidegate ", "make ")) and "|" not in code
    ]
    assert len(mentioned) > 50
    wrong = [
        f"{where}: {' '.join(words)}: {problem}"
        for where, words in mentioned
        if (problem := _problem_within_a_sentence(words))
    ]
    assert wrong == []


def _problem_within_a_sentence(words: tuple[str, ...]) -> str:
    program, *rest = words
    if program == "kubectl":
        rest = rest[1:]
    if program == "make":
        return of_make(tuple(rest)) if '"' not in " ".join(rest) else of_make(tuple(rest[:1]))
    # What is left out, as in `tidegate local …`.
    rest = [word for word in rest if word != "…"]
    if rest[-1:] and rest[-1].startswith("--"):
        # An option that is named without its value.
        return min(of_tidegate((*rest, "1"), whole=False), of_tidegate(tuple(rest), whole=False), key=len)
    return of_tidegate(tuple(rest), whole=False)


def test_json_and_python_parse_and_every_yaml_says_what_it_is() -> None:
    for block in blocks("json"):
        assert block.not_run or json.loads(block.text), block.where
    for block in blocks("python"):
        compile(block.text, block.where, "exec")
    assert unclaimed() == []


def test_examples_are_valid() -> None:
    for where, body in ours():
        assert OURS[body["kind"]].parse(body).metadata.name, where
    assert [problem for part in parts() if (problem := part.problem())] == []


def test_every_decision_is_listed_and_every_fragment_named_after_its_kind() -> None:
    listed = (DOCS / "adr" / "README.md").read_text()
    assert [path.name for path in (DOCS / "adr").glob("0*.md") if f"({path.name})" not in listed] == []
    kinds = {"added", "changed", "fixed", "removed", "security"}
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]
    assert [path.name for path in fragments if path.name.split(".")[1] not in kinds] == []


def unknown_metrics(text: str) -> set[str]:
    """Return the metrics and recorded series that a text names and that do not exist."""
    named = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\btidegate_[a-z0-9_]+", text)}
    series = set(re.findall(r"\btidegate:[a-z0-9_:]+", text))
    return (named - {metric.name for metric in METRICS}) | (series - RECORDED)


def test_every_alert_has_a_runbook_with_all_its_parts() -> None:
    runbooks = {path.stem: path.read_text() for path in (DOCS / "runbooks").glob("*.md")}
    del runbooks["README"]
    assert {*runbooks} == {alert.runbook_name for alert in ALERTS}
    for slug, text in runbooks.items():
        title, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
        assert title.startswith(
            tuple(f"# {alert.name}: " for alert in ALERTS if alert.runbook_name == slug)
        ), slug
        assert parts[::2] == RUNBOOK_HEADINGS, slug
        assert "$ " in parts[5], f"the diagnosis of {slug} has no command"
    how_to = (DOCS / "how-to" / "alert-on-models-and-platform.md").read_text()
    assert unknown_metrics("\n".join([how_to, *runbooks.values()])) == set()


def test_every_alert_has_its_severity_its_runbook_and_known_metrics() -> None:
    for alert in ALERTS:
        rule: Any = alert.to_rule()
        assert rule["labels"]["severity"] in {"page", "ticket"}, alert.name
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_BASE_URL}/{alert.runbook_name}.md"
        assert alert.summary, alert.name
        assert alert.description.endswith((".", "told.")), alert.name
        assert unknown_metrics(alert.expression) == set(), alert.name


def test_pages_of_kinds_have_every_field_once() -> None:
    def fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
        for field, child in schema.get("properties", {}).items():
            yield f"{path}.{field}"
            yield from fields(child, f"{path}.{field}")
            yield from fields(child.get("items", {}), f"{path}.{field}[]")

    written = render_kind_pages()
    for definition in KIND_DEFINITIONS:
        schema = build_structural_schema(definition.resource)["properties"]
        page = written[f"{definition.resource.KIND.lower()}.md"]
        rows = re.findall(r"^\| `((?:spec|status)\.[^`]+)`", page, re.MULTILINE)
        assert rows == [*fields(schema["spec"], "spec"), *fields(schema["status"], "status")]


def test_the_variables_are_those_that_processes_read(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = re.findall(r"^\| `(\w+)`", render_settings_page(list_process_settings()), re.MULTILINE)
    assert {"TIDEGATE_WORKERS", "TIDEGATE_AGENT_LOAD_TIMEOUT_S", "TIDEGATE_NODE_INTERVAL_S"} < {*variables}

    monkeypatch.setenv("TIDEGATE_WORKERS", "5")
    assert ControlPlaneSettings().workers == 5
    read = AgentSettings.from_environment({"TIDEGATE_AGENT_LOAD_TIMEOUT_S": "5", "POD_NAME": "a"})
    assert (read.load_timeout_s, read.pod_name) == (5, "a")


def test_the_page_of_metrics_lists_what_each_process_shows() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    assert {section.process for section in METRIC_SECTIONS} == {*SHOWN, "Gateways"}
    for process, shown in SHOWN.items():
        [below] = re.findall(rf"^## {process}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert dict(re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \|", below, re.MULTILINE)) == shown


CONVENTIONS: Mapping[str, Callable[[Metric], bool]] = {
    "snake case with our prefix": lambda metric: bool(
        re.fullmatch(r"(tidegate|envoy_tidegate)(_[a-z0-9]+)+", metric.name)
    ),
    "_total for counters alone": lambda metric: (
        metric.name.startswith("envoy_") or (metric.TYPE == "counter") == metric.name.endswith("_total")
    ),
    "base units": lambda metric: not FOREIGN_UNITS.search(metric.name),
    "histograms with their unit": lambda metric: (
        metric.TYPE != "histogram" or metric.name.endswith(("_seconds", "_bytes"))
    ),
    "times in seconds since 1970": lambda metric: (
        "timestamp" not in metric.name or metric.name.endswith("_timestamp_seconds")
    ),
    "a sentence as its help": lambda metric: metric.help_text.endswith("."),
    "no label of Prometheus' own": lambda metric: (
        metric.name == "tidegate_inference_slo_bucket_share"
        or not {"le", "quantile", "job", "instance"} & {*metric.labels}
    ),
}


def test_metrics_follow_the_conventions_of_prometheus() -> None:
    broken = [
        f"{metric.name}: {convention}"
        for metric in METRICS
        for convention, holds in CONVENTIONS.items()
        if not holds(metric)
    ]
    assert broken == []


def test_the_readme_types_the_six_commands_of_its_page() -> None:
    console = blocks("console")
    page = [line for block in console if "how-to/any-cluster.md" in block.where for line in lines(block)]
    (typed,) = [
        lines(block) for block in console if "README.md" in block.where and "make images" in block.text
    ]
    assert len(typed) == 7, "six, and the question by tritonclient"
    assert {command.partition("   #")[0] for command in typed} <= {*page}
