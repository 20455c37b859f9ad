"""Two releases in one cluster, each of some namespaces: real controllers with no more rights than the chart gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.chart import CHART, HelmOn
from fixtures.control_plane import Kubectl, may
from fixtures.processes import Running, controllers_settings, tidegate
from fixtures.web_process import with_token

pytestmark = [pytest.mark.integration]

CHILDREN: Final = "configmaps,deployments,poddisruptionbudgets"
UNSEEN: Final = {"observedGeneration": -1}
"""The status of what no controller has looked at."""
RELEASES: Final = {"blue": ("blue-models", "blue-more"), "green": ("green-models",)}
"""Each in the namespace <release>-system, and the namespaces that it serves."""


@dataclass(frozen=True, slots=True)
class Two:
    """Both releases, their controllers leading."""

    helm_on: HelmOn
    running: dict[str, Running]

    def apply(self, namespace: str, *bodies: dict[str, Any]) -> None:
        """Applies objects as a user would."""
        for body in bodies:
            name = {"metadata": {"name": body["metadata"]["name"], "namespace": namespace}}
            self.helm_on.kubectl.apply({**body, **name}, namespace=namespace)

    def children(self, namespace: str) -> dict[str, Any]:
        """What was made for the Inference ctr, by kind."""
        label = "tidegate.io/inference=ctr"
        found = self.helm_on.kubectl.json("get", CHILDREN, "-n", namespace, "-l", label)["items"]
        return {each["kind"]: each for each in found}

    def until_served(self, namespace: str) -> dict[str, Any]:
        """Waits for all children of ctr."""
        wait_until(
            lambda: len(self.children(namespace)) == 2,
            what=f"both children in {namespace}",
        )
        return self.children(namespace)


@pytest.fixture(scope="module")
def two(
    helm: Path,
    kubectl: Kubectl,
    crds: Path,
    controllers_tls: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Two]:
    """Installed by Helm, and run here as the ServiceAccounts that the chart has made."""
    del crds
    helm_on = HelmOn(helm, kubectl)
    served = (*RELEASES["blue"], *RELEASES["green"], "nobodys")
    for namespace in served:
        kubectl("create", "namespace", namespace)
    with ExitStack() as stack:
        running: dict[str, Running] = {}
        for release, namespaces in RELEASES.items():
            system = f"{release}-system"
            values = {
                "watchNamespaces": list(namespaces),
                "crds.enabled": False,
                "models.hostPath": "/models",
            }
            helm_on.install(release, system, values)
            folder = tmp_path_factory.mktemp(release)
            kubeconfig = folder / "kubeconfig"
            token = kubectl("create", "token", f"{release}-controllers", "-n", system).strip()
            kubeconfig.write_text(json.dumps(with_token(kubectl, token)))
            account = f"system:serviceaccount:{system}:{release}-controllers"
            for namespace in namespaces:
                may(kubectl, account, "list", "inferences.tidegate.io", namespace)
            settings = {
                "release": release,
                "priority_class_prefix": f"{release}-",
                "watch_namespaces": json.dumps(namespaces),
                **controllers_settings(controllers_tls),
            }
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("POD_NAMESPACE", system)
                running[release] = stack.enter_context(
                    tidegate("controllers", kubeconfig, folder, **settings)
                )
        for release, process in running.items():
            wait_until(partial(_leads, process), what=f"{release} leads")
        yield Two(helm_on, running)
    for release in RELEASES:
        helm_on("uninstall", release, f"--namespace={release}-system")
    kubectl("delete", "namespace", *served, *(f"{release}-system" for release in RELEASES), "--wait=false")


def _leads(process: Running) -> bool:
    return process.leads


def test_each_release_leads_by_a_lease_of_its_own_and_serves_its_namespaces(two: Two) -> None:
    kubectl = two.helm_on.kubectl
    for release, namespaces in RELEASES.items():
        lease = kubectl.json("get", "lease", f"{release}-controllers", "-n", f"{release}-system")
        assert lease["spec"]["holderIdentity"]
        for namespace in namespaces:
            two.apply(namespace, inference_body(namespace=namespace), model_access_body(namespace=namespace))
            found = two.until_served(namespace)
            template = found["Deployment"]["spec"]["template"]["spec"]
            assert template["priorityClassName"] == f"{release}-realtime"

            def told(namespace: str = namespace) -> bool:
                access = kubectl.json("get", "modelaccess", "-n", namespace)["items"][0]
                return access.get("status", {}).get("observedGeneration") == 1

            wait_until(told, what=f"the access of {namespace} has a status")


@pytest.mark.no_rerun("another owner's object is changed")
def test_neither_touches_what_is_the_others_or_nobodys(two: Two) -> None:
    kubectl = two.helm_on.kubectl
    two.apply("nobodys", inference_body(namespace="nobodys"))
    two.apply("green-models", inference_body(namespace="green-models"))
    two.until_served("green-models")
    # A mark of ours that green would repair, and blue must not see.
    kubectl("scale", "deployment", "inf-ctr", "-n", "green-models", "--replicas=7")
    wait_until(
        lambda: two.children("green-models")["Deployment"]["spec"]["replicas"] == 1,
        what="green repairs what is its own",
    )
    epochs = {
        child["metadata"]["annotations"]["tidegate.io/epoch"]
        for child in two.children("green-models").values()
    }
    assert len(epochs) == 1

    # Blue is made to look at everything of its own, which is done when its newest object has its children.
    two.apply("blue-more", inference_body(namespace="blue-more"))
    two.until_served("blue-more")
    assert two.children("nobodys") == {}
    assert kubectl.json("get", "inference", "ctr", "-n", "nobodys")["status"] == UNSEEN


def test_neither_asks_for_what_it_may_not_see(two: Two) -> None:
    """A pool is nobody's here; and whoever asked for nodes or pools would be refused, and say so."""
    kubectl = two.helm_on.kubectl
    body = compute_pool_body("nobodys")
    kubectl.apply({**body, "metadata": {"name": "nobodys"}})
    two.apply("blue-models", inference_body(namespace="blue-models", replicas=2))
    wait_until(
        lambda: two.children("blue-models").get("Deployment", {}).get("spec", {}).get("replicas") == 2,
        what="two replicas",
    )
    assert kubectl.json("get", "computepool", "nobodys")["status"] == UNSEEN
    kubectl("delete", "computepool", "nobodys")
    for running in two.running.values():
        log = running.log.read_text()
        assert "forbidden" not in log.lower()
        wait_until(partial(running.answers, "/readyz"), what="it is ready")


@pytest.mark.parametrize("process", ["xds", "web"])
def test_the_other_processes_make_do_with_their_namespaces_too(
    two: Two, process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl, system = two.helm_on.kubectl, "green-system"
    kubeconfig = tmp_path / "kubeconfig"
    token = kubectl("create", "token", f"green-{process}", "-n", system).strip()
    kubeconfig.write_text(json.dumps(with_token(kubectl, token)))
    monkeypatch.setenv("POD_NAMESPACE", system)
    ports = dict.fromkeys(("xds_port", "report_port", "contents_port", "web_port"), "0")
    served = json.dumps(RELEASES["green"])
    # Ready is who has listed everything.
    with tidegate(
        process, kubeconfig, tmp_path, watch_namespaces=served, release="green", **ports
    ) as running:
        assert "forbidden" not in running.log.read_text().lower()


def test_the_api_server_would_refuse_one_who_tried(two: Two) -> None:
    kubectl = two.helm_on.kubectl
    for user, namespace, answer in (
        ("blue", "blue-more", "yes"),
        ("blue", "green-models", "no"),
        ("green", "green-models", "yes"),
        ("green", "blue-models", "no"),
        ("green", "nobodys", "no"),
    ):
        account = f"--as=system:serviceaccount:{user}-system:{user}-controllers"
        said = kubectl.run("auth", "can-i", "patch", "deployments", "-n", namespace, account).stdout.strip()
        assert said == answer, (user, namespace)


def test_a_second_release_of_the_same_name_is_refused_whose_names_would_be_the_same(two: Two) -> None:
    done = two.helm_on.run(
        *("install", "blue", CHART, "--namespace=nobodys", "--set=crds.enabled=false"),
        '--set-json=watchNamespaces=["nobodys"]',
    )
    assert done.returncode != 0
    assert "invalid ownership metadata" in done.stderr
