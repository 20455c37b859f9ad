"""The control plane alone: real, with RBAC, on loopback, and gone with who started it."""

import contextlib
import http
import http.client
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from builders.processes import is_alive
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from tidegate_localcluster.control_plane import ControlPlane, ControlPlaneOptions
from tidegate_localcluster.errors import NotReadyError, ProcessDiedError
from tidegate_localcluster.pki import Pki


@pytest.mark.slow("starts a control plane of its own")
def test_keeps_its_objects_over_a_restart(control_plane_binaries: Mapping[str, Path], tmp_path: Path) -> None:
    instance = ControlPlane(tmp_path / "state", control_plane_binaries, Pki(tmp_path / "pki"))
    kubectl = Kubectl(control_plane_binaries["kubectl"], instance.kubeconfig, tmp_path / "cache")
    with instance:
        kubectl("create", "namespace", "kept")
    with instance:
        assert kubectl.json("get", "namespace", "kept")["status"]["phase"] == "Active"


def test_an_unprivileged_service_account_may_do_nothing(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    kubectl("create", "serviceaccount", "nobody", "--namespace", namespace)
    token = kubectl("create", "token", "nobody", "--namespace", namespace).strip()
    config = json.loads(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    as_nobody = Kubectl(kubectl.binary, kubeconfig, tmp_path / "cache")

    refusal = as_nobody.refusal("get", "secrets", "--namespace", namespace)

    assert f'User "system:serviceaccount:{namespace}:nobody" cannot list resource "secrets"' in refusal
    role = ["--role=reader", f"--serviceaccount={namespace}:nobody", "--namespace", namespace]
    kubectl("create", "role", "reader", "--verb=list", "--resource=secrets", "--namespace", namespace)
    kubectl("create", "rolebinding", "reader", *role)
    wait_until(
        lambda: as_nobody.run("get", "secrets", "--namespace", namespace).returncode == 0,
        what="the role is in effect",
    )


def test_nobody_gets_in_without_a_certificate_or_token(control_plane: ControlPlane) -> None:
    authority = control_plane.state_dir / "pki" / "ca.crt"
    tls = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(control_plane.address, control_plane.port, context=tls)
    with contextlib.closing(connection):
        connection.request("GET", "/version")
        assert connection.getresponse().status == http.HTTPStatus.UNAUTHORIZED


def test_a_kubelet_sees_its_own_node_only(
    control_plane: ControlPlane, kubectl: Kubectl, tmp_path: Path
) -> None:
    credentials = Pki(control_plane.state_dir / "pki").issue_kubelet_client("own-node")
    kubeconfig = Pki(control_plane.state_dir / "pki").write_kubeconfig(
        tmp_path / "kubelet", server=control_plane.server_url, credentials=credentials
    )
    kubelet = Kubectl(kubectl.binary, kubeconfig, tmp_path / "cache")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another-node"}}
    assert "is not allowed to" in kubelet.refusal("create", "--filename=-", stdin=json.dumps(node))
    node["metadata"] = {"name": "own-node"}
    kubelet("create", "--filename=-", stdin=json.dumps(node))
    kubectl("delete", "node", "own-node")


def test_only_the_owner_can_read_its_files(control_plane: ControlPlane) -> None:
    readable = [
        str(path)
        for path in (
            control_plane.state_dir,
            control_plane.kubeconfig,
            *(control_plane.state_dir / "pki").iterdir(),
        )
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert readable == []


def test_listens_on_loopback_only(control_plane: ControlPlane) -> None:
    listening = [
        connection.laddr
        for pid in control_plane.pids.values()
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert len(listening) == 3


def test_names_the_part_that_died_and_shows_why(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    options = ControlPlaneOptions(arguments={"kube-apiserver": ["--no-such-flag"]})
    instance = ControlPlane(
        tmp_path / "state", control_plane_binaries, Pki(tmp_path / "pki"), options=options
    )
    with pytest.raises(ProcessDiedError, match=r"(?s)kube-apiserver ended with exit status 1.*unknown flag"):
        instance.start()
    assert instance.pids == {}


@pytest.mark.slow("starts a control plane of its own")
def test_gives_up_when_a_part_does_not_become_ready(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    silent = tmp_path / "etcd"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    instance = ControlPlane(
        tmp_path / "state",
        {**control_plane_binaries, "etcd": silent},
        Pki(tmp_path / "pki"),
        options=ControlPlaneOptions(ready_timeout_s=2.0),
    )
    with pytest.raises(NotReadyError, match=r"(?s)waited 2 s.*kube-apiserver answers /readyz"):
        instance.start()
    assert instance.pids == {}


@pytest.mark.slow("starts a control plane of its own")
def test_dies_with_a_parent_that_is_killed(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    program = """
        import json, sys, time
        from pathlib import Path
        from tidegate_localcluster.control_plane import ControlPlane
        from tidegate_localcluster.pki import Pki
        state, binaries = Path(sys.argv[1]), {n: Path(p) for n, p in json.loads(sys.argv[2]).items()}
        instance = ControlPlane(state, binaries, Pki(state / "pki"))
        instance.start()
        print(json.dumps(dict(instance.pids)), flush=True)
        sys.stdin.read()
    """
    paths = json.dumps({name: str(path) for name, path in control_plane_binaries.items()})
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "state"), paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert all(is_alive(pid) for pid in pids.values())
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(
        lambda: not any(is_alive(pid) for pid in pids.values()),
        what="the parts are gone",
    )
