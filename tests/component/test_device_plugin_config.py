"""What we tell people to give NVIDIA's device plugin, read by the plugin's own types."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fixtures.go_programs import go_program
from tidegate.main import app
from tidegate.resources.sharing.device_plugin import SHARED_GPU, plugin_config


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


def changed(**mps: Any) -> str:
    config: Any = plugin_config(4)
    config["sharing"]["mps"].update(mps)
    return yaml.safe_dump(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            changed(resources=[{"name": "nvidia.com/gpu", "replicas": 1}]), "must be >= 2", id="one"
        ),
        pytest.param(changed(resources=[]), "no resources", id="none"),
        pytest.param(yaml.safe_dump({**plugin_config(4), "sharng": {}}), "unknown field", id="misspelt"),
        pytest.param(yaml.safe_dump({**plugin_config(4), "version": "v2"}), "unknown version", id="version"),
    ],
)
def test_plugin_refuses_what_is_wrong(text: str, says: str) -> None:
    """The reader is one that can refuse."""
    said = read(text)
    assert said.returncode != 0
    assert says in said.stderr
