"""What we tell people to give NVIDIA's device plugin, read by the plugin's own types."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from typer.testing import CliRunner

from fixtures.go_programs import go_program
from tidegate.main import app
from tidegate.resources.slices import SHARED_GPU


def read(text: str) -> subprocess.CompletedProcess[str]:
    """What the plugin makes of a configuration."""
    program = go_program("device-plugin-config")
    return subprocess.run([program], input=text, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize("slices", [2, 7, 48])
def test_plugin_reads_what_the_command_prints(slices: int) -> None:
    printed = CliRunner().invoke(app, ["pools", "device-plugin-config", f"--slices-per-gpu={slices}"])
    assert printed.exit_code == 0
    (key, text), *others = yaml.safe_load(printed.output).items()
    assert (key, others) == (f"mps-{slices}", [])

    said = read(text)
    assert said.returncode == 0, said.stderr
    mps = json.loads(said.stdout)["mps"]
    assert mps == {
        "renameByDefault": True,
        "failRequestsGreaterThanOne": True,
        "resources": [{"name": "nvidia.com/gpu", "rename": SHARED_GPU, "devices": "all", "replicas": slices}],
    }
