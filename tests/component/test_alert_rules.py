"""promtool plays series through the chart's rules: each alert fires, clears, and stays quiet just below its threshold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import generate_latest

from builders.alert_cases import CASES, Case
from builders.process_registries import REGISTRIES
from builders.waiting import wait_until
from fixtures.prometheus import RunningPrometheus
from fixtures.promtool import asked, played, playing
from tidegate.telemetry.alert import Alert
from tidegate.telemetry.alerts import ALERTS
from tidegate.telemetry.recording_rules import render_recording_rules

FILES = Path(__file__).parents[2] / "charts" / "tidegate" / "files"
RULES = [FILES / "prometheus-rules.yaml", FILES / "prometheus-alerts.yaml"]
BY_NAME = {(alert.name, alert.window): alert for alert in ALERTS}


@pytest.mark.parametrize("process", REGISTRIES)
def test_promtool_takes_what_a_process_shows(process: str, promtool: Path) -> None:
    code, said = asked(promtool, "check", "metrics", said=ours(generate_latest(REGISTRIES[process])))
    assert (code, said) == (0, "")


def ours(page: bytes) -> bytes:
    """Without what prometheus_client says beside, such as when a series began, which promtool takes for a mistake."""
    lines = (line for line in page.decode().splitlines() if "tidegate_" in line)
    return "\n".join(line for line in lines if not re.search(r"_created[ {]", line)).encode() + b"\n"


def test_a_prometheus_takes_them_and_can_evaluate_each(prometheus: RunningPrometheus) -> None:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    # As often as the server does by default: the long windows' own interval is ten minutes.
    prometheus.rules = {"groups": [{"name": group["name"], "rules": group["rules"]} for group in groups]}
    prometheus.start()
    with httpx.Client(base_url=prometheus.url, timeout=30, trust_env=False) as client:

        def evaluated() -> list[tuple[str, str, str]]:
            shown = client.get("/api/v1/rules").json()["data"]["groups"]
            rules = [
                (rule["name"], rule["health"], rule.get("lastError", ""))
                for each in shown
                for rule in each["rules"]
            ]
            return [] if "unknown" in {health for _, health, _ in rules} else rules

        wait_until(lambda: bool(evaluated()), what="each rule was evaluated")
        rules = evaluated()
    assert len(rules) == sum(len(group["rules"]) for group in groups)
    assert [rule for rule in rules if rule[1] != "ok"] == []


def test_every_rule_has_a_case_and_every_case_its_rule() -> None:
    assert {(case.alert, case.window) for case in CASES} == set(BY_NAME)


def chosen(case: Case) -> object:
    """The case, marked slow where promtool takes seconds and others beside it tell nearly the same."""
    if case.window not in ("", "1h"):
        why = "hours or days, a sample a minute; the shortest window has the same expression"
    elif case.window and (case.what in _RARE or (case.what.endswith("-renamed") and case.what != _RENAMED)):
        why = "the same expression over rare series, or under other names of metrics, of which another case has some"
    else:
        return case
    return pytest.param(case, marks=pytest.mark.slow(why))


_RENAMED = "slow-renamed"
_RARE = ("first-asked", "seen-again", "minutes")


@pytest.mark.parametrize("case", [chosen(case) for case in CASES], ids=str)
def test_it_fires_clears_and_is_quiet_below_its_threshold(case: Case, promtool: Path, tmp_path: Path) -> None:
    alert = BY_NAME[case.alert, case.window]
    bad = playing(case.series, told(alert, 0), told(alert, case.fires, case.labels), told(alert, case.clears))
    rules = rules_behind(alert, tmp_path)
    code, said = played(promtool, tmp_path, [rules], bad, playing(case.quiet, ever(alert, case.clears)))
    assert code == 0, said


def test_the_words_of_an_alert_name_labels_that_it_has() -> None:
    for case in CASES:
        alert = BY_NAME[case.alert, case.window]
        named = set(re.findall(r"\{\{ \$labels\.(\w+) \}\}", f"{alert.summary} {alert.description}"))
        assert named <= {*case.labels}, case


def rules_behind(alert: Alert, folder: Path) -> Path:
    """A file with this alert and the recorded rules that it reads: promtool evaluates every rule it has, at every minute."""
    groups: Any = render_recording_rules()["groups"]
    expressions = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
    needed = _named_in(alert.expression, expressions)
    kept = [
        {**group, "rules": [rule for rule in group["rules"] if rule["record"] in needed]} for group in groups
    ]
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [*kept, {"name": "alert", "rules": [alert.to_rule()]}]}))
    return path


def _named_in(expression: str, recorded: Mapping[str, str]) -> set[str]:
    """The recorded rules that an expression reads, directly or through others."""
    named = {name for name in recorded if name in expression}
    return named.union(*(_named_in(recorded[name], recorded) for name in named))


def firing(alert: Alert) -> str:
    window = f',window="{alert.window}"' if alert.window else ""
    return f'ALERTS{{alertname="{alert.name}",alertstate="firing"{window}}}'


def told(alert: Alert, minutes: int, labels: Mapping[str, str] | None = None) -> dict[str, object]:
    """Whether it fires at a minute, and with exactly which labels."""
    samples: list[dict[str, object]] = []
    if labels is not None:
        own = {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity.value, **labels}
        inside = ", ".join(f'{name}="{value}"' for name, value in sorted(own.items()))
        samples.append({"labels": f"ALERTS{{{inside}}}", "value": 1})
    return {"expr": firing(alert), "eval_time": f"{minutes}m", "exp_samples": samples}


def ever(alert: Alert, minutes: int) -> dict[str, object]:
    """That it has never fired until a minute."""
    return {
        "expr": f"count_over_time({firing(alert)}[1w])",
        "eval_time": f"{minutes}m",
        "exp_samples": [],
    }
