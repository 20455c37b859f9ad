"""The processes themselves show what the page of metrics says, and count what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builders.metrics_page import metric
from fixtures.processes import Running, tidegate
from fixtures.web_process import WebProcess
from fixtures.xds_process import xds_ports
from tidegate.reference.metrics import SECTIONS

pytestmark = pytest.mark.integration


def listed(process: str) -> set[str]:
    return {each.name for section in SECTIONS if section.process == process for each in section.metrics}


def shown(page: str) -> set[str]:
    """Families of ours, with samples or without; not when each series began, which prometheus_client says beside them."""
    families = re.findall(r"^# TYPE (tidegate_\w+) (\w+)$", page, re.MULTILINE)
    counters = {name.removesuffix("_total") for name, _ in families if name.endswith("_total")}
    histograms = {name for name, kind in families if kind == "histogram"}
    began = {f"{name}_created" for name in counters | histograms}
    return {name for name, _ in families} - began


def test_the_controllers_show_what_the_page_says_lead_and_write(controllers: Running) -> None:
    page = controllers.metrics()
    assert shown(page) == listed("Controllers")
    assert metric(page, "tidegate_leader") == 1
    assert metric(page, "tidegate_api_writes_total", resource="leases", result="ok") >= 1
    assert metric(page, "tidegate_build_info", process="controllers") == 1
    assert metric(page, "process_resident_memory_bytes") > 1e6


def test_the_dashboard_shows_what_the_page_says_and_counts_what_it_answers(
    dashboard_process: WebProcess,
) -> None:
    before = metric(dashboard_process.running.metrics(), "tidegate_web_requests_total", status="200")
    with dashboard_process.browser() as browser:
        browser.get("/sign-in")
        browser.get("/nowhere")
    page = dashboard_process.running.metrics()
    assert shown(page) == listed("Web")
    assert metric(page, "tidegate_web_requests_total", status="200") == before + 1
    assert metric(page, "tidegate_api_writes_total") == 0  # it asks who somebody is, which is no write


def test_the_xds_servers_show_what_the_page_says_and_write_nothing(
    controllers: Running, kubeconfig: Path, tmp_path: Path
) -> None:
    del controllers  # brings the kinds
    with tidegate("xds", kubeconfig, tmp_path, **xds_ports()) as running:
        page = running.metrics()
    assert shown(page) == listed("xDS servers")
    assert metric(page, "tidegate_xds_snapshot_timestamp_seconds") > 1e9
    assert metric(page, "tidegate_api_writes_total") == 0
