"""Group the commands of `tidegate --help` into panels, and give each command examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo, TyperInfo

SERVER_PANEL: Final = "Servers (started by the chart)"
PANELS: Final[Mapping[str, Sequence[str]]] = {
    "Inspect": ("status", "get", "top", "why", "history", "features", "xds", "dashboard"),
    "Find problems": ("analyze", "doctor", "report"),
    "Steer": ("hold", "resume", "override", "release", "plan", "record", "simulate"),
    "Measure and prepare": ("bench", "calibrate", "optimize", "pools", "convert"),
    "Local cluster": ("local", "demo"),
    "Other": ("version",),
    SERVER_PANEL: ("controllers", "web"),
}
EXAMPLES_TITLE: Final = "Examples:"

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "status": (
        "tidegate status",
        "tidegate status -l team=ads",
        "tidegate status inference ctr -n ads -w",
        "tidegate status ads/ctr --wait --timeout 90s",
    ),
    "get": (
        "tidegate get",
        "tidegate get modelaccesses -A --sort state",
        "tidegate get inferences -l team=ads -w",
    ),
    "top inferences": (
        "tidegate top inferences -n ads",
        "tidegate top inferences -A -l team=ads --sort value",
    ),
    "top pools": ("tidegate top pools", "tidegate top pools -l accelerator=gpu"),
    "why": (
        "tidegate why ctr -n ads",
        "tidegate why pool gpu-a",
        "tidegate why modelaccess/ads/ranking",
    ),
    "history": (
        "tidegate history -l team=ads",
        "tidegate history ads/ctr",
        "tidegate history pool gpu-a -o json",
    ),
    "features list": ("tidegate features list -n ads", "tidegate features list -f features.yaml"),
    "features explain": ("tidegate features explain user.age -n ads",),
    "features stats": (
        "tidegate features stats --training training.parquet --recent recent.parquet",
        "tidegate features stats --training training.parquet --recent recent.parquet --fail-above 0.25",
    ),
    "features compute": (
        "tidegate features compute features.yaml --rows rows.parquet --write features.parquet",
    ),
    "record": (
        "tidegate record gpu-a --prometheus http://127.0.0.1:9090 --since 24h",
        "tidegate record gpu-a --prometheus http://127.0.0.1:9090 --since 360h -d november --force",
    ),
    "simulate": (
        "tidegate simulate trace.csv -f pool.yaml",
        "tidegate simulate trace.csv -f manifests/ --slices 20 --load 90s",
        "tidegate simulate trace.csv -f pool.yaml --slices 20 --policy present --html day.html",
        "tidegate simulate trace.csv -f pool.yaml --lose-nodes 1@2h/30m --max ads/ctr=6",
    ),
    "xds status": ("tidegate xds status",),
    "xds dump": ("tidegate xds dump", "tidegate xds dump previous --name access/ads/ranking"),
    "xds diff": ("tidegate xds diff", "tidegate xds diff 3f9a 81c2"),
    "xds bootstrap": (
        "tidegate xds bootstrap --server tidegate-xds.tidegate-system:18000 --node client-0.ads",
    ),
    "dashboard": (
        "tidegate dashboard",
        "tidegate dashboard -n ads --no-browser --port 8080",
        "tidegate dashboard --recorded",
    ),
    "analyze": (
        "tidegate analyze -n ads",
        "tidegate analyze -A --fail-on Warning",
        "tidegate analyze --offline -f manifests/",
    ),
    "doctor": ("tidegate doctor", "tidegate doctor --system-namespace tidegate-system -o json"),
    "report": ("tidegate report", "tidegate report -n ads --file report.zip"),
    "hold": (
        'tidegate hold inference ctr -n ads --for 2h --reason "sale"',
        'tidegate hold pool/gpu-a --for 30m --reason "node maintenance" --dry-run',
    ),
    "resume": ("tidegate resume ads/ctr", "tidegate resume pool gpu-a"),
    "override": (
        'tidegate override ads/ctr --pin 4 --for 2h --reason "load test"',
        'tidegate override ads/ctr --floor 2 --for 1h --reason "campaign"',
        "tidegate override ads/ctr --end",
    ),
    "release status": ("tidegate release status ranking -n ads -w",),
    "release list": ("tidegate release list -A", "tidegate release list -n ads -l team=ads -w"),
    "release pause": ("tidegate release pause ads/ranking",),
    "release resume": ("tidegate release resume ads/ranking",),
    "release promote": (
        "tidegate release promote ads/ranking",
        "tidegate release promote ads/ranking --dry-run",
    ),
    "release abort": ("tidegate release abort ads/ranking",),
    "release restart": ("tidegate release restart ads/ranking",),
    "plan": ("tidegate plan gpu-a", "tidegate plan gpu-a --demand ads/ctr=x1.5 --slices 12"),
    "bench": (
        "tidegate bench ctr -n ads --for 30s --p99 30ms",
        "tidegate bench grpc://127.0.0.1:8001 --model ctr",
    ),
    "calibrate": ("tidegate calibrate ctr -n ads", "tidegate calibrate ads/ctr --slo 30ms"),
    "optimize": ("tidegate optimize model.onnx --write fast.onnx",),
    "pools device-plugin-config": ("tidegate pools device-plugin-config --slices-per-gpu 4",),
    "convert kserve": (
        "tidegate convert kserve inferenceservices.yaml",
        "tidegate convert kserve manifests/ -o json",
    ),
    "version": ("tidegate version",),
    "controllers": ("tidegate controllers --kubeconfig kubeconfig.yaml",),
    "web": ("tidegate web --kubeconfig kubeconfig.yaml",),
    "xds serve": ("tidegate xds serve --kubeconfig kubeconfig.yaml",),
}
"""Example calls by command, as a user types them."""


def complete_help(app: typer.Typer) -> None:
    """Sort the commands of `tidegate` into panels, and append the examples to their help."""
    for command in app.registered_commands:
        command.rich_help_panel = find_panel(str(command.name))
    for group in app.registered_groups:
        group.rich_help_panel = find_panel(_read_group_name(group))
    for name, command in list_commands(app):
        # An empty line separates lines: help joins the lines of a paragraph.
        command.epilog = "\n\n".join((EXAMPLES_TITLE, *EXAMPLES[name]))


class PanelGroup(TyperGroup):
    """The program, whose help lists the panels in their order."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of the commands in the order of PANELS."""
        order = [name for names in PANELS.values() for name in names]
        return sorted(self.commands, key=order.index)


def find_panel(command: str) -> str:
    """Return the panel of a command of `tidegate`. Raises KeyError if it has none."""
    return {name: panel for panel, names in PANELS.items() for name in names}[command]


def list_commands(app: typer.Typer, *path: str) -> Iterator[tuple[str, CommandInfo]]:
    """Yield each command with its name as a user types it, such as `release status`."""
    for command in app.registered_commands:
        yield " ".join((*path, str(command.name))), command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from list_commands(group.typer_instance, *path, _read_group_name(group))


def _read_group_name(group: TyperInfo) -> str:
    """Return the name of a group, which its app has."""
    return str(group.typer_instance.info.name) if group.typer_instance is not None else ""
