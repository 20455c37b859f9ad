"""The charts on a real API server, by Helm: what it admits, who may do what, and what stays when a release goes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from builders.inference import inference_body
from builders.waiting import wait_until
from fixtures.chart import CHART, CHART_OF_KINDS, PROCESSES, HelmOn, settings_of
from fixtures.control_plane import may, wait_for_account
from fixtures.crds import wait_established
from fixtures.go_programs import go_program
from tidegate import __version__
from tidegate.kube.permissions import (
    CLUSTER_RULES,
    PEOPLE_RULES,
    RELEASE_RULES,
    SECRET_RULES,
    ApiClientProcess,
    PeopleRole,
)
from tidegate.main import app
from tidegate.reference.rights import VerbsByResource, merge_rules
from tidegate_dataplane.contract import UriScheme

pytestmark = [pytest.mark.integration]

SYSTEM: Final = "tidegate-system"
PODS_S: Final = 60.0
WITHOUT_KINDS: Final = {"crds.enabled": False}
"""For a release whose kinds are there already: most of what an installation costs."""
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def release(helm_on: HelmOn) -> Iterator[HelmOn]:
    """The chart with its own values, in a namespace that refuses pods which the standard `restricted` does not allow."""
    _namespace(helm_on, SYSTEM, "restricted")
    helm_on.kubectl("create", "namespace", "ads")
    helm_on.install("tidegate", SYSTEM)
    yield helm_on
    helm_on("uninstall", "tidegate", f"--namespace={SYSTEM}", "--ignore-not-found")


def _namespace(helm_on: HelmOn, name: str, standard: str) -> None:
    metadata = {"name": name, "labels": {_ENFORCE: standard}}
    helm_on.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _pods(helm_on: HelmOn, namespace: str = SYSTEM) -> dict[str, int]:
    """How many pods each process has got, whether or not there is a node for them."""
    found = helm_on.kubectl.json("get", "pods", "-n", namespace)["items"]
    components = [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in found]
    return {each: components.count(each) for each in components}


def test_pods_of_a_release_are_let_into_a_restricted_namespace(release: HelmOn) -> None:
    wanted = {"controllers": 2, "xds": 2, "web": 1, "gateway": 2}
    wait_until(lambda: _pods(release) == wanted, what=f"pods {wanted}", timeout_s=PODS_S)


def test_the_pod_of_helm_test_is_let_in_too_and_a_node_agent_is_not(release: HelmOn) -> None:
    values = {"nodeAgent.enabled": True, "crds.enabled": False}
    command = ("template", "tidegate", CHART, f"--namespace={SYSTEM}", *settings_of(values))
    agent = _one(release(*command, "--show-only=templates/node-agent.yaml"), "DaemonSet")
    test = _one(release(*command, "--show-only=templates/tests/ready.yaml"), "Pod")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tidegate-node-agent"}}
    _namespace(release, "open", "privileged")
    for namespace in (SYSTEM, "open"):
        release.kubectl.apply(account, namespace=namespace)
    template = agent["spec"]["template"]
    # The chart's own RuntimeClass is NVIDIA's, which is not there.
    pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}}
    pod["spec"] = {name: value for name, value in template["spec"].items() if name != "runtimeClassName"}

    def dry(body: Mapping[str, Any], namespace: str) -> Sequence[str]:
        return ("create", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "name")

    assert release.kubectl(*dry(test, SYSTEM), stdin=json.dumps(test)).strip() == "pod/tidegate-test-ready"
    refused = release.kubectl.refusal(*dry(pod, SYSTEM), stdin=json.dumps(pod))
    for why in ("host namespaces (hostPID=true)", "restricted volume types", "runAsNonRoot"):
        assert why in refused
    assert release.kubectl(*dry(pod, "open"), stdin=json.dumps(pod)).strip() == "pod/agent"


def _one(text: str, kind: str) -> dict[str, Any]:
    return next(each for each in yaml.safe_load_all(text) if each and each["kind"] == kind)


@pytest.fixture(scope="module")
def people(release: HelmOn) -> HelmOn:
    """One user for each role, by the cluster's own roles and by the chart's; those of a namespace have theirs in `ads`."""
    kubectl = release.kubectl
    for role in ("view", "edit", "admin"):
        kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "-n", "ads")
    for role in ("view", "pools"):
        name = f"tidegate-{role}"
        kubectl(
            "create",
            "clusterrolebinding",
            f"cluster-{role}",
            f"--clusterrole={name}",
            f"--user=cluster-{role}",
        )

    wanted = (
        ("view", "list", "inferences", "ads"),
        ("edit", "create", "inferences", "ads"),
        ("admin", "create", "inferences", "ads"),
        ("cluster-view", "list", "computepools", ""),
        ("cluster-pools", "patch", "computepools", ""),
    )
    for user, verb, kind, namespace in wanted:
        may(kubectl, user, verb, f"{kind}.tidegate.io", namespace)
    return release


def _rights(helm_on: HelmOn, user: str, namespace: str) -> dict[tuple[str, str], frozenset[str]]:
    """All that the API server says somebody may do to resources there, but for what everybody who is signed in may do."""

    def listed(who: str) -> dict[tuple[str, str], frozenset[str]]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        answer = helm_on.kubectl.json("create", "--filename=-", f"--as={who}", stdin=json.dumps(review))
        found: dict[tuple[str, str], frozenset[str]] = {}
        for rule in answer["status"]["resourceRules"]:
            for key in product(rule.get("apiGroups", ()), rule.get("resources", ())):
                found[key] = found.get(key, frozenset()) | frozenset(rule["verbs"])
        return found

    everybody = listed("nobody-in-particular")
    assert everybody, "whoever is signed in may ask what they may"
    return {key: verbs for key, verbs in listed(user).items() if everybody.get(key) != verbs}


def _both(*granted: VerbsByResource) -> dict[tuple[str, str], frozenset[str]]:
    """Rights that somebody has by several roles."""
    return {
        key: frozenset().union(*(each.get(key, frozenset()) for each in granted))
        for key in dict.fromkeys(key for each in granted for key in each)
    }


@pytest.mark.parametrize("process", list(ApiClientProcess))
@pytest.mark.parametrize("namespace", ["ads", SYSTEM])
def test_each_cell_of_a_process_is_what_the_api_server_says(
    release: HelmOn, process: ApiClientProcess, namespace: str
) -> None:
    """No more and no less: docs/reference/rights.md is made of the same rules."""
    own = (*RELEASE_RULES.get(process, ()), *SECRET_RULES.get(process, ())) if namespace == SYSTEM else ()
    found = _rights(release, f"system:serviceaccount:{SYSTEM}:tidegate-{process}", namespace)
    assert found == _both(merge_rules(CLUSTER_RULES[process]), merge_rules(own))


def test_what_is_denied_is_denied_by_the_api_server_itself(people: HelmOn) -> None:
    """Written by hand: the chart is made of the rules that the tests beside this one compare with."""
    users = ("view", "edit", "admin", "cluster-view", "cluster-pools", "stranger")
    names = {f"system:serviceaccount:{SYSTEM}:tidegate-{each}": str(each) for each in PROCESSES}
    names |= {user: user for user in users}

    def may_do(user: str, verb: str, what: str, namespace: str) -> bool:
        kind, _, subresource = what.partition("/")
        plural, _, group = kind.partition(".")
        about = {"verb": verb, "resource": plural, "subresource": subresource, "group": group}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {**about, "namespace": namespace}},
        }
        found = people.kubectl.json("create", "--filename=-", stdin=json.dumps(review))
        return bool(found["status"]["allowed"])

    nobody: set[str] = set()
    for verb, what, namespace, allowed in (
        ("create", "inferences.tidegate.io", "ads", {"edit", "admin"}),
        ("patch", "inferences.tidegate.io", "ads", {"edit", "admin"}),
        ("delete", "inferences.tidegate.io", "ads", {"edit", "admin"}),
        ("create", "inferences.tidegate.io", "shop", nobody),
        ("patch", "inferences.tidegate.io/status", "ads", {"controllers"}),
        ("patch", "computepools.tidegate.io", "", {"cluster-pools"}),
        ("create", "allocationdecisions.tidegate.io", "", {"controllers"}),
        ("update", "leases.coordination.k8s.io", "ads", {"edit", "admin"}),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", "", nobody),
        ("create", "pods", "", nobody),
        ("delete", "pods", "ads", {"edit", "admin"}),
        ("patch", "nodes", "", nobody),
        ("list", "secrets", "", nobody),
        ("list", "secrets", SYSTEM, nobody),
        ("impersonate", "users", "", nobody),
    ):
        found = {name for user, name in names.items() if may_do(user, verb, what, namespace)}
        assert found == allowed, f"{verb} {what} in {namespace or 'all namespaces'}"


@pytest.mark.parametrize("account", ["tidegate-gateway", "default"])
def test_who_needs_no_rights_has_none(release: HelmOn, account: str) -> None:
    assert _rights(release, f"system:serviceaccount:{SYSTEM}:{account}", SYSTEM) == {}


@pytest.mark.parametrize(
    ("user", "namespace", "roles"),
    [
        ("view", "ads", [PeopleRole.VIEW]),
        ("edit", "ads", [PeopleRole.VIEW, PeopleRole.EDIT]),
        ("admin", "ads", [PeopleRole.VIEW, PeopleRole.EDIT]),
        ("view", "shop", []),
        ("edit", "shop", []),
        ("cluster-view", "shop", [PeopleRole.VIEW]),
        ("cluster-pools", "ads", [PeopleRole.POOLS]),
        ("stranger", "ads", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cell_of_a_person_is_what_the_api_server_says(
    people: HelmOn, user: str, namespace: str, roles: Sequence[PeopleRole]
) -> None:
    found = _rights(people, user, namespace)
    ours = {key: verbs for key, verbs in found.items() if key[0] == "tidegate.io"}
    assert ours == _both(*(merge_rules(PEOPLE_RULES[role]) for role in roles))


def test_no_pod_of_another_namespace_gets_before_all_models(release: HelmOn) -> None:
    kubectl = release.kubectl
    kubectl.run("create", "namespace", "greedy")
    wait_for_account(kubectl, "greedy")

    def asked(namespace: str, priority: str) -> subprocess.CompletedProcess[str]:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "one"},
            "spec": {"priorityClassName": priority, **_restricted()},
        }
        return kubectl.run(
            *("create", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "name"), stdin=json.dumps(pod)
        )

    def refused() -> bool:
        return (
            "is for the namespace tidegate-system alone" in asked("greedy", "tidegate-control-plane").stderr
        )

    wait_until(refused, what="the policy is in force")
    assert asked("greedy", "tidegate-realtime").returncode == 0
    assert asked(SYSTEM, "tidegate-control-plane").returncode == 0


def _restricted() -> dict[str, Any]:
    container = {
        "name": "one",
        "image": "none",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {"containers": [container]}


def test_what_came_since_is_turned_on_with_the_values_of_before(release: HelmOn, tmp_path: Path) -> None:
    """All that counts of an earlier release is which values it has left."""
    earlier = tmp_path / "tidegate"
    (earlier / "templates").mkdir(parents=True)
    shutil.copy(CHART / "Chart.yaml", earlier)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for section in ("networkPolicy", "nodeAgent", "metrics", "grafana"):
        del values[section]
    (earlier / "values.yaml").write_text(yaml.safe_dump(values))
    release.kubectl("create", "namespace", "old")
    release.install("older", "old", {"crds.enabled": False, "watchNamespaces": ["old"]}, earlier)
    command = ("upgrade", "older", CHART, "--namespace=old", "--reuse-values")
    release(*command, "--set=networkPolicy.enabled=true")
    found = release.kubectl.json("get", "networkpolicies", "-n", "old")["items"]
    assert {each["metadata"]["name"] for each in found} == {f"older-{process}" for process in PROCESSES}
    refused = release.run(*command, "--set=nodeAgent.enabled=true")
    assert "nodeAgent.enabled needs a release that serves all namespaces" in refused.stderr
    release("uninstall", "older", "--namespace=old")


def test_the_next_commands_are_said_and_can_be_run(release: HelmOn) -> None:
    notes = release("get", "notes", "tidegate", f"--namespace={SYSTEM}")
    commands = [line.split() for line in notes.splitlines() if line.startswith("  tidegate ")]
    assert [command[1] for command in commands] == ["doctor", "dashboard"]
    for _, command, option, namespace in commands:
        assert namespace == SYSTEM
        assert option in CliRunner().invoke(app, [command, "--help"]).stdout
    forwarded = [line.partition(" >")[0].split() for line in notes.splitlines() if "port-forward" in line]
    assert [words[-2] for words in forwarded] == ["service/tidegate-web", "service/tidegate-gateway"]
    for words in forwarded:
        service = release.kubectl.json("get", words[-2], "-n", SYSTEM)
        assert int(words[-1].partition(":")[2]) in {port["port"] for port in service["spec"]["ports"]}
    (warning,) = [line for line in notes.splitlines() if line.startswith("WARNING")]
    assert "the images come from tidegate.local, a registry that only the clusters" in warning
    pushed = (
        "upgrade",
        "tidegate",
        str(CHART),
        f"--namespace={SYSTEM}",
        "--reuse-values",
        "--dry-run=server",
    )
    for tag, expected in (("", __version__), ("20261101", "20261101")):
        options = ("--set=images.registry=registry.example.com/tg", f"--set-string=images.operator.tag={tag}")
        notes = release(*pushed, *options).partition("NOTES:")[2]
        assert "WARNING" not in notes
        replaced = f"s#tidegate.local.*#registry.example.com/tg/object-store:{expected}#"
        assert f'sed "{replaced}" examples/first-model/*.yaml' in notes
    # The port is forwarded in the background, and the question waits for it.
    assert "> /dev/null 2>&1 &\n  curl -sS --retry 9 --retry-all-errors " in notes


def test_notes_name_every_place_that_models_come_from(release: HelmOn) -> None:
    said = " ".join(release("get", "notes", "tidegate", f"--namespace={SYSTEM}").split())
    assert f"Models come from {', '.join(f'{each}://' for each in UriScheme if each != 'file')};" in said
    assert "file:// is refused" in said
    assert "from no host yet: name them in models.allowedHosts" in said


def test_helm_3_installs_upgrades_rolls_back_and_removes(release: HelmOn) -> None:
    helm_3 = HelmOn(go_program("helm3"), release.kubectl)
    kubectl, name = release.kubectl, ("-n", "three")
    values: dict[str, object] = {**WITHOUT_KINDS, "watchNamespaces": ["three"], "fullnameOverride": "third"}
    kubectl("create", "namespace", "three")
    helm_3.install("three", "three", values)

    def replicas() -> int:
        return int(kubectl.json("get", "deployment", "third-xds", *name)["spec"]["replicas"])

    assert replicas() == 2
    # What the controllers write, and no later rendering contains.
    session = kubectl.json("get", "secret", "third-web-session", *name)
    assert "data" not in session
    kubectl("patch", "secret", "third-web-session", *name, "--patch", '{"stringData": {"key": "mine"}}')
    helm_3.install("three", "three", {**values, "xds.replicas": 3, "gateway.autoscaling.enabled": True})
    assert replicas() == 3
    assert kubectl.json("get", "hpa", "third-gateway", *name)["spec"]["maxReplicas"] == 10
    helm_3("rollback", "three", "1", "--namespace=three")
    assert replicas() == 2
    assert kubectl("get", "hpa", *name, "--output=name") == ""
    written = kubectl.json("get", "secret", "third-web-session", *name)["data"]["key"]
    assert base64.b64decode(written) == b"mine"
    helm_3("uninstall", "three", "--namespace=three", "--wait")
    assert (
        kubectl(
            "get",
            "deployments,services,secrets,clusterroles",
            *name,
            "--output=name",
            "-l",
            "app.kubernetes.io/instance=third",
        )
        == ""
    )


def test_objects_stay_when_their_release_goes_unless_they_were_not_to_be_kept(release: HelmOn) -> None:
    kubectl = release.kubectl
    body = inference_body(namespace="ads")
    metadata = {"name": "ctr", "namespace": "ads"}
    kubectl.apply({**body, "metadata": metadata}, namespace="ads")
    uid = kubectl.json("get", "inference", "ctr", "-n", "ads")["metadata"]["uid"]

    release("uninstall", "tidegate", f"--namespace={SYSTEM}")
    assert kubectl.json("get", "inference", "ctr", "-n", "ads")["metadata"]["uid"] == uid

    # The same release takes its kinds up again.
    release.install("tidegate", SYSTEM, {"crds.keep": False})
    assert kubectl.json("get", "inference", "ctr", "-n", "ads")["metadata"]["uid"] == uid
    # A kind whose storage is not there yet cannot be emptied, and the API server tries it again ever more seldom.
    kinds = [name for name in kubectl("get", "crds", "--output=name").split() if "tidegate.io" in name]
    for kind in kinds:
        wait_until(
            lambda kind=kind: kubectl.run("get", kind.partition("/")[2], "-A").returncode == 0,
            f"{kind} can be listed",
        )
    release("uninstall", "tidegate", f"--namespace={SYSTEM}")
    wait_until(
        lambda: "tidegate.io" not in kubectl("get", "crds", "--output=name"),
        "the kinds go, and what was of them",
        evidence=lambda: {
            crd["metadata"]["name"]: crd["status"]["conditions"]
            for crd in kubectl.json("get", "crds")["items"]
        },
    )

    release("install", "kinds", CHART_OF_KINDS, f"--namespace={SYSTEM}")
    wait_established(kubectl)
    refused = release.run("install", "tidegate", CHART, f"--namespace={SYSTEM}")
    assert "invalid ownership metadata" in refused.stderr, "one of both brings the kinds"
    release.install("tidegate", SYSTEM, WITHOUT_KINDS)
    release("uninstall", "kinds", f"--namespace={SYSTEM}")
    kubectl("get", "inferences", "-n", "ads")
