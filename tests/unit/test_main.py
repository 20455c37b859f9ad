"""The command line: which cluster a process talks to, all of it."""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path

import kopf
import pytest
import yaml
from typer.testing import CliRunner

from documented.programs import of_tidegate
from tidegate import __version__
from tidegate.cli.cluster_options import parse_cluster_options
from tidegate.cli.help_pages import EXAMPLES, SERVER_PANEL, list_commands
from tidegate.main import _select_kubeconfig, app


def a_kubeconfig(path: Path, server: str) -> Path:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    "elsewhere", [True, False], ids=["KUBECONFIG names another cluster", "no KUBECONFIG"]
)
def test_kubeconfig_option_is_also_the_cluster_that_kopf_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    # Set first in any case, so that monkeypatch puts back what was there.
    monkeypatch.setenv("KUBECONFIG", str(a_kubeconfig(tmp_path / "other", "https://other:6443")))
    if not elsewhere:
        monkeypatch.delenv("KUBECONFIG")
    asked_for = a_kubeconfig(tmp_path / "asked", "https://asked:6443")

    assert _select_kubeconfig(asked_for) == asked_for
    watched = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    assert watched is not None
    assert watched.server == "https://asked:6443"


def test_without_the_option_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = a_kubeconfig(tmp_path / "named", "https://named:6443")
    monkeypatch.setenv("KUBECONFIG", str(named))
    assert _select_kubeconfig(None) == named
    monkeypatch.delenv("KUBECONFIG")
    assert _select_kubeconfig(None) is None


def test_a_group_without_a_command_shows_its_commands_and_starts_nothing() -> None:
    for group in ("xds", "pools", "release", "top", "features"):
        done = CliRunner().invoke(app, [group], env={"COLUMNS": "200", "TERM": "dumb"})
        assert (done.exit_code, "Usage:" in done.output, "Commands" in done.output) == (2, True, True), group


def test_help_lists_servers_after_the_commands_of_users() -> None:
    help_text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert help_text.index(" Inspect ") < help_text.index(" Steer ") < help_text.index(f" {SERVER_PANEL} ")
    assert help_text.index(f" {SERVER_PANEL} ") < help_text.index("controllers ") < help_text.index("web ")
    xds_help = CliRunner().invoke(app, ["xds", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert xds_help.index("bootstrap") < xds_help.index(f" {SERVER_PANEL} ") < xds_help.index("serve ")


def test_every_command_has_a_panel_and_examples_that_call_it() -> None:
    names = {name for name, _ in list_commands(app)}
    assert names == set(EXAMPLES)
    for name, calls in EXAMPLES.items():
        assert calls, name
        for call in calls:
            words = shlex.split(call)
            assert call.startswith(f"tidegate {name}"), call
            assert of_tidegate(tuple(words[1:])) == "", call
    help_text = CliRunner().invoke(app, ["hold", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert all(call in help_text for call in EXAMPLES["hold"])


def test_groups_are_impersonated_only_with_a_user() -> None:
    done = CliRunner().invoke(app, ["get", "--as-group", "ops"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert (done.exit_code, "--as-group needs --as" in done.output) == (2, True)
    done = CliRunner().invoke(
        app, ["get", "--request-timeout", "soon"], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    assert (done.exit_code, "--request-timeout soon: " in done.output) == (2, True)


def test_each_command_that_asks_a_cluster_takes_the_same_options() -> None:
    shared = {*inspect.signature(parse_cluster_options).parameters}
    taken = {
        name: shared & {*inspect.signature(command.callback).parameters}
        for name, command in list_commands(app)
        if command.callback is not None
    }
    servers = {"controllers", "web", "xds serve"}
    assert {name for name, options in taken.items() if options == {"kubeconfig"}} == servers
    assert {name for name, options in taken.items() if options not in (set(), shared)} == servers
    assert taken["dashboard"] == shared


def test_a_missing_kubeconfig_is_the_error_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    done = CliRunner().invoke(app, ["get", "--kubeconfig", str(missing)])
    assert done.stdout == ""
    assert done.stderr == (
        f"tidegate: kubeconfig {missing} does not exist; set $KUBECONFIG or --kubeconfig to another file\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    done = CliRunner().invoke(app, ["get"])
    assert done.stderr.startswith("tidegate: no kubeconfig: set $KUBECONFIG or --kubeconfig, or create ")


def test_whoever_asks_for_help_does_not_wait_for_what_other_commands_need() -> None:
    heavy = {
        "aiohttp",
        "grpc",
        "kopf",
        "kubernetes",
        "numpy",
        "pydantic",
        "structlog",
        "tidegate_localcluster",
    }
    program = f"import sys, tidegate.main as m; m._mount_local_cluster(); print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_the_controllers_do_not_load_what_other_processes_use() -> None:
    """The solver is a process of its own, and Envoy's messages are the xDS servers': 18 MiB."""
    heavy = {"envoy", "grpc", "highspy", "numpy", "opentelemetry.sdk", "scipy"}
    program = f"import sys, tidegate_controllers.process; print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_commands_of_the_local_cluster_are_handed_on() -> None:
    command = [sys.executable, "-m", "tidegate", "local", "down", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "--state-dir" in done.stdout) == (0, True)


def test_the_version_is_one_line_or_json() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout == f"{__version__}\n"
    assert json.loads(CliRunner().invoke(app, ["version", "-o", "json"]).stdout) == {"version": __version__}
