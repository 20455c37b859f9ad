"""The life of a release by Helm alone, on a cluster that has nothing yet: installed, tested, upgraded, rolled back, removed, and back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.audit import Audit
from fixtures.audit_log import POLICY
from fixtures.chart import CHART, PROCESSES, HelmOn, settings_of
from fixtures.control_plane import Kubectl
from fixtures.installed import Installed, Space, a_space, until
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import Cluster, ClusterOptions, Supplies
from tidegate_localcluster.demo.helm import NAMESPACE, RELEASE
from tidegate_localcluster.demo.platforms import LocalPlatform

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

    def pods(self) -> set[str]:
        """The pods of all processes."""
        return {pod["metadata"]["uid"] for each in PROCESSES for pod in self.installed.component(each)}


@pytest.fixture(scope="module")
def life(cluster_supplies: Supplies, helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Installed as a stranger would, kinds and all; `helm install --wait` has returned."""
    cluster = Cluster(tmp_path_factory.mktemp("helm-life"))
    cluster.up(ClusterOptions(name="helm-life", audit_policy=POLICY), cluster_supplies, print)
    try:
        platform = LocalPlatform(default_home(), cluster.files.path)
        site = platform.start(print)
        binary = cluster.plan().binaries["kubectl"]
        kubectl = Kubectl(binary, cluster.files.kubeconfig, tmp_path_factory.mktemp("kubectl-cache"))
        helm_on = HelmOn(helm, kubectl)
        arguments = ("--create-namespace", f"--namespace={NAMESPACE}", *WAIT, *settings_of(site.values))
        helm_on("install", RELEASE, CHART, *arguments)
        with platform.endpoints(site) as endpoints:
            yield Life(helm_on, site.values, Installed(cluster, site, endpoints))
    finally:
        remains = cluster.down(print)
        shutil.rmtree(cluster.files.path, ignore_errors=True)
    assert not remains, f"the cluster has left: {remains}"


@pytest.fixture(scope="module")
def space(life: Life) -> Iterator[Space]:
    """A model that is served, in a namespace that stays for all tests of the module."""
    with a_space(life.installed, "e2e-helm-life") as space:
        space.publish("probe", 1)
        space.inference()
        space.access()
        space.ready()
        yield space


def test_install_waits_until_every_process_is_ready_and_helm_test_says_so(life: Life) -> None:
    life.ready()
    life.act("test", RELEASE)
    said = life.helm.kubectl("logs", f"{RELEASE}-test-ready", "-n", NAMESPACE)
    assert [line.split()[0] for line in said.splitlines()] == ["ok"] * len(PROCESSES)


@pytest.mark.no_rerun("a lost request")
def test_upgrade_a_bad_upgrade_and_rollback_lose_no_request(life: Life, space: Space) -> None:
    with space.load(1, threads=2, max_seconds=500) as load:
        load.wait_sent(100, timeout_s=60)
        first = life.pods()
        life.act("upgrade", RELEASE, CHART, *WAIT, pods__annotations={"life": "second"})
        life.ready()
        second = life.pods()
        assert not first & second, "every pod is another one"

        # What it does not change, the gateways, stays as it is.
        broken = {
            "images.operator": "tidegate.local/operator:missing",
            "pods.annotations": {"life": "second"},
        }
        refused = life.helm.run(
            *("upgrade", RELEASE, CHART, f"--namespace={NAMESPACE}", "--wait", "--timeout=20s"),
            *settings_of({**life.values, **broken}),
        )
        assert refused.returncode != 0, "pods without an image are never ready, and Helm waits for them"
        assert second <= life.pods(), "none has ended whose successor is not ready"

        life.act("rollback", RELEASE, "1", *WAIT)
        life.ready()
        until(lambda: not second & life.pods(), "every pod is another one again", evidence=life.pods)
        sent = load.finish()
    assert sent.sent >= REQUESTS
    assert sent.problems == ()
    assert sent.versions == {"1": sent.sent}


def test_models_outlive_their_release_and_the_next_one_takes_them_up(
    life: Life, space: Space, audit: Audit
) -> None:
    before = _uid(life, space)
    pods = {pod["metadata"]["uid"] for pod in space.pods("probe")}
    # From here on Helm takes roles away before the last pod that had them.
    audit.keep(life.installed.cluster)
    life.act("uninstall", RELEASE, *WAIT)
    until(lambda: not life.pods(), "the pods go with their Deployments", evidence=life.pods)
    assert _uid(life, space) == before
    assert {pod["metadata"]["uid"] for pod in space.pods("probe")} == pods, "models run on"

    life.act("install", RELEASE, CHART, *WAIT)
    life.ready()
    assert _uid(life, space) == before
    space.answers(1)
    space.ready()


def _uid(life: Life, space: Space) -> str:
    found: dict[str, Any] = json.loads(
        life.helm.kubectl("get", "inference", "probe", "-n", space.namespace, "-o", "json")
    )
    return str(found["metadata"]["uid"])
