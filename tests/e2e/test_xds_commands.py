"""`tidegate xds` from outside a cluster: it finds the servers' pods by the user's own kubeconfig and rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builders.waiting import wait_until
from fixtures.installed import Installed, Space
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.demo.helm import NAMESPACE

_LIST: Final = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
_FORWARD: Final = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}


def test_status_dump_and_diff_follow_a_change_from_outside_the_cluster(space: Space) -> None:
    """The access leads to nothing: gateways are told of it all the same."""
    installed, name = space.installed, f"access/{space.namespace}/probe"

    def dumped(what: str, is_wanted: Callable[[str], bool]) -> str:
        """Wait until a dump of the access is as wanted; its revision."""
        told = ""

        def found() -> bool:
            nonlocal told
            told = _tried(installed, "dump", "--name", name, "-o", "json")
            return is_wanted(told)

        wait_until(found, f"the dump shows {what}", evidence=lambda: told)
        return str(json.loads(told)["revision"])

    def changed() -> str:
        """The diff of a change; nothing where those of other tests have pushed the revision before it out of memory."""
        space.access()
        before = dumped("the access", lambda told: name in told and "x-segment" not in told)
        space.access(match={"headers": [{"name": "x-segment", "exact": "later"}]})
        dumped("the change", lambda told: "x-segment" in told)
        try:
            return installed.tidegate("xds", "diff", before, "current", "--name", name)
        except CommandError as error:
            if "no such revision is kept" not in str(error):
                raise
            return ""

    told = json.loads(wait_until(changed, "a change is told", timeout_s=120.0))
    assert [change["change"] for change in told["changes"]["scope"]] == ["changed"]
    assert "x-segment" in json.dumps(told["changes"]["scope"][0]["after"])
    assert "x-segment" not in json.dumps(told["changes"]["scope"][0]["before"])

    gateways = {f"{one['metadata']['name']}.{NAMESPACE}" for one in installed.component("gateway")}

    def synced() -> bool:
        proxies = json.loads(installed.tidegate("xds", "status", "-o", "json"))["proxies"]
        states = {state for proxy in proxies for state in proxy["types"].values()}
        return {proxy["node"] for proxy in proxies} == gateways and states == {"SYNCED"}

    wait_until(synced, "status shows every gateway", evidence=lambda: installed.tidegate("xds", "status"))


def test_content_is_told_on_the_servers_own_loopback_alone(installed: Installed) -> None:
    pod = installed.component("xds")[0]["metadata"]["name"]
    through = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:%d/proxy/v1/snapshots/current"
    # The API server's proxy asks at the pod's address, as every other pod could.
    assert '"revision"' in installed.kubectl.run("get", "--raw", through % 18001)
    with pytest.raises(CommandError, match="connection refused"):
        installed.kubectl.run("get", "--raw", through % 18002)


def test_errors_name_the_right_that_is_missing_and_the_way_out(
    space: Space, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    installed = space.installed

    def said(*arguments: str) -> str:
        with pytest.raises(CommandError) as caught:
            installed.tidegate("xds", *arguments)
        return str(caught.value)

    elsewhere = said("status", "--system-namespace", "default")
    assert "name the namespace of the xDS servers with --system-namespace" in elsewhere
    assert "no-such-context" in said("status", "--context", "no-such-context")
    engineer = _kubeconfig(installed, tmp_path, token=_engineer(space))
    asks = ("status", "--kubeconfig", str(engineer))
    assert 'cannot list resource "pods"' in said(*asks)
    _grant(space, [_LIST])
    request.addfinalizer(lambda: _take_back(space))
    wait_until(
        lambda: "portforward: 403 Forbidden: the verbs get and create" in said(*asks),
        "it lacks the other right",
    )
    _grant(space, [_LIST, _FORWARD])
    wait_until(lambda: "gateway" in _tried(installed, *asks), "with both rights it is answered")


def _tried(installed: Installed, *arguments: str) -> str:
    try:
        return installed.tidegate("xds", *arguments)
    except CommandError as error:
        return f"failed: {error}"


def _engineer(space: Space) -> str:
    """A token of somebody without any right."""
    space.kubectl.run("create", "serviceaccount", "engineer", "-n", space.namespace)
    return space.kubectl.run("create", "token", "engineer", "-n", space.namespace).strip()


def _grant(space: Space, rules: Sequence[Mapping[str, Any]]) -> None:
    """These rights, and no others, in the namespace of the xDS servers."""
    metadata = {"name": f"{space.namespace}-engineer", "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "engineer", "namespace": space.namespace}],
    }
    space.kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all([role, binding]))


def _take_back(space: Space) -> None:
    space.kubectl.run("delete", "role,rolebinding", f"{space.namespace}-engineer", "-n", NAMESPACE)


def _kubeconfig(installed: Installed, folder: Path, token: str) -> Path:
    """The administrator's kubeconfig with another user's token."""
    config = yaml.safe_load(installed.cluster.files.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
