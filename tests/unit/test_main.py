"""The command line: which cluster a process talks to, all of it."""

from __future__ import annotations

from pathlib import Path

import kopf
import pytest
import yaml

from tidegate.main import _cluster


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

    assert _cluster(asked_for) == asked_for
    watched = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    assert watched is not None
    assert watched.server == "https://asked:6443"


def test_without_the_option_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = a_kubeconfig(tmp_path / "named", "https://named:6443")
    monkeypatch.setenv("KUBECONFIG", str(named))
    assert _cluster(None) == named
    monkeypatch.delenv("KUBECONFIG")
    assert _cluster(None) is None
