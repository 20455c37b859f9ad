"""What a shell offers when it completes, asked as bash and as kubectl ask it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl

pytestmark = pytest.mark.usefixtures("crds")


def run(arguments: list[str], kubeconfig: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def by_bash(kubeconfig: Path, *words: str) -> list[str]:
    """The last word is the one that is being typed."""
    line = ["tidegate", *words]
    code = "import sys; sys.argv[0] = 'tidegate'; from tidegate.main import main; main()"
    return run(
        ["-c", code],
        kubeconfig,
        _TIDEGATE_COMPLETE="complete_bash",
        COMP_WORDS=shlex.join(line),
        COMP_CWORD=str(len(line) - 1),
    )


@pytest.fixture
def objects(kubectl: Kubectl, namespace: str) -> str:
    for name in ("ctr", "cvr"):
        body = inference_body(name)
        kubectl.apply({**body, "metadata": {"name": name}}, namespace=namespace)
    body = model_access_body("home")
    kubectl.apply({**body, "metadata": {"name": "home"}}, namespace=namespace)
    return namespace


def of_a_namespace(kubectl: Kubectl, ask: Callable[[], list[str]]) -> list[str]:
    """Without the pools of the cluster, which `why` explains too: other tests of this API server have theirs."""

    def pools() -> set[str]:
        return {each["metadata"]["name"] for each in kubectl.json("get", "computepools")["items"]}

    before, names, after = pools(), ask(), pools()
    return [each for each in names if each not in before | after]


def offered(ask: Callable[[], list[str]], wanted: list[str]) -> None:
    """A shell is not kept waiting for more than two seconds: on a busy machine it may be offered nothing, and asks again."""
    wait_until(lambda: ask() == wanted, what=f"{wanted} are offered, and nothing else")


def test_names_of_objects_are_offered_in_the_namespace_that_was_typed(
    objects: str, kubectl: Kubectl, kubeconfig: Path
) -> None:
    # A pool is in no namespace: it is offered by its name alone.
    pool = compute_pool_body(f"{objects}-pool")
    kubectl.apply({**pool, "metadata": {"name": pool["metadata"]["name"]}})
    offered(
        lambda: of_a_namespace(kubectl, lambda: by_bash(kubeconfig, "why", "-n", objects, "")), ["ctr", "cvr"]
    )
    offered(lambda: by_bash(kubeconfig, "why", objects), [pool["metadata"]["name"]])
    kubectl("delete", "computepool", pool["metadata"]["name"], "--wait=false")
    offered(lambda: by_bash(kubeconfig, "why", f"{objects}/cv"), [f"{objects}/cvr"])
    offered(lambda: by_bash(kubeconfig, "release", "status", "-n", objects, ""), ["home"])


def test_kubectl_gets_its_plugins_candidates_and_what_the_shell_is_to_do(
    objects: str, kubectl: Kubectl, kubeconfig: Path
) -> None:
    module = ["-m", "tidegate.kubectl_complete"]
    offered(
        lambda: of_a_namespace(kubectl, lambda: run([*module, "why", "-n", objects, "c"], kubeconfig)),
        ["ctr", "cvr", ":4"],
    )


def test_nothing_is_offered_and_nothing_said_where_no_cluster_answers(
    objects: str, kubeconfig: Path, tmp_path: Path
) -> None:
    away = tmp_path / "kubeconfig"
    away.write_text(kubeconfig.read_text().replace("https://127.0.0.1:", "https://127.0.0.1:1"))
    assert by_bash(away, "why", "-n", objects, "c") == []
