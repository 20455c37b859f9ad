"""Which lines of the pages are typed on a whole cluster, why the others are not, and whether what came of one is what a reader expects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from documented.pages import blocks
from documented.shell import lines

FOLDERS = ("docs/how-to/", "docs/runbooks/", "docs/explanation/", "docs/reference/")
"""Of people who have Tidegate in a cluster; the tutorial is typed by itself, and the other pages are for developers."""

PAGES: Mapping[str, str] = {
    "docs/explanation/kill-sweep.md": "tests/integration/test_kill_sweep.py runs it",
    "docs/how-to/alert-on-models-and-platform.md": "tests/component/test_alert_rules.py asks promtool",
    "docs/how-to/demo-on-your-own-cluster.md": "it needs a registry and a cluster of somebody's own",
    "docs/how-to/deploy-with-gitops.md": "it changes Argo CD's own ConfigMap",
    "docs/how-to/log-samples.md": "it needs a NATS; tests/e2e/test_sample_log.py has one",
    "docs/how-to/open-the-dashboard.md": "it goes on until it is ended; tests/integration/test_dashboard.py has it",
    "docs/how-to/private-models.md": "it needs a store with keys; tests/e2e/test_sources.py has one",
    "docs/how-to/score-a-table.md": "it needs a table; tests/e2e/test_batch.py has one",
    "docs/how-to/serve-a-stream.md": "it needs a NATS; tests/e2e/test_nearline.py has one",
    "docs/how-to/serve-tls.md": "it needs certificates; tests/e2e/test_gateway_tls.py makes some",
    "docs/how-to/watch-a-fleet.md": "it has a cluster of its own, with simulated nodes",
}
"""Pages of which nothing is typed, and why."""

BEGINNINGS: Mapping[str, str] = {
    "helm ": "tests/e2e/test_helm_life.py has a cluster for what changes the installation itself",
    "kubectl label namespace tidegate-system": "it would change the installation for all other tests",
    "kubectl create clusterrolebinding": "tests/integration/test_chart_installed.py binds these roles",
    "kubectl annotate secret tidegate-": "it would change certificates of all other tests; tests/integration/test_certificate_rotation.py does",
    "kubectl taint node gpu-7": "tests/integration/test_mps_repairs.py has such a node",
    "tidegate calibrate": "it takes minutes; tests/component/test_calibrate_on_triton.py asks a real Triton",
    "tidegate release pause": "it needs a release under way; tests/e2e/test_releases.py has one",
    "ls models/": "the folder is the reader's own",
}
"""Lines that are not typed wherever they stand, by how they begin, and why."""

NOTHING = "No resources found"
"""kubectl's own words, on stderr."""

_ALSO_WITH_1 = re.compile(r"^tidegate (doctor|analyze|status|bench)\b")
"""These say by their exit status that something is not as it should be."""


@dataclass(frozen=True)
class Line:
    """One line that a reader types."""

    page: str
    where: str
    text: str


def every() -> Iterator[tuple[Line, str]]:
    """Every line of the pages for whom Tidegate is installed, with why it is not typed; empty for those that are."""
    for block in blocks("console", "shell", "bash", "sh"):
        page = block.where.partition(":")[0]
        if not page.startswith(FOLDERS):
            continue
        for text in lines(block):
            line = Line(page, block.where, text)
            yield line, block.not_run or PAGES.get(page, "") or _by_beginning(text)


def typed() -> Mapping[str, list[Line]]:
    """The lines that are typed, by page, in their order."""
    found: dict[str, list[Line]] = {}
    for line, why_not in every():
        if not why_not:
            found.setdefault(line.page, []).append(line)
    return found


def problem(text: str, code: int, said: str, complained: str) -> str:
    """What a reader of the page would take for broken; empty where there is nothing."""
    if "Traceback (most recent call last)" in complained:
        return complained
    if "| grep " in text:
        # That nothing is found is an answer, also by kubectl.
        return complained if code > 1 or complained.strip() not in {"", NOTHING} else ""
    if code and not (code == 1 and _ALSO_WITH_1.match(text) and "tidegate: " not in complained):
        return f"exit status {code}: {complained or said}"
    if not said.strip() and "-o jsonpath=" not in text and text.startswith(("tidegate ", "kubectl ")):
        return "" if NOTHING in complained else "it prints nothing"
    return ""


def _by_beginning(text: str) -> str:
    return next((why for beginning, why in BEGINNINGS.items() if text.startswith(beginning)), "")
