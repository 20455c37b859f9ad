"""Every command that answers something does so as JSON too, of a documented shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from tidegate.api.meta import ObjectKey
from tidegate.cli.options import OutputFormat
from tidegate.main import app
from tidegate.planning.diagnosis.calibration import ConcurrencyResult, JointResult
from tidegate.reference.reports import REPORTS
from tidegate.reports.calibration import ReplicaTarget, add_joint, report_calibration
from tidegate.reports.xds import XdsStatusReport

WITHOUT = {
    "controllers": "a process",
    "web": "a process",
    "xds serve": "a process",
    "dashboard": "a process, that opens a browser",
    "xds bootstrap": "prints nothing but the JSON that gRPC reads",
}


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command below, by its name as it is typed."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from leaves(each, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - WITHOUT.keys()))
def test_every_command_answers_as_json_of_a_shape_that_is_documented(command: str) -> None:
    (output,) = (option for option in COMMANDS[command].params if {"--output", "-o"} <= set(option.opts))
    assert output.default is OutputFormat.TEXT
    assert command in REPORTS or command.partition(" ")[0] in REPORTS, "add its reports"


def test_the_device_plugins_entry_is_the_same_in_every_form() -> None:
    asked = ["pools", "device-plugin-config", "--slices-per-gpu", "4"]
    text = CliRunner().invoke(app, asked).output
    as_json = json.loads(CliRunner().invoke(app, [*asked, "-o", "json"]).output)
    key, value = next(iter(yaml.safe_load(text).items()))
    assert (key, yaml.safe_load(value)) == (as_json["key"], as_json["config"])
    assert CliRunner().invoke(app, [*asked, "-o", "name"]).output == f"{key}\n"


def test_a_calibration_within_no_slo_says_so_and_one_within_none_kept_gives_no_figure() -> None:
    replica = ReplicaTarget(ObjectKey("ads", "ctr"), "ctr", "ctr-1", "127.0.0.1:8001", None)
    measured = (ConcurrencyResult(1, 100.0, 0.010, 0.020), ConcurrencyResult(2, 190.04, 0.011, 0.025))
    free = report_calibration(replica, measured, 0.001, "nothing is gained")
    assert (free.requests_per_second, free.concurrency, free.way_ms) == (190.0, 2, 1.0)
    assert "no SLO is given: set spec.slo.latencyP99 or --slo to measure within one" in free.render_lines(
        wide=False
    )
    late = report_calibration(
        ReplicaTarget(replica.inference, "ctr", "ctr-1", "", 0.015), measured, 0.001, "the SLO is missed"
    )
    assert (late.requests_per_second, late.to_json()["sloMs"]) == (None, 15.0)
    assert not any(line.startswith("kubectl") for line in late.render_lines(wide=False))


def test_a_calibration_of_several_replicas_says_what_each_of_them_is_worth_less() -> None:
    replica = ReplicaTarget(ObjectKey("ads", "ctr"), "ctr", "ctr-1", "127.0.0.1:8001", 0.030)
    alone = report_calibration(
        replica, (ConcurrencyResult(4, 100.0, 0.01, 0.02),), 0.001, "the SLO is missed"
    )
    joint = JointResult(4, ConcurrencyResult(2, 280.04, 0.01, 0.0299))
    report = add_joint(alone, [joint], "the time limit was reached before 8 replicas were measured")
    assert list(report.render_lines(wide=False))[1:] == [
        "one replica answers 100.0 requests/s within 30 ms, 4 at once",
        "4 replicas answer 280.0 requests/s within 30 ms at the same time, 2 at once each: 70% of 4 times one",
        "the time limit was reached before 8 replicas were measured",
        "kubectl patch inference ctr -n ads --type=merge -p "
        """'{"spec": {"capacity": {"requestsPerSecond": "100.0", "together": """
        """[{"replicas": 4, "requestsPerSecond": "280.0"}]}}}'""",
    ]
    assert '"together": []' in list(add_joint(alone, [], "why").render_lines(wide=False))[-1]


def test_what_a_newer_server_says_besides_is_left_out_and_what_is_no_answer_is_refused() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    proxy = {"node": "g", "kind": "gateway", "revision": "r1", "types": {"route": "SYNCED"}, "nack": None}
    said = XdsStatusReport.from_answers(
        {"xds-0": {"proxies": [{**proxy, "since": now}]}, "xds-1": {"proxies": []}}
    )
    assert [(one.node, one.server) for one in said.proxies] == [("g", "xds-0")]
    assert "since" not in said.to_json()["proxies"][0]
    with pytest.raises(ValueError, match="node"):
        XdsStatusReport.from_answers({"xds-0": {"proxies": [{"name": "g"}]}})
    for foreign in ({"status": "ok"}, [], {"proxies": ["g"]}):
        with pytest.raises(ValueError, match="_ServerAnswer"):
            XdsStatusReport.from_answers({"xds-0": foreign})  # type: ignore[dict-item]
