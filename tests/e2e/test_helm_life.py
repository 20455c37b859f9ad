"""The life of a release by Helm alone: tested, upgraded, rolled back, removed, and installed again.

Last on the session's cluster: Helm takes roles away before the last pod that had them, whose requests are refused then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builders.waiting import wait_until
from fixtures.chart import CHART, PROCESSES, HelmOn, settings_of
from fixtures.control_plane import Kubectl
from fixtures.go_programs import go_program
from fixtures.installed import Installed, Space, a_space
from tidegate_localcluster.demo.helm import NAMESPACE, RELEASE

pytestmark = [pytest.mark.alone("replaces the installation"), pytest.mark.after_judges]

REQUESTS = 1_000
WAIT = ("--wait", "--timeout=240s")


@dataclass(frozen=True, slots=True)
class Life:
    """A cluster with the release in it, and Helm for both."""

    helm: HelmOn
    values: Mapping[str, object]
    installed: Installed

    def act(self, *command: str | Path, **values: object) -> None:
        """A command of Helm about the release, with the cluster's own values where it takes any."""
        given = {name.replace("__", "."): value for name, value in values.items()}
        takes = command[0] in {"install", "upgrade"}
        settings = settings_of({**self.values, **given}) if takes else []
        self.helm(*command, f"--namespace={NAMESPACE}", *settings)

    def ready(self) -> None:
        """Every process is ready now, without any waiting: Helm is to have waited."""
        for process in PROCESSES:
            found = self.helm.kubectl.json("get", "deployment", f"{RELEASE}-{process}", "-n", NAMESPACE)
            status, generation = found["status"], found["metadata"]["generation"]
            assert status["observedGeneration"] == generation, process
            wanted = found["spec"]["replicas"]
            assert (status["updatedReplicas"], status["readyReplicas"]) == (wanted, wanted), process

    def revision(self) -> str:
        """The release's present revision."""
        (release,) = json.loads(self.helm("list", f"--namespace={NAMESPACE}", "--output=json"))
        return str(release["revision"])

    def certificates(self) -> Sequence[str]:
        """Of the gateways and the xDS servers, which the controllers made."""
        names = ("tidegate-xds-certificate", "tidegate-gateway-certificate")
        found = (self.helm.kubectl.json("get", "secret", name, "-n", NAMESPACE) for name in names)
        return [str(secret["data"]["tls.crt"]) for secret in found]

    def pods(self) -> set[str]:
        """The pods of all processes."""
        return {pod["metadata"]["uid"] for each in PROCESSES for pod in self.installed.component(each)}


@pytest.fixture(scope="module")
def life(
    installed: Installed, cluster_kubectl: Kubectl, helm: Path, request: pytest.FixtureRequest
) -> Iterator[Life]:
    """The release of the session's cluster, which `helm install --wait` has made; it is as before afterwards."""
    values = {**installed.site.values, "crds.enabled": False}
    life = Life(HelmOn(helm, cluster_kubectl), values, installed)
    yield life
    if request.session.testsfailed:
        life.act("upgrade", RELEASE, CHART, "--install", *WAIT)


@pytest.fixture(scope="module")
def space(life: Life) -> Iterator[Space]:
    """A model that is served, in a namespace that stays for all tests of the module."""
    with a_space(life.installed, "e2e-helm-life") as space:
        space.publish("probe", 1)
        space.inference()
        space.access()
        space.ready()
        yield space


def test_helm_test_says_that_every_process_is_ready(life: Life) -> None:
    life.act("test", RELEASE)
    said = life.helm.kubectl("logs", f"{RELEASE}-test-ready", "-n", NAMESPACE)
    assert [line.split()[0] for line in said.splitlines()] == ["ok"] * len(PROCESSES)


@pytest.mark.no_rerun("a lost request")
def test_upgrade_a_bad_upgrade_and_rollback_lose_no_request(life: Life, space: Space) -> None:
    with space.load(1, threads=2) as load:
        load.wait_sent(100)
        first, before, certificates = life.pods(), life.revision(), life.certificates()
        life.act("upgrade", RELEASE, CHART, *WAIT, pods__annotations={"life": "second"})
        life.ready()
        second = life.pods()
        assert not first & second, "every pod is another one"
        assert life.certificates() == certificates

        # What it does not change, the gateways, stays as it is.
        broken = {
            "images.operator": "tidegate.local/operator:missing",
            "pods.annotations": {"life": "second"},
        }
        refused = life.helm.run(
            *("upgrade", RELEASE, CHART, f"--namespace={NAMESPACE}", "--wait", "--timeout=10s"),
            *settings_of({**life.values, **broken}),
        )
        assert refused.returncode != 0, "pods without an image are never ready, and Helm waits for them"
        assert second <= life.pods(), "none has ended whose successor is not ready"

        life.act("rollback", RELEASE, before, *WAIT)
        life.ready()
        wait_until(lambda: not second & life.pods(), "every pod is another one again", evidence=life.pods)
        load.wait_sent(REQUESTS)
        sent = load.finish()
    assert sent.problems == ()
    assert sent.versions == {"1": sent.sent}


def test_models_outlive_their_release_and_install_waits_for_the_next_one_which_takes_them_up(
    life: Life, space: Space
) -> None:
    before = _uid(life, space)
    pods = {pod["metadata"]["uid"] for pod in space.pods("probe")}
    life.act("uninstall", RELEASE, *WAIT)
    wait_until(lambda: not life.pods(), "the pods go with their Deployments", evidence=life.pods)
    assert _uid(life, space) == before
    assert {pod["metadata"]["uid"] for pod in space.pods("probe")} == pods, "models run on"

    life.act("install", RELEASE, CHART, *WAIT)
    life.ready()
    assert _uid(life, space) == before
    space.answers(1)
    space.ready()


@pytest.mark.slow("integration/test_chart_installed.py: the same four commands of Helm 3, without pods")
def test_helm_3_installs_and_removes_the_release_too(life: Life, space: Space) -> None:
    """With the same flags; what one Helm installed the same Helm removes."""
    before = _uid(life, space)
    older = replace(life, helm=HelmOn(go_program("helm3"), life.helm.kubectl))
    life.act("uninstall", RELEASE, *WAIT)
    older.act("install", RELEASE, CHART, *WAIT)
    older.ready()
    space.answers(1)
    older.act("upgrade", RELEASE, CHART, *WAIT, pods__annotations={"life": "third"})
    older.ready()
    older.act("rollback", RELEASE, "1", *WAIT)
    older.ready()
    older.act("uninstall", RELEASE, *WAIT)
    life.act("install", RELEASE, CHART, *WAIT)
    life.ready()
    assert _uid(life, space) == before
    space.answers(1)


def _uid(life: Life, space: Space) -> str:
    found: dict[str, Any] = json.loads(
        life.helm.kubectl("get", "inference", "probe", "-n", space.namespace, "-o", "json")
    )
    return str(found["metadata"]["uid"])
