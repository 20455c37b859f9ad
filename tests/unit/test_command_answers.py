"""Every command that answers something does so as JSON too, of an agreed shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from fixtures.golden import CheckGolden
from tidegate.api.meta import ObjectKey
from tidegate.cli.options import Format
from tidegate.main import app
from tidegate.planning.calibration import Measured
from tidegate.reports.analysis import AnalysisReport
from tidegate.reports.bench import BenchReport
from tidegate.reports.bundle import BundleReport
from tidegate.reports.calibration import CalibrationReport, Replica, calibrated
from tidegate.reports.decision import HistoryReport
from tidegate.reports.device_plugin import DevicePluginReport
from tidegate.reports.fleet import FleetReport
from tidegate.reports.listing import ChangeReport, ListReport
from tidegate.reports.plan import PlanReport
from tidegate.reports.release import ReleaseReport
from tidegate.reports.report import Report
from tidegate.reports.status_access import AccessStatusReport
from tidegate.reports.status_feature import FeatureStatusReport
from tidegate.reports.status_inference import InferenceStatusReport
from tidegate.reports.status_pool import PoolStatusReport
from tidegate.reports.steered import SteeringReport
from tidegate.reports.top import TopInferences, TopPools
from tidegate.reports.version import VersionReport
from tidegate.reports.why import InferenceReport, PoolReport
from tidegate.reports.xds import SnapshotDiffReport, SnapshotReport, XdsStatusReport

GOLDEN = Path(__file__).parent.parent / "golden" / "reports"

REPORTS: dict[str, type[Report]] = {
    "analyze": AnalysisReport,
    "bench": BenchReport,
    "calibrate": CalibrationReport,
    "get": ListReport,
    "get-watch": ChangeReport,
    "history": HistoryReport,
    "hold-resume-override": SteeringReport,
    "plan": PlanReport,
    "pools-device-plugin-config": DevicePluginReport,
    "release": ReleaseReport,
    "report": BundleReport,
    "status-computepool": PoolStatusReport,
    "status-featurecompute": FeatureStatusReport,
    "status-fleet": FleetReport,
    "status-inference": InferenceStatusReport,
    "status-modelaccess": AccessStatusReport,
    "top-inferences": TopInferences,
    "top-pools": TopPools,
    "version": VersionReport,
    "why-inference": InferenceReport,
    "why-pool": PoolReport,
    "xds-diff": SnapshotDiffReport,
    "xds-dump": SnapshotReport,
    "xds-status": XdsStatusReport,
}

WITHOUT = {
    "controllers": "a process",
    "web": "a process",
    "dashboard": "a process, that opens a browser",
    "xds bootstrap": "prints nothing but the JSON that gRPC reads",
}

SEVERAL = {
    "doctor": ("analyze",),
    "hold": ("hold-resume-override",),
    "resume": ("hold-resume-override",),
    "override": ("hold-resume-override",),
    "status": ("status-fleet", "status-inference", "status-modelaccess", "status-featurecompute", "status-computepool"),
    "get": ("get", "get-watch"),
    "why": ("why-inference", "why-pool"),
}  # fmt: skip
"""Commands whose answers have several shapes, or one that others share; all others are named after their first word."""


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command below, by its name as it is typed."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from leaves(each, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(typer.main.get_command(app)))


def schemas(command: str) -> tuple[str, ...]:
    """The files that say what its answers are like."""
    first, *rest = command.split(" ")
    if command in SEVERAL:
        return SEVERAL[command]
    return (first if first == "release" else "-".join((first, *rest)),)


@pytest.mark.parametrize("name", REPORTS)
def test_what_its_json_has_is_agreed_upon(name: str, check_golden: CheckGolden) -> None:
    schema = REPORTS[name].model_json_schema(mode="serialization")
    check_golden(GOLDEN / f"{name}.schema.json", json.dumps(schema, indent=2) + "\n")


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - WITHOUT.keys()))
def test_every_command_answers_as_json_whose_shape_is_agreed_upon(command: str) -> None:
    (output,) = (option for option in COMMANDS[command].params if {"--output", "-o"} <= set(option.opts))
    assert output.default is Format.TEXT
    assert REPORTS.keys() >= {*schemas(command)}, f"{command}: add its reports to REPORTS"


def test_the_device_plugins_entry_is_the_same_in_every_form() -> None:
    asked = ["pools", "device-plugin-config", "--slices-per-gpu", "4"]
    text = CliRunner().invoke(app, asked).output
    as_json = json.loads(CliRunner().invoke(app, [*asked, "-o", "json"]).output)
    key, value = next(iter(yaml.safe_load(text).items()))
    assert (key, yaml.safe_load(value)) == (as_json["key"], as_json["config"])
    assert CliRunner().invoke(app, [*asked, "-o", "name"]).output == f"{key}\n"


def test_a_calibration_within_no_slo_says_so_and_one_within_none_kept_gives_no_figure() -> None:
    replica = Replica(ObjectKey("ads", "ctr"), "ctr", "ctr-1", "127.0.0.1:8001", None)
    measured = (Measured(1, 100.0, 0.010, 0.020), Measured(2, 190.04, 0.011, 0.025))
    free = calibrated(replica, measured, 0.001, "nothing is gained")
    assert (free.requests_per_second, free.concurrency, free.way_ms) == (190.0, 2, 1.0)
    assert "no SLO is given: set spec.slo.latencyP99 or --slo to measure within one" in free.lines(wide=False)
    late = calibrated(
        Replica(replica.inference, "ctr", "ctr-1", "", 0.015), measured, 0.001, "the SLO is missed"
    )
    assert (late.requests_per_second, late.serialised()["sloMs"]) == (None, 15.0)
    assert not any(line.startswith("kubectl") for line in late.lines(wide=False))


def test_what_a_newer_server_says_besides_is_left_out_and_what_is_no_answer_is_refused() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    proxy = {"node": "g", "kind": "gateway", "revision": "r1", "types": {"route": "SYNCED"}, "nack": None}
    said = XdsStatusReport.of({"xds-0": {"proxies": [{**proxy, "since": now}]}, "xds-1": {"proxies": []}})
    assert [(one.node, one.server) for one in said.proxies] == [("g", "xds-0")]
    assert "since" not in said.serialised()["proxies"][0]
    with pytest.raises(ValueError, match="node"):
        XdsStatusReport.of({"xds-0": {"proxies": [{"name": "g"}]}})
    for foreign in ({"status": "ok"}, [], {"proxies": ["g"]}):
        with pytest.raises(ValueError, match="_Told"):
            XdsStatusReport.of({"xds-0": foreign})  # type: ignore[dict-item]
