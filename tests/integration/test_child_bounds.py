"""What the controllers may make, change and delete of their children's kinds: the chart's policy on a real API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builders.inference import inference_body
from builders.waiting import wait_until
from fixtures.chart import rendered
from fixtures.control_plane import Kubectl
from tidegate_localcluster.supplies import find_source_root

pytestmark = pytest.mark.usefixtures("crds")

CONTROLLERS: Final = "system:serviceaccount:tidegate-system:tidegate-controllers"
GOLDENS: Final = sorted((find_source_root() / "tests" / "golden" / "objects").glob("*.yaml"))
THEIRS: Final = "may change and delete objects of theirs"
OWNED: Final = "with their label that an object of tidegate.io controls"
TOKEN: Final = "get no token of a ServiceAccount"
NODE: Final = "have no rights on their node"

Tamper = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def bounded(kubectl: Kubectl, helm: Path, file_namespace: str) -> Iterator[Kubectl]:
    """kubectl, once the policy is in force in this namespace and in kube-system."""
    name = "tidegate-child-bounds"
    objects = rendered(helm, {"models.hostPath": "/models", "models.nodeCache.hostPath": "/var/cache/models"})
    policy = objects["ValidatingAdmissionPolicy", name]
    binding = deepcopy(dict(objects["ValidatingAdmissionPolicyBinding", name]))
    here = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": [file_namespace, "kube-system"],
    }
    binding["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [here]}}
    kubectl.apply(policy, binding)
    kubectl(
        *("create", "clusterrolebinding", f"{file_namespace}-all", "--clusterrole=cluster-admin"),
        f"--user={CONTROLLERS}",
    )
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}
    kubectl.apply(theirs, namespace=file_namespace)
    wait_until(lambda: THEIRS in deleted(kubectl, file_namespace), what="the policy is in force")
    yield kubectl
    kubectl.run("delete", "clusterrolebinding", f"{file_namespace}-all", "--wait=false")
    for body in (binding, policy):
        kubectl.run("delete", body["kind"], name, "--wait=false")


def deleted(kubectl: Kubectl, namespace: str) -> str:
    asked = ("delete", "configmap", "theirs", "-n", namespace, f"--as={CONTROLLERS}", "--dry-run=server")
    return kubectl.run(*asked).stderr


def applied(kubectl: Kubectl, namespace: str, *bodies: Mapping[str, Any]) -> str:
    """What the API server says to objects that the controllers apply; empty when it takes them, which it does not keep."""
    moved = [{**body, "metadata": {**body["metadata"], "namespace": namespace}} for body in bodies]
    asked = ("apply", "--server-side", "--dry-run=server", f"--as={CONTROLLERS}", "-f", "-")
    # As JSON, as the controllers send it: kubectl would read a hash of digits alone as a number.
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": moved})
    return kubectl.run(*asked, stdin=text).stderr


def children(golden: Path) -> list[dict[str, Any]]:
    return [body for body in yaml.safe_load_all(golden.read_text()) if body]


def deployment() -> dict[str, Any]:
    golden = next(path for path in GOLDENS if path.stem == "inference-file")
    return next(body for body in children(golden) if body["kind"] == "Deployment")


def pod_of(body: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = body["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_all_that_the_controllers_make_is_let_in(bounded: Kubectl, file_namespace: str, golden: Path) -> None:
    assert applied(bounded, file_namespace, *children(golden)) == ""


@pytest.mark.parametrize(
    ("tamper", "refusal"),
    [
        pytest.param(lambda body: body["metadata"].pop("ownerReferences"), OWNED, id="no owner"),
        pytest.param(lambda body: body["metadata"].pop("labels"), OWNED, id="no label"),
        pytest.param(
            lambda body: body["metadata"]["ownerReferences"][0].update(apiVersion="v1", kind="ConfigMap"),
            OWNED,
            id="an owner of another kind",
        ),
        pytest.param(
            lambda body: pod_of(body).pop("automountServiceAccountToken"), TOKEN, id="token of an account"
        ),
        pytest.param(
            lambda body: pod_of(body)["volumes"].append(
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
            ),
            TOKEN,
            id="projected token",
        ),
        pytest.param(
            lambda body: pod_of(body)["volumes"].append({"name": "h", "hostPath": {"path": "/etc"}}),
            NODE,
            id="folder of the node",
        ),
        pytest.param(lambda body: pod_of(body).update(hostNetwork=True), NODE, id="network of the node"),
        pytest.param(lambda body: pod_of(body).update(hostPID=True), NODE, id="processes of the node"),
        pytest.param(
            lambda body: pod_of(body)["containers"][0].update(
                securityContext={"privileged": True, "allowPrivilegeEscalation": True}
            ),
            NODE,
            id="privileged",
        ),
        pytest.param(
            lambda body: pod_of(body)["initContainers"][0].pop("securityContext"), NODE, id="escalation"
        ),
        pytest.param(
            lambda body: pod_of(body)["securityContext"].update(runAsNonRoot=False), NODE, id="as root"
        ),
    ],
)
def test_stolen_controllers_make_no_other_pods(
    bounded: Kubectl, file_namespace: str, tamper: Tamper, refusal: str
) -> None:
    body = deployment()
    tamper(body)
    assert refusal in applied(bounded, file_namespace, body)


def test_stolen_controllers_make_nothing_in_kubernetes_own_namespaces(bounded: Kubectl) -> None:
    assert "nothing in Kubernetes' own namespaces" in applied(bounded, "kube-system", deployment())


def test_objects_of_others_are_neither_changed_nor_deleted(bounded: Kubectl, file_namespace: str) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"a": "b"}}
    owned = {**deployment()["metadata"], "name": "theirs"}
    assert THEIRS in applied(bounded, file_namespace, {**theirs, "metadata": owned})
    assert THEIRS in deleted(bounded, file_namespace)


def test_a_label_that_somebody_took_away_is_put_back(bounded: Kubectl, file_namespace: str) -> None:
    inference = {**inference_body("ctr"), "metadata": {"name": "ctr"}}
    bounded.apply(inference, namespace=file_namespace)
    owner = bounded.json("get", "inference", "ctr", "-n", file_namespace)["metadata"]["uid"]
    reference = {**deployment()["metadata"]["ownerReferences"][0], "uid": owner}
    metadata = {"name": "ours", "ownerReferences": [reference]}
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    bounded.apply(ours, namespace=file_namespace)
    labels = {"app.kubernetes.io/managed-by": "tidegate"}
    assert OWNED in applied(bounded, file_namespace, {**ours, "data": {"a": "b"}})
    assert applied(bounded, file_namespace, {**ours, "metadata": {**metadata, "labels": labels}}) == ""
